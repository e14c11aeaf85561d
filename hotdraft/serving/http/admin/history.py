"""`GET /admin/history`: the served curves, as MLflow is told them too."""

import time
from collections.abc import Callable

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from hotdraft.pipeline.store.curves import History
from hotdraft.serving.http.errors import error_responses


class Point(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    time: float = Field(description="end of the interval, Unix time in seconds")
    request: int = Field(description="requests finished since the server's start")
    acceptance_rate: float | None = Field(None, description="accepted / drafted tokens; absent if none was drafted")
    mean_acceptance_length: float | None = Field(None, description="1 + accepted / rounds")
    tokens_per_second: float
    draft_version: int
    domains: dict[str, float] = Field(description="acceptance rate by domain")


class Swap(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    time: float
    request: int
    version: int
    reason: str


class ServedHistory(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    time: float = Field(description="the server's clock, Unix time in seconds")
    interval_seconds: float = Field(description="time that a point sums up, at most; idle intervals have no point")
    points: list[Point] = Field(description="the newest, oldest first")
    swaps: list[Swap] = Field(description="likewise")


def history_router(history: Callable[[], History]) -> APIRouter:
    router = APIRouter(prefix="/admin", tags=["admin"], responses=error_responses(401, 403, 413))

    @router.get("/history", response_model_exclude_none=True)
    def served_history() -> ServedHistory:
        now = history()
        return ServedHistory(
            time=time.time(),
            interval_seconds=now.interval_seconds,
            points=[Point.model_validate(point) for point in now.points],
            swaps=[Swap.model_validate(swap) for swap in now.swaps],
        )

    return router
