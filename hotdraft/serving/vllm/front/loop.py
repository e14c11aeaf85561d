"""The loop beside a vLLM server: registry, watch, curves, trainer and pages, in the process that answers HTTP.

Of several such processes one holds the run directory's lock and runs the loop; the others only tag requests.
"""

import asyncio
import logging
import threading
from collections.abc import Coroutine, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from fastapi import FastAPI, Response
from prometheus_client import generate_latest

from hotdraft.pipeline.config.section import ConfigError
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.loading import fingerprint
from hotdraft.pipeline.models.names import local_folder
from hotdraft.pipeline.system.array_ring import forget_served_states
from hotdraft.pipeline.system.run_lock import run_lock
from hotdraft.pipeline.system.version import installed_version
from hotdraft.serving.http.access import ApiKeyGuard, read_admin_keys
from hotdraft.serving.http.errors import ApiError, add_error_handlers, error_responses
from hotdraft.serving.http.foreign_pages import AllowedHosts, OwnPagesOnly
from hotdraft.serving.loop_parts import LoopParts, Part
from hotdraft.serving.updates.adapter_sync import AdapterSync
from hotdraft.serving.vllm.front.exported import Exported
from hotdraft.serving.vllm.front.followed_engine import FollowedEngine
from hotdraft.serving.vllm.front.swapper import VllmSwapper
from hotdraft.serving.vllm.journal import JournalFollower, engine_names
from hotdraft.serving.vllm.worker.seams import put_before

logger = logging.getLogger(__name__)

JOURNAL = "vllm-workers"
"""Folder below the run directory."""
CALL_SECONDS = 300.0
CLOSE_SECONDS = 15.0
"""A recorder waits ten for its store."""
RESET_TRIES = 60
"""A second apart."""


