"""The HTTP face: OpenAI's endpoints and others over an `Engine`, with probes, version and Prometheus metrics."""

from collections.abc import Sequence
from typing import Any

from asgi_correlation_id import CorrelationIdMiddleware
from fastapi import APIRouter, Depends, FastAPI, Response
from fastapi.security import HTTPBearer
from prometheus_client import generate_latest
from prometheus_fastapi_instrumentator import Instrumentator

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.system.version import installed_version
from hotdraft.serving.engine.engine import Engine
from hotdraft.serving.http.access import ApiKeyGuard, BodyLimit, KnownMethods
from hotdraft.serving.http.docs import docs_router
from hotdraft.serving.http.errors import ApiError, add_error_handlers, error_responses
from hotdraft.serving.http.foreign_pages import AllowedHosts, OwnPagesOnly
from hotdraft.serving.http.logs import PROBES
from hotdraft.serving.http.openai.routes import openai_router
from hotdraft.serving.metrics.listener import ServingMetrics

_PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"
"""Never OpenMetrics, even where the scraper prefers it: its encoder turns the colon of `vllm:` into `_`."""
MAX_REQUEST_ID = 128


def create_app(
    engine: Engine,
    config: HotdraftConfig,
    *,
    metrics: ServingMetrics,
    api_keys: Sequence[str] = (),
    admin_keys: Sequence[str] = (),
    routers: Sequence[APIRouter] = (),
) -> FastAPI:
    """The application that serves `engine`, with `routers` beside OpenAI's.

    Starting and stopping the engine stays with the caller. Without `api_keys` /v1 is open to everybody, and
    so is /admin without either.
    """
    app = FastAPI(
        title="hotdraft",
        version=installed_version(),
        description="OpenAI-compatible serving whose speculative draft learns from its traffic.",
        docs_url=None,  # FastAPI's own pages load their scripts from the internet
        redoc_url=None,
        redirect_slashes=False,  # each path that is redirected would be a label of metrics
    )
    add_error_handlers(app)
    # Applied from the last to the first: every answer, a refusal too, has a request id.
    app.add_middleware(BodyLimit, max_bytes=config.server.max_body_bytes)
    app.add_middleware(OwnPagesOnly, config=config.server)
    app.add_middleware(ApiKeyGuard, api_keys=api_keys, admin_keys=admin_keys)
    app.add_middleware(AllowedHosts, config=config.server)
    instrumentator = Instrumentator(
        should_group_status_codes=False, excluded_handlers=list(PROBES), registry=metrics.registry
    )
    instrumentator.instrument(app)
    app.add_middleware(KnownMethods)
    app.add_middleware(CorrelationIdMiddleware, header_name="X-Request-Id", validator=is_request_id)

    bearer = Depends(HTTPBearer(auto_error=False, description="one of the server's keys"))
    for router in (openai_router(engine, config), *routers):
        guarded = {"/v1": api_keys, "/admin": admin_keys or api_keys}.get(router.prefix)
        app.include_router(router, dependencies=[bearer] if guarded else None)
    app.include_router(docs_router(app.title))

    @app.get("/health", responses=error_responses(503), tags=["operation"])
    async def health() -> dict[str, Any]:
        """Whether the process works: restart it if not. What is amiss and survived is told by name."""
        if not engine.is_alive:
            cause = f" It ended by {engine.fatal_error}" if engine.fatal_error else ""
            raise ApiError(503, f"The engine is not running.{cause}", code="engine_dead")
        sources = metrics.sources
        amiss = {
            "unusable_adapters": sources.adapters.unusable if sources.adapters else None,
            "adapter_registry": sources.adapters.problem if sources.adapters else None,
            "recording": sources.recorder.problem if sources.recorder else None,
            "run_dir": sources.lock.problem if sources.lock else None,
        }
        return {"status": "ok", **{name: what for name, what in amiss.items() if what}}

    @app.get("/ready", responses=error_responses(503), tags=["operation"])
    async def ready() -> dict[str, str]:
        """Whether to send requests here: not any more once the server was asked to end."""
        await health()
        if engine.is_draining:
            raise ApiError(503, "The server is shutting down.", code="shutting_down")
        return {"status": "ready"}

    @app.get("/version", tags=["operation"])
    async def version() -> dict[str, str | int]:
        return {"version": app.version, "draft_version": engine.draft_version}

    @app.get("/metrics", response_class=Response, tags=["operation"])
    def prometheus() -> Response:  # in a thread: the records of jobs are read from the disk
        return Response(generate_latest(metrics.registry), headers={"Content-Type": _PROMETHEUS_TEXT})

    return app


def is_request_id(text: str) -> bool:
    """Whether a client's request id may go to logs and headers as it is."""
    return len(text) <= MAX_REQUEST_ID and text.isascii() and text.isprintable()
