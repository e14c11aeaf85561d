"""`vllm.endpoint_plugins`: what vLLM's front end loads where `VLLM_PLUGINS` names hotdraft."""

import logging
import os
from argparse import Namespace
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.types import ASGIApp

from hotdraft.pipeline.config.section import ConfigError
from hotdraft.pipeline.config.settings import HotdraftConfig, load_config
from hotdraft.pipeline.models.loading import weights_id
from hotdraft.pipeline.models.names import local_folder, read_cut
from hotdraft.pipeline.system.run_lock import RunInUseError
from hotdraft.serving.http.client_identity import client_identity
from hotdraft.serving.http.errors import ApiError
from hotdraft.serving.vllm.front.front_door import FrontDoor
from hotdraft.serving.vllm.front.loop import LoopBesideVllm
from hotdraft.serving.vllm.versions import VllmVersionError, installed

logger = logging.getLogger(__name__)

CONFIG_VARIABLE = "HOTDRAFT_CONFIG"


class HotdraftPlugin:
    """Of the configuration that `HOTDRAFT_CONFIG` names, with `HOTDRAFT_...` variables over it."""

    name = "hotdraft"
    required_tasks = ("generate",)

    def __init__(self) -> None:
        self._loop: LoopBesideVllm | None = None
        self._config: HotdraftConfig | None = None
        self._why = "vLLM's log says why"
        """There is no loop here."""

    def attach_router(self, app: FastAPI) -> None:
        """Put our door in front; everything else begins with `init_state`."""
        app.add_middleware(FrontDoor, ours=self._application, client_identity=self._client_of, before_end=self._end)

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        """Run the loop, or say loudly why there is none: vLLM serves either way."""
        try:
            installed()
            await self._begin(engine_client, args)
        except (VllmVersionError, ConfigError, RunInUseError) as error:
            self._why = str(error)
            logger.error("hotdraft does nothing here, vLLM serves on: %s", error)
        except Exception as error:
            logger.exception("hotdraft does nothing here, vLLM serves on: %s", error)

    async def _begin(self, engine_client: Any, args: Namespace) -> None:
        path = os.environ.get(CONFIG_VARIABLE)
        if path is None:
            raise ConfigError(f"set {CONFIG_VARIABLE} to hotdraft's configuration file")
        overrides = {"server": {"host": args.host or "0.0.0.0", "port": args.port}}
        config = load_config(path, overrides)
        check_models(config, engine_client.vllm_config)
        self._config = config
        loop = LoopBesideVllm(
            config,
            Path(path),
            overrides,
            vllm_config=engine_client.vllm_config,
            engine_client=engine_client,
        )
        await loop.start()
        self._loop = loop

    async def _end(self) -> None:
        if self._loop is not None:
            await self._loop.stop()

    def _application(self) -> ASGIApp:
        if self._loop is None:
            return ApiError(503, f"hotdraft does nothing in this process: {self._why}").response()
        return self._loop.app

    def _client_of(self, request: Request) -> str:
        return client_identity(request, self._config.server) if self._config is not None else ""


def check_models(config: HotdraftConfig, vllm_config: Any) -> None:
    """Raise `ConfigError` where vLLM has no draft model, or serves others than the loop is to be about."""
    speculative = vllm_config.speculative_config
    if speculative is None or speculative.method != "draft_model":
        raise ConfigError(
            'nothing drafts here: start vLLM with --speculative-config \'{"method": "draft_model", ...}\''
        )
    served = {"target": (config.target, vllm_config.model_config.model)}
    # of a cut draft vLLM has another form
    if config.draft is not None and read_cut(local_folder(config.draft)) is None:
        served["draft"] = (config.draft, speculative.model)
    for name, (told, found) in served.items():
        ours, its = weights_id(told), weights_id(found)
        if ours and its and ours != its:
            raise ConfigError(f"{name} {told}: vLLM serves another, {found}: name that, or start vLLM with {told}")