class LoopBesideVllm:
    """Made and started in vLLM's event loop; `app` answers below `/hotdraft`."""

    def __init__(
        self,
        config: HotdraftConfig,
        config_path: Path,
        overrides: Mapping[str, Any],
        *,
        vllm_config: Any,
        engine_client: Any,
    ) -> None:
        told = vllm_config.speculative_config
        self._config = config
        self._client = engine_client
        self._events, self._events_thread = asyncio.get_running_loop(), threading.get_ident()
        self._folder = config.run_dir.absolute() / JOURNAL
        self._journal = JournalFollower(self._folder)
        self.engine = FollowedEngine(
            self._journal,
            engines=engine_names(vllm_config.parallel_config),
            k=told.num_speculative_tokens,
            num_slots=vllm_config.scheduler_config.max_num_seqs,
            max_model_len=vllm_config.model_config.max_model_len,
        )
        drafting = local_folder(told.model).absolute()
        self._settings = worker_settings(config, self._folder, drafting, fingerprint(config.draft or told.model))
        after = self._reset_prefixes if config.vllm.reset_prefix_cache else lambda: None
        swapper = VllmSwapper(self.engine, self._call, is_asleep=self._is_asleep, after_swap=after)
        loop = LoopParts(
            self.engine,
            config,
            config_path,
            overrides,
            swapper=swapper,
            self_improve=config.vllm.self_improve,
            recorder=self.engine,
        )
        exported = Exported(loop.metrics)
        self._parts: list[Part] = [*loop.before_engine, self.engine, *loop.after_engine, exported]
        self._stack = ExitStack()
        self._workers_closed = False
        assert loop.sync is not None
        self.app = _application(config, self.engine, exported, loop.sync, loop.routers)

    async def start(self) -> None:
        """Attach to the workers, then run. Raises `RunInUseError` where another process runs the loop here,
        and `RuntimeError` where a worker cannot take part."""
        self._stack.enter_context(run_lock(self._config.run_dir, "server"))
        self._journal.clear()
        forget_served_states(self._config)
        try:
            replies = await self._client.collective_rpc("hotdraft_attach", args=(self._settings,))
            if failed := [reply["failed"] for reply in replies if "failed" in reply]:
                raise RuntimeError(f"a worker cannot take part: {failed[0]}")
            put_before(self._client, "shutdown", self._before_engine_ends)
            await asyncio.to_thread(self._start_parts)
        except BaseException:  # nobody would follow what the workers go on to write
            with suppress(Exception):  # of which the one above is the cause
                await self.stop()
            raise

    async def stop(self) -> None:
        await self._close_workers()
        await asyncio.to_thread(self._stack.close)

    async def _close_workers(self) -> None:
        """What they have recorded is written, and nothing more."""
        if self._workers_closed:
            return
        self._workers_closed = True
        try:
            await asyncio.wait_for(self._client.collective_rpc("hotdraft_close"), CLOSE_SECONDS)
        except Exception as error:  # noqa: BLE001 -- of a dead or hanging engine, in vLLM's own words
            logger.warning("what vLLM's workers recorded last is lost: %s: %s", type(error).__name__, error)

    def _before_engine_ends(self, *_: Any, **__: Any) -> None:
        """At SIGTERM vLLM has a thread end its engine, and only then its HTTP server."""
        if threading.get_ident() != self._events_thread:
            asyncio.run_coroutine_threadsafe(self._close_workers(), self._events).result()

    def _start_parts(self) -> None:
        for part in self._parts:
            self._stack.callback(part.stop)
            part.start()

    def _call(self, method: str, *args: Any) -> Any:
        """From any thread but the event loop's."""
        return self._wait(self._client.collective_rpc(method, args=args))

    def _is_asleep(self) -> bool:
        return self._wait(self._client.is_sleeping())

    def _wait(self, told: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(told, self._events).result(CALL_SECONDS)

    def _reset_prefixes(self) -> None:
        asyncio.run_coroutine_threadsafe(self._until_reset(), self._events)

    async def _until_reset(self) -> None:
        """vLLM does not while requests hold what is cached."""
        why = "requests held it"
        for _ in range(RESET_TRIES):
            try:
                if await self._client.reset_prefix_cache():
                    return
            except Exception as error:  # noqa: BLE001 -- the top of a task that nobody waits for
                why = f"{type(error).__name__}: {error}"
            await asyncio.sleep(1)
        logger.warning("vLLM kept its prefix cache, of the draft's version before, too: %s", why)


def worker_settings(config: HotdraftConfig, journal: Path, draft_folder: Path, draft: str) -> dict[str, Any]:
    """What `hotdraft_attach` takes; `draft` is its fingerprint. Of `config` it is what workers go by: the rest,
    every default spelled out, may not be valid a second time."""
    return {
        "config": config.model_dump(mode="json", include={"target", "draft", "run_dir", "recorder", "replay"}),
        "journal": str(journal),
        "draft_folder": str(draft_folder),
        "fingerprint": draft,
    }


def _application(
    config: HotdraftConfig, engine: FollowedEngine, exported: Exported, adapters: AdapterSync, routers: list
) -> FastAPI:
    app = FastAPI(title="hotdraft", version=installed_version(), docs_url=None, redoc_url=None)
    add_error_handlers(app)
    try:
        keys = read_admin_keys(config.server)
    except ConfigError as error:
        logger.warning("/hotdraft/admin answers nobody: %s", error)
        keys = [uuid4().hex]
    app.add_middleware(OwnPagesOnly, config=config.server)
    app.add_middleware(ApiKeyGuard, api_keys=[], admin_keys=keys)
    app.add_middleware(AllowedHosts, config=config.server)
    for router in routers:
        app.include_router(router)

    @app.get("/status")
    def status() -> dict[str, Any]:
        """The version that drafts, what each worker said of itself, and what a swap waits for."""
        return {
            "draft_version": engine.draft_version,
            "workers": list(engine.workers.values()),
            "silent_engines": engine.silent_engines,
            "swap_waits": adapters.waits,
            "unusable_adapters": adapters.unusable,
            "adapter_registry": adapters.problem,
        }

    @app.get("/requests/{request_id}", responses=error_responses(404))
    def counts(request_id: str) -> dict[str, Any]:
        """What a finished request came to, by the id of its answer."""
        found = engine.counts_of(request_id)
        if found is None:
            raise ApiError(404, f"No finished request {request_id} is known.", code="not_found")
        return {key: value for key, value in found.items() if key not in ("client", "event")}

    @app.get("/metrics")
    def prometheus() -> Response:
        return Response(generate_latest(exported), media_type="text/plain; version=0.0.4; charset=utf-8")

    return app
