"""A server of the dashboard with the admin API's answers made up, over real HTTP."""

import math
import time
from typing import Any

from fastapi import FastAPI, Request

from hotdraft.pipeline.config.serving import ServerConfig
from hotdraft.pipeline.store.history import History, Point, Swap
from hotdraft.serving.http.admin.history import history_router
from hotdraft.serving.http.dashboard.router import dashboard_router
from hotdraft.serving.http.errors import ApiError, add_error_handlers
from hotdraft.serving.http.foreign_pages import AllowedHosts, OwnPagesOnly

START = 1_700_000_000.0
INTERVAL = 5.0


def traffic(points: int, domains: tuple[str, ...] = ("arithmetic", "text-to-sql", "chat")) -> History:
    """A history of `points` intervals up to now: two promotions, a rollback, and a new domain on the way."""
    begin = time.time() - points * INTERVAL
    versions = [
        0 if i < points * 0.3 else 1 if i < points * 0.6 else 2 if i < points * 0.7 else 1 for i in range(points)
    ]
    swaps = [
        Swap(begin + i * INTERVAL, 3 * i, versions[i], "rollback" if versions[i] < versions[i - 1] else "promotion")
        for i in range(1, points)
        if versions[i] != versions[i - 1]
    ]

    def rate(index: int, domain: int) -> float:
        level = (0.22, 0.47, 0.30)[versions[index]] + 0.12 * math.sin(domain)
        return min(max(level + 0.05 * math.sin(index / 3 + 2 * domain), 0.02), 0.98)

    made = []
    for index, version in enumerate(versions):
        served = [d for d in range(len(domains)) if index >= points * 0.2 or d != 1]
        rates = {domains[d]: rate(index, d) for d in served}
        mean = sum(rates.values()) / len(rates)
        made.append(
            Point(
                time=begin + (index + 1) * INTERVAL,
                request=3 * index + 3,
                tokens_per_second=40 + 60 * mean + 3 * math.sin(index),
                draft_version=version,
                acceptance_rate=mean,
                mean_acceptance_length=1 + 2 * mean,
                speedup=0.9 + mean,
                mean_k=1.8,
                plain_share=0.12,
                domains=rates,
            )
        )
    return History(INTERVAL, made, swaps)


def adapter(version: int, status: str, **tags: str) -> dict[str, Any]:
    aliases = ["champion"] if status == "champion" else []
    return {
        "version": version,
        "status": status,
        "aliases": aliases,
        "run_id": f"{version:032x}",
        "created_at": START + 600 * version,
        "tags": {"parent": str(version - 1), "status": status, **tags},
    }


