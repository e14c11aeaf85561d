"""`GET /admin/history`: the served curves, as MLflow is told them too."""

import time
from collections.abc import Callable

from fastapi import APIRouter
from pydantic import BaseModel, Field

from hotdraft.pipeline.store.history import History, Point, Swap
from hotdraft.serving.http.errors import error_responses


class ServedHistory(BaseModel):
    time: float = Field(description="the server's clock, Unix time in seconds")
    interval_seconds: float = Field(description="time that a point sums up, at most; idle intervals have no point")
    points: list[Point] = Field(description="the newest, oldest first; a rate is absent if nothing was drafted")
    swaps: list[Swap] = Field(description="likewise")


def history_router(history: Callable[[], History]) -> APIRouter:
    router = APIRouter(prefix="/admin", tags=["admin"], responses=error_responses(401, 403, 413))

    @router.get("/history", response_model_exclude_none=True)
    def served_history() -> ServedHistory:
        return ServedHistory(time=time.time(), **vars(history()))

    return router
