"""The operator's routes: what the command line does, over HTTP and by the same calls.

They run in threads, as they touch the disk and MLflow, and never wait for either with the engine.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from fastapi import APIRouter, Request
from starlette.convertors import register_url_convertor

from hotdraft.pipeline.config.origins import without_password
from hotdraft.pipeline.config.serving import KSetting
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.loop.controls import ControlError, ControlFile
from hotdraft.pipeline.loop.job_record import Job
from hotdraft.pipeline.loop.jobs import JobEndedError, JobRecords, JobRunningError, UnknownJobError
from hotdraft.pipeline.loop.next_job import NextJobFile
from hotdraft.pipeline.processes.trainer import Trainer
from hotdraft.pipeline.store.connection import STORE_ERRORS, in_one_line
from hotdraft.pipeline.store.errors import RegistryError, UnknownVersionError
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.serving.http.admin.schema import (
    AdapterDetail,
    Adapters,
    Champion,
    ChampionChange,
    JobDetail,
    JobId,
    Jobs,
    K,
    KChange,
    Loop,
    LoopSwitch,
    Status,
    Version,
    VersionConvertor,
)
from hotdraft.serving.http.errors import ApiError, error_responses
from hotdraft.serving.metrics.state_metrics import EngineState
from hotdraft.serving.updates.k_override import KOverride


class ServedEngine(EngineState, Protocol):
    @property
    def k(self) -> KSetting: ...


def admin_router(
    engine: ServedEngine,
    config: HotdraftConfig,
    *,
    registry: AdapterRegistry,
    records: JobRecords,
    start_job: Callable[[], Job],
    controls: ControlFile,
    k_override: KOverride | None,
    trainer: Trainer,
) -> APIRouter:
    """`/admin/...`; the server has a k that can be changed if there is a `k_override`."""
    router = APIRouter(prefix="/admin", tags=["admin"], responses=error_responses(401, 403, 413, 415))
    started, next_job = time.monotonic(), NextJobFile(config.run_dir)

    @router.get("/status", responses=error_responses(503))
    def status(request: Request) -> Status:
        settings = controls.read()
        return Status(
            version=request.app.version,
            model=config.served_model_name,
            target=config.target,
            draft=config.draft,
            draft_version=engine.draft_version,
            k=engine.k,
            k_override=None if k_override is None else settings.k,
            loop_enabled=settings.loop_enabled,
            trainer=(state := trainer.state),
            next_job=None if state == "absent" else next_job.read(),
            num_running=engine.num_running,
            num_waiting=engine.num_waiting,
            num_slots=engine.num_slots,
            uptime_seconds=time.monotonic() - started,
        )

    _add_adapter_routes(router, config, registry)
    _add_job_routes(router, config, records, start_job)
    _add_control_routes(router, engine, controls, k_override, trainer)
    return router


def _add_adapter_routes(router: APIRouter, config: HotdraftConfig, registry: AdapterRegistry) -> None:
    register_url_convertor("version", VersionConvertor())

    @router.get("/adapters", responses=error_responses(503))
    def list_adapters() -> Adapters:
        """All versions, newest first."""
        with _answered("the adapter registry"):
            return Adapters(adapters=registry.versions(), champion=registry.champion(), pinned=registry.is_pinned())

    @router.get("/adapters/{version:version}", responses=error_responses(400, 404, 503))
    def show_adapter(version: Version) -> AdapterDetail:
        """One version, with what its training run measured."""
        with _answered("the adapter registry"):
            found = registry.version(version)
            return AdapterDetail(**vars(found), training_metrics=registry.training_metrics(version))

    @router.post("/adapters/{version:version}/promote", responses=error_responses(400, 404, 409, 503))
    def promote(version: Version, body: ChampionChange | None = None) -> Champion:
        """Make a version the champion, pinned until it is unpinned; it is swapped in between two rounds."""
        _check_draft(config)
        with _answered("the adapter registry"):
            registry.promote(version, reason=(body or ChampionChange()).reason, by_hand=True)
        return Champion(champion=version, pinned=True)

    @router.post("/adapters/rollback", responses=error_responses(400, 409, 503))
    def rollback(body: ChampionChange | None = None) -> Champion:
        """Return to the champion before the current one, or to the draft without an adapter, and pin that."""
        _check_draft(config)
        with _answered("the adapter registry"):
            good = registry.rollback(reason=(body or ChampionChange()).reason, by_hand=True)
        return Champion(champion=good, pinned=True)

    @router.post("/adapters/unpin", responses=error_responses(409, 503))
    def unpin() -> Champion:
        """Let the gate and the watchdog move the champion again."""
        _check_draft(config)
        with _answered("the adapter registry"):
            registry.unpin()
            return Champion(champion=registry.champion(), pinned=False)


def _add_job_routes(
    router: APIRouter, config: HotdraftConfig, records: JobRecords, start_job: Callable[[], Job]
) -> None:
    @router.post("/jobs", status_code=202, responses=error_responses(409, 503))
    def begin() -> Job:
        """Start a distillation job in a process of its own, whatever the trigger says."""
        _check_draft(config)
        with _answered("the run directory"):
            return start_job()

    @router.get("/jobs", responses=error_responses(503))
    def list_jobs() -> Jobs:
        """The newest jobs first, whoever started them."""
        with _answered("the run directory"):
            return Jobs(jobs=records.jobs())

    @router.get("/jobs/{job_id}", responses=error_responses(404, 503))
    def show_job(job_id: JobId) -> JobDetail:
        """One job, with the last lines it logged."""
        with _answered("the run directory"):
            return JobDetail(**vars(records.get(job_id)), log_tail=records.log_tail(job_id))

    @router.delete("/jobs/{job_id}", status_code=202, responses=error_responses(404, 409, 503))
    def cancel(job_id: JobId) -> Job:
        """End a job at its next step and drop it: no verdict, nothing published."""
        with _answered("the run directory"):
            return records.cancel(job_id)


def _add_control_routes(
    router: APIRouter,
    engine: ServedEngine,
    controls: ControlFile,
    k_override: KOverride | None,
    trainer: Trainer,
) -> None:
    @router.get("/loop", responses=error_responses(503))
    def show_loop() -> Loop:
        """Whether the trainer begins jobs by itself."""
        return Loop(enabled=controls.read().loop_enabled, trainer=trainer.state)

    @router.put("/loop", responses=error_responses(400, 503))
    def switch_loop(body: LoopSwitch) -> Loop:
        """Switch the loop on or off, for the trainer that shares this server's run folder."""
        with _answered("the run directory"):
            return Loop(enabled=controls.switch_loop(body.enabled).loop_enabled, trainer=trainer.state)

    @router.get("/k", responses=error_responses(503))
    def show_k() -> K:
        """Drafted tokens a round."""
        return shown_k()

    @router.put("/k", responses=error_responses(400, 409, 503))
    def change_k(body: KChange) -> K:
        """Override the configured k, from the next round on and over restarts."""
        if k_override is None:
            raise ApiError(409, "k is fixed for as long as this server runs.", code="fixed_k")
        with _answered("the run directory"):
            controls.override_k(body.k, k_override.largest, k_override.configured)
        k_override.follow()
        return shown_k()

    def shown_k() -> K:
        return K(
            k=engine.k,
            k_override=None if k_override is None else controls.read().k,
            configured_k=engine.k if k_override is None else k_override.configured,
            max_k=engine.k if k_override is None else k_override.largest,
        )


def _check_draft(config: HotdraftConfig) -> None:
    if config.draft is None:
        raise ApiError(409, "This server has no draft: its configuration names none.", code="no_draft")


@contextmanager
def _answered(store: str) -> Iterator[None]:
    """Errors of ours as errors of HTTP."""
    try:
        yield
    except (UnknownVersionError, UnknownJobError) as error:
        raise ApiError(404, str(error), code="not_found") from error
    except (RegistryError, JobEndedError, JobRunningError, ControlError) as error:
        raise ApiError(409, str(error), code="conflict") from error
    except STORE_ERRORS as error:
        why = without_password(in_one_line(error))
        raise ApiError(503, f"It failed, as {store} cannot be used: {why}", code="store_unavailable") from error