class FakeAdmin:
    """What the API answers; `calls` are the requests that changed something."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, Any]] = []
        self.history = History(INTERVAL, [], [])
        self.adapters: list[dict[str, Any]] = []
        self.pinned = False
        self.jobs: list[dict[str, Any]] = []
        self.errors: dict[str, ApiError] = {}
        """Of requests whose method and path begin with the key."""
        self.key: str | None = None
        self.status: dict[str, Any] = {
            "version": "0.1.0",
            "model": "smollm2",
            "target": "SmolLM2-135M-Instruct",
            "draft": "smollm2-draft",
            "draft_version": 0,
            "k": "auto",
            "k_override": None,
            "loop_enabled": True,
            "trainer": "running",
            "next_job": "waiting: 12 of 24 new requests",
            "num_running": 0,
            "num_waiting": 0,
            "num_slots": 8,
            "uptime_seconds": 754.0,
        }

    def begin_job(self, origin: str = "api", state: str = "running", **more: Any) -> dict[str, Any]:
        job = {
            "id": f"20261122-03{len(self.jobs):04d}-ab12cd",
            "origin": origin,
            "state": state,
            "started_at": START + 700 * len(self.jobs),
            "ended_at": None if state in ("running", "cancelling") else START + 700 * len(self.jobs) + 95.0,
            "version": None,
            "reason": None,
            "run_id": None,
            "progress": None,
            **more,
        }
        self.jobs.insert(0, job)
        return job

    def fill(self) -> None:
        """Two hours of a life: versions, jobs of every kind, and traffic."""
        self.history = traffic(120)
        self.status |= {"draft_version": 1, "num_running": 3, "num_waiting": 1}
        gain = {"gain": "0.2133", "gain_low": "0.1820", "gain_high": "0.2440"}
        self.adapters = [
            adapter(3, "rejected", reason="gain -0.012, at least -0.031, is not above +0.000", gain="-0.0120",
                    gain_low="-0.0310", gain_high="0.0080", parent="1"),
            adapter(2, "rolled_back", reason="served acceptance fell by 0.170 on 12 requests", gain="0.0210",
                    gain_low="0.0030", gain_high="0.0400"),
            adapter(1, "champion", reason="version 2 was rolled back: served acceptance fell by 0.170", **gain),
        ]  # fmt: skip
        self.begin_job(
            "loop", "accepted", version=1, reason="gain +0.213, at least +0.182, on 31 held-out requests"
        )
        self.begin_job("command", "died", reason="its process ended without a word; the log may say why")
        self.begin_job(
            "loop", "accepted", version=2, reason="gain +0.021, at least +0.003, on 33 held-out requests"
        )
        self.begin_job("api", "cancelled", reason="cancelled at step 40")
        self.begin_job("loop", "rejected", version=3, reason="gain -0.012, at least -0.031, is not above +0.000")
        self.begin_job("api", progress={"step": 120, "steps": 480, "loss": 0.5234, "seconds_left": 61.7})


def fake_app(admin: FakeAdmin) -> FastAPI:
    app = FastAPI()
    add_error_handlers(app)
    app.include_router(dashboard_router())
    app.include_router(history_router(lambda: admin.history))

    @app.middleware("http")
    async def guard(request: Request, call_next: Any) -> Any:
        if request.url.path.startswith("/admin"):
            if admin.key is not None and request.headers.get("authorization") != f"Bearer {admin.key}":
                return ApiError(401, "Incorrect API key provided.", code="invalid_api_key").response()
            asked = f"{request.method} {request.url.path}"
            for start, error in admin.errors.items():
                if asked.startswith(start):
                    return error.response()
            if request.method != "GET":
                body = await request.json() if await request.body() else None
                admin.calls.append((request.method, request.url.path, body))
        return await call_next(request)

    app.add_middleware(OwnPagesOnly, config=ServerConfig())
    app.add_middleware(AllowedHosts, config=ServerConfig())

    @app.get("/admin/status")
    async def status() -> dict[str, Any]:
        return admin.status

    @app.get("/admin/adapters")
    async def adapters() -> dict[str, Any]:
        champion = next((each["version"] for each in admin.adapters if each["status"] == "champion"), 0)
        return {"adapters": admin.adapters, "champion": champion, "pinned": admin.pinned}

    @app.post("/admin/adapters/{version:path}")
    async def move(version: str) -> dict[str, Any]:
        admin.pinned = version != "unpin"
        return {"champion": 1, "pinned": admin.pinned}

    @app.get("/admin/jobs")
    async def jobs() -> dict[str, Any]:
        return {"jobs": admin.jobs}

    @app.post("/admin/jobs", status_code=202)
    async def start() -> dict[str, Any]:
        return admin.begin_job()

    @app.get("/admin/jobs/{job_id}")
    async def job(job_id: str) -> dict[str, Any]:
        found = next(each for each in admin.jobs if each["id"] == job_id)
        tail = "".join(
            f"03:00:{i:02d} INFO hotdraft.training.online.job: step {5 * i}, loss {2 / (i + 1):.4f}\n"
            for i in range(30)
        )
        return {**found, "log_tail": tail}

    @app.delete("/admin/jobs/{job_id}", status_code=202)
    async def cancel(job_id: str) -> dict[str, Any]:
        found = next(each for each in admin.jobs if each["id"] == job_id)
        found["state"] = "cancelling"
        return found

    @app.put("/admin/loop")
    async def loop(request: Request) -> dict[str, Any]:
        admin.status["loop_enabled"] = (await request.json())["enabled"]
        return {"enabled": admin.status["loop_enabled"]}

    @app.get("/admin/k")
    async def k() -> dict[str, Any]:
        override, configured = admin.status["k_override"], admin.status["k"]
        return {"k": override or configured, "k_override": override, "configured_k": configured, "max_k": 4}

    @app.put("/admin/k")
    async def override_k(request: Request) -> dict[str, Any]:
        admin.status["k_override"] = (await request.json())["k"]
        return await k()

    return app
