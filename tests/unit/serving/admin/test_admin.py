"""The operator's routes, over a real engine, registry and run directory."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from mlflow.exceptions import MlflowException

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.loop.controls import ControlFile, Controls
from hotdraft.pipeline.loop.job_progress import JobProgress
from hotdraft.pipeline.loop.job_record import Burst, Job, JobWork
from hotdraft.pipeline.loop.jobs import JobRecords
from hotdraft.pipeline.loop.next_job import NextJobFile
from hotdraft.pipeline.processes.trainer import TrainerElsewhere
from hotdraft.pipeline.store.connection import experiment_id, open_client
from hotdraft.pipeline.store.lineage import Lineage
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.pipeline.store.served import DomainCounts, Served
from hotdraft.pipeline.system.run_lock import run_lock
from hotdraft.serving.engine.engine import Engine
from hotdraft.serving.http.admin.routes import admin_router
from hotdraft.serving.http.errors import add_error_handlers
from hotdraft.serving.updates.k_override import KOverride
from tests.unit.serving import conftest

engine = conftest.engine  # the real one, not this folder's


@pytest.fixture
def registry(config: HotdraftConfig, empty_mlflow_db: Path, tmp_path: Path) -> AdapterRegistry:
    """Two versions, none of which serves."""
    shutil.copy(empty_mlflow_db, config.run_dir)
    client = open_client(config)
    run = client.create_run(experiment_id(client, config, "training")).info.run_id
    client.log_metric(run, "gain", 0.25)
    client.log_metric(run, "final_loss", float("nan"))
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "weights").write_text("x")
    registry = AdapterRegistry(config)
    for _ in range(2):
        registry.publish(tmp_path / "adapter", run_id=run, tags={"gain": "0.25"})
    return registry


@pytest.fixture
def records(config: HotdraftConfig) -> JobRecords:
    return JobRecords(config.run_dir)


@pytest.fixture
def make_client(engine: Engine, config: HotdraftConfig, records: JobRecords) -> Callable[..., TestClient]:
    held = []  # a job that nobody holds on to has died

    def start_job() -> Job:
        held.append(records.begin("api"))
        return held[-1].job

    def make(registry: AdapterRegistry, config: HotdraftConfig = config, trainer: object = None) -> TestClient:
        app = FastAPI(version="1.2.3")
        add_error_handlers(app)
        controls = ControlFile(config.run_dir)
        app.include_router(
            admin_router(
                engine,
                config,
                registry=registry,
                records=records,
                start_job=start_job,
                controls=controls,
                k_override=KOverride(engine, controls),
                trainer=trainer or TrainerElsewhere(config.run_dir),
            )
        )
        return TestClient(app, raise_server_exceptions=False)

    return make


@pytest.fixture
def client(make_client: Callable[..., TestClient], registry: AdapterRegistry) -> Iterator[TestClient]:
    with make_client(registry) as client:
        yield client


def error(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["message"]


def test_a_version_tells_what_it_did_in_service(client, registry, config):
    assert client.get("/admin/adapters/1").json()["served"] is None
    counts = Served(4, 40, 32, 20, 1.0, 2.0, {"sql": DomainCounts(4, 32, 20)})
    store = open_client(config)
    run = store.create_run("0").info.run_id
    Lineage(store, config).record_served(1, run, counts)
    served = client.get("/admin/adapters/1").json()["served"]
    assert (served["requests"], served["accepted"], served["by_domain"]["sql"]["examined"]) == (4, 20, 32)
    assert client.get("/admin/adapters").json()["adapters"][-1]["served"] == served


def test_status(client, make_client, registry, config):
    status = client.get("/admin/status").json()
    assert status.pop("uptime_seconds") > 0
    assert status == {
        "version": "1.2.3",
        "model": config.served_model_name,
        "target": config.target,
        "draft": config.draft,
        "draft_version": 0,
        "k": 2,
        "k_override": None,
        "loop_enabled": True,
        "trainer": "absent",
        "next_job": None,
        "num_running": 0,
        "num_waiting": 0,
        "num_slots": 3,
    }
    beside = make_client(registry, trainer=SimpleNamespace(state="waiting"))
    assert beside.get("/admin/status").json()["trainer"] == "waiting"


def test_a_trainer_that_is_a_service_of_its_own_is_seen(client, config):
    NextJobFile(config.run_dir).tell("waiting: 3 of 8 new requests")
    with run_lock(config.run_dir, "trainer"):
        status = client.get("/admin/status").json()
        assert (status["trainer"], status["next_job"]) == ("running", "waiting: 3 of 8 new requests")
        assert client.get("/admin/loop").json()["trainer"] == "running"
    status = client.get("/admin/status").json()
    assert (status["trainer"], status["next_job"]) == ("absent", None)


def test_versions_are_listed_promoted_and_rolled_back(client, registry):
    listed = client.get("/admin/adapters").json()
    assert listed["champion"] == 0
    assert [found["version"] for found in listed["adapters"]] == [2, 1]
    assert client.post("/admin/adapters/1/promote").json() == {"champion": 1, "pinned": True}
    assert registry.version(1).tags["by_hand"] == "promoted"
    promoted = client.post("/admin/adapters/2/promote", json={"reason": "better"})
    assert promoted.json() == {"champion": 2, "pinned": True}
    assert registry.version(2).tags["by_hand"] == "promoted: better"
    assert client.post("/admin/adapters/rollback", json={"reason": "worse"}).json() == {
        "champion": 1,
        "pinned": True,
    }
    assert (registry.champion(), registry.version(2).tags["by_hand"]) == (1, "rolled back: worse")
    shown = client.get("/admin/adapters/1").json()
    assert shown["status"] == "champion"
    assert shown["training_metrics"] == {"gain": 0.25}, "a loss that is no number is no JSON"
    assert shown.keys() - {"training_metrics"} == client.get("/admin/adapters").json()["adapters"][0].keys()
    assert client.post("/admin/adapters/rollback").json() == {"champion": 0, "pinned": True}
    assert error(client.post("/admin/adapters/rollback")) == (
        409,
        "no champion to roll back: the draft serves without an adapter",
    )
    for response in (client.get("/admin/adapters/9"), client.post("/admin/adapters/9/promote")):
        status, message = error(response)
        assert status == 404
        assert "no version 9" in message


def test_a_decision_over_http_is_pinned_until_it_is_unpinned(client, registry):
    def pins():
        listed = client.get("/admin/adapters").json()
        return listed["pinned"], [found["version"] for found in listed["adapters"] if found["pinned"]]

    assert pins() == (False, [])
    client.post("/admin/adapters/1/promote")
    client.post("/admin/adapters/2/promote")
    assert pins() == (True, [2])
    client.post("/admin/adapters/rollback")
    assert pins() == (True, [1])
    assert client.get("/admin/adapters/1").json()["pinned"]
    assert client.post("/admin/adapters/unpin").json() == {"champion": 1, "pinned": False}
    assert pins() == (False, [])
    assert registry.rollback(reason="fell") == 0


def test_a_store_that_is_away_is_said(make_client, registry, monkeypatch):
    def away(*_):
        raise MlflowException("no route\nto http://me:secret@the-store")

    client = make_client(registry)
    monkeypatch.setattr(registry, "versions", away)
    monkeypatch.setattr(registry, "promote", lambda *_, **__: away())
    for response in (client.get("/admin/adapters"), client.post("/admin/adapters/1/promote")):
        status, message = error(response)
        assert status == 503
        assert "the adapter registry cannot be used: no route to http://me:**********@the-store" in message
    assert client.get("/admin/status").status_code == 200


def test_jobs_are_started_watched_and_cancelled(client, records):
    assert client.get("/admin/jobs").json() == {"jobs": []}
    started = client.post("/admin/jobs")
    assert started.status_code == 202
    job = started.json()
    assert (job["origin"], job["state"], job["ended_at"]) == ("api", "running", None)
    assert job["progress"] is None
    records.log_path(job["id"]).write_text("one\ntwo\n")
    assert client.get(f"/admin/jobs/{job['id']}").json() == {**job, "log_tail": "one\ntwo"}
    status, message = error(client.post("/admin/jobs"))
    assert status == 409
    assert job["id"] in message
    cancelled = client.delete(f"/admin/jobs/{job['id']}")
    assert (cancelled.status_code, cancelled.json()) == (202, {**job, "state": "cancelling"})
    assert client.get("/admin/jobs").json() == {"jobs": [cancelled.json()]}


def test_a_running_job_tells_its_progress(client, records):
    with records.begin("loop") as job:
        job.tell(JobProgress(120, 480, 0.52, 61.0))
        progress = {"step": 120, "steps": 480, "loss": 0.52, "seconds_left": 61.0}
        assert client.get("/admin/jobs").json()["jobs"][0]["progress"] == progress
        assert client.get(f"/admin/jobs/{job.id}").json()["progress"] == progress
        job.end("rejected", "worse")


def test_jobs_that_ended_or_never_were(client, records):
    with records.begin("loop") as job:
        job.note(JobWork(job.id, "recipe", last_request="r9", parent_version=0, burst=Burst(7, 12)))
        job.end("accepted", "better", version=1, metrics={"gain": 0.1})
    shown = client.get(f"/admin/jobs/{job.id}").json()
    assert client.get("/admin/jobs").json() == {"jobs": [{k: v for k, v in shown.items() if k != "log_tail"}]}
    assert (shown["work"]["last_request"], shown["work"]["burst"]) == ("r9", {"steps": 7, "requests": 12})
    assert (shown["state"], shown["version"], shown["metrics"]) == ("accepted", 1, {"gain": 0.1})
    assert error(client.delete(f"/admin/jobs/{job.id}"))[0] == 409
    for wrong in ("nothing", "%00", "..", "ü"):
        assert error(client.get(f"/admin/jobs/{wrong}"))[0] == 404
        assert error(client.delete(f"/admin/jobs/{wrong}"))[0] == 404


def test_the_loop_is_switched(client, config):
    assert client.get("/admin/loop").json() == {"enabled": True, "trainer": "absent"}
    assert client.put("/admin/loop", json={"enabled": False}).json() == {"enabled": False, "trainer": "absent"}
    assert not ControlFile(config.run_dir).read().loop_enabled
    assert not client.get("/admin/status").json()["loop_enabled"]


def test_k_is_overridden_at_once_and_given_back(client, engine, config):
    assert client.get("/admin/k").json() == {"k": 2, "k_override": None, "configured_k": 2, "max_k": 2}
    assert client.put("/admin/k", json={"k": 1.0}).json()["k"] == engine.k == 1
    assert ControlFile(config.run_dir).read() == Controls(k=1)
    assert error(client.put("/admin/k", json={"k": 3})) == (
        409,
        "k cannot be 3: the server's configuration allows 2 at most",
    )
    assert client.get("/admin/status").json()["k_override"] == 1
    assert client.put("/admin/k", json={"k": "auto"}).json()["k"] == engine.k == "auto"
    assert client.put("/admin/k", json={"k": None}).json()["k_override"] is None
    assert engine.k == 2


def test_a_server_without_a_draft_says_so(make_client, registry, config):
    alone = make_client(registry, config.model_copy(update={"draft": None}))
    for path in ("jobs", "adapters/1/promote", "adapters/rollback"):
        status, message = error(alone.post(f"/admin/{path}"))
        assert status == 409
        assert "no draft" in message


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "loop", None),
        ("PUT", "loop", {}),
        ("PUT", "loop", {"enabled": "no"}),
        ("PUT", "loop", {"enabled": 0}),
        ("PUT", "loop", {"enabled": True, "also": 1}),
        ("PUT", "k", {}),
        ("PUT", "k", {"k": 17}),
        ("PUT", "k", {"k": -1}),
        ("PUT", "k", {"k": 2.5}),
        ("PUT", "k", {"k": "2"}),
        ("PUT", "k", {"k": True}),
        ("PUT", "k", {"k": "Auto"}),
        ("GET", "adapters/0", None),
        ("GET", f"adapters/{2**31}", None),
        ("POST", "adapters/0/promote", None),
        ("POST", "adapters/1/promote", {"reason": 1}),
        ("POST", "adapters/1/promote", {"reason": "x" * 1001}),
        ("POST", "adapters/1/promote", {"reason": "a\0b"}),
        ("POST", "adapters/1/promote", {"why": "x"}),
        ("POST", "adapters/rollback", []),
    ],
)
def test_what_is_not_valid_is_refused(client, config, registry, method, path, body):
    status, message = error(client.request(method, f"/admin/{path}", json=body))
    assert status == 400
    assert message
    assert ControlFile(config.run_dir).read() == Controls()
    assert registry.champion() == 0


def test_more_than_can_be_set_is_told_where_vllm_was_started_with_it(client, monkeypatch):
    monkeypatch.setattr(Engine, "k", property(lambda self: 20))
    for path in ("k", "status"):
        assert client.get(f"/admin/{path}").json()["k"] == 20


def test_a_k_that_is_none_is_explained(client):
    for k in (17, "2", True):
        assert error(client.put("/admin/k", json={"k": k})) == (
            400,
            f"k must be a whole number from 0 to 16, or auto, not {k!r}",
        )


def test_a_method_that_is_not_allowed_hears_of_those_that_are(client):
    for method, path, allowed in (("PATCH", "jobs", "GET, POST"), ("GET", "adapters/rollback", "POST")):
        refused = client.request(method, f"/admin/{path}")
        assert error(refused)[0] == 405
        assert refused.headers["Allow"] == allowed


@pytest.mark.parametrize("version", ["x", "1.0", "1_0", "-1", "9" * 5000])
def test_what_is_no_version_is_not_found(client, version):
    assert error(client.get(f"/admin/adapters/{version}"))[0] == 404
    assert error(client.post(f"/admin/adapters/{version}/promote"))[0] == 404


def test_the_schema_names_the_errors(client):
    paths = client.get("/openapi.json").json()["paths"]
    assert {(path, method) for path, methods in paths.items() for method in methods} == {
        ("/admin/status", "get"),
        ("/admin/adapters", "get"),
        ("/admin/adapters/{version}", "get"),
        ("/admin/adapters/{version}/promote", "post"),
        ("/admin/adapters/rollback", "post"),
        ("/admin/adapters/unpin", "post"),
        ("/admin/jobs", "get"),
        ("/admin/jobs", "post"),
        ("/admin/jobs/{job_id}", "get"),
        ("/admin/jobs/{job_id}", "delete"),
        ("/admin/loop", "get"),
        ("/admin/loop", "put"),
        ("/admin/k", "get"),
        ("/admin/k", "put"),
    }
    assert paths["/admin/jobs"]["post"]["responses"].keys() == {"202", "401", "403", "409", "413", "415", "503"}
    promote = paths["/admin/adapters/{version}/promote"]["post"]
    assert promote["responses"].keys() >= {"200", "400", "404", "409", "503"}
    assert not promote["requestBody"].get("required", False)
