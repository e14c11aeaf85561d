"""What `hotdraft doctor` says of stores and port, and that it waits for none of them for long."""

import resource
import shutil
import socket
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import fsspec
import pytest

from hotdraft.doctor.finding import Finding, ok, within
from hotdraft.doctor.server import examine_access, examine_files, examine_port
from hotdraft.doctor.stores import examine_mlflow, examine_replay
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.store.connection import open_client


def config_of(tmp_path: Path, **settings: object) -> HotdraftConfig:
    return HotdraftConfig(**{"target": "tiny", "run_dir": tmp_path / "run", **settings})


def only(findings: Iterator[Finding]) -> Finding:
    [found] = findings
    return found


def test_an_examination_that_does_not_come_back_is_left_behind():
    release = threading.Event()

    def silent() -> Iterator[Finding]:
        release.wait()
        yield ok("store", "at last")

    began = time.monotonic()
    [found] = within(0.2, "store", silent)
    assert time.monotonic() - began < 2
    assert (found.about, found.state) == ("store", "problem")
    assert "no answer in 0.2 s" in found.says
    release.set()


def test_what_this_user_may_not_look_at_is_a_problem():
    def examine():
        raise PermissionError(13, "Permission denied", "runs/of-another/mlflow.db")

    [found] = within(5, "MLflow store", examine)
    assert (found.state, found.says) == ("problem", "runs/of-another/mlflow.db may not be looked at")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_examination_that_breaks_down_is_a_problem():
    [found] = within(10, "store", lambda: [ok("store", str(1 // 0))])
    assert (found.state, found.says) == ("problem", "the examination broke down")


def test_the_size_of_the_replay_buffer(tmp_path):
    settings = config_of(tmp_path)
    assert "0 shards" in only(examine_replay(settings)).says
    assert not settings.run_dir.exists()
    folder = settings.run_dir / "replay"
    folder.mkdir(parents=True)
    (folder / "shard-1.parquet").write_bytes(bytes(1_500_000))
    (folder / ".shard-2.parquet.tmp").write_bytes(bytes(1_000_000))
    found = only(examine_replay(settings))
    assert (found.state, "1 shards, 1.5 of 2,000 MB" in found.says) == ("ok", True)


def test_a_remote_replay_buffer_is_tried_and_left_as_it_was(tmp_path):
    fs = fsspec.filesystem("memory")
    fs.pipe_file("/bucket/replay/shard-1.parquet", b"12345")
    found = only(examine_replay(config_of(tmp_path, replay={"url": "memory://bucket/replay"})))
    assert (found.state, "1 shards" in found.says) == ("ok", True)
    assert fs.ls("/bucket/replay", detail=False) == ["/bucket/replay/shard-1.parquet"]


def test_a_remote_replay_buffer_whose_client_raises_an_error_of_its_own_is_told_in_one_line(tmp_path, monkeypatch):
    class NoCredentialsError(Exception):
        pass

    def refuse(*_: object, **__: object) -> None:
        raise NoCredentialsError("Unable to locate credentials")

    monkeypatch.setattr(fsspec.get_filesystem_class("memory"), "exists", refuse)
    found = only(examine_replay(config_of(tmp_path, replay={"url": "memory://bucket/replay"})))
    assert (found.state, found.says) == ("problem", "memory://bucket/replay: Unable to locate credentials")


@pytest.mark.parametrize("url", ["nosuch://bucket", "{folder}/file", "{folder}/file/replay"])
def test_a_replay_buffer_that_cannot_be(tmp_path, url):
    (tmp_path / "file").touch()
    assert only(examine_replay(config_of(tmp_path, replay={"url": url.format(folder=tmp_path)}))).state == "problem"


@pytest.mark.slow
def test_an_mlflow_store_that_is_there_or_comes_to_be(tmp_path, empty_mlflow_db):
    settings = config_of(tmp_path)
    assert "created when it is first used" in only(examine_mlflow(settings)).says
    settings.run_dir.mkdir()
    shutil.copy(empty_mlflow_db, settings.run_dir / "mlflow.db")
    found = only(examine_mlflow(settings))
    assert (found.state, "0 adapter versions" in found.says) == ("ok", True)


def test_an_mlflow_store_that_is_gone(tmp_path):
    settings = config_of(tmp_path)
    (settings.run_dir / "mlartifacts" / "hotdraft-training").mkdir(parents=True)
    found = only(examine_mlflow(settings))
    assert (found.state, "mlflow.db is gone, to which" in found.says) == ("problem", True)
    (settings.run_dir / "mlflow.db").touch()
    found = only(examine_mlflow(settings))
    assert (found.state, "mlflow.db is empty, to which" in found.says) == ("problem", True)


def test_versions_that_others_made_are_told(tmp_path, empty_mlflow_db):
    settings = config_of(tmp_path)
    settings.run_dir.mkdir()
    shutil.copy(empty_mlflow_db, settings.run_dir / "mlflow.db")
    name, client = settings.tracking.registered_model, open_client(settings)
    client.create_registered_model(name)
    client.create_model_version(name, "/nowhere")
    client.create_model_version(name, "/nowhere", tags={"status": "retired"})
    found = only(examine_mlflow(settings))
    assert (found.state, "2 adapter versions, 1 of them not made by hotdraft" in found.says) == ("ok", True)


def test_an_mlflow_store_of_another_version(tmp_path, empty_mlflow_db):
    settings = config_of(tmp_path)
    settings.run_dir.mkdir()
    shutil.copy(empty_mlflow_db, settings.run_dir / "mlflow.db")
    with sqlite3.connect(settings.run_dir / "mlflow.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '451aebb31d03'")
    found = only(examine_mlflow(settings))
    assert found.state == "problem"
    assert "mlflow db upgrade sqlite:///" in (found.mend or "")


def test_a_file_that_is_no_store(tmp_path):
    settings = config_of(tmp_path)
    settings.run_dir.mkdir()
    (settings.run_dir / "mlflow.db").write_text("no database" * 100)
    assert only(examine_mlflow(settings)).state == "problem"


def test_an_mlflow_server_that_is_away_is_told_at_once_and_without_its_password(tmp_path):
    began = time.monotonic()
    found = only(examine_mlflow(config_of(tmp_path, tracking={"uri": f"http://me:pass@127.0.0.1:{closed_port()}"})))
    assert time.monotonic() - began < 5
    assert found.state == "problem"
    assert "pass@" not in f"{found.says} {found.mend}"


def test_an_mlflow_server_behind_a_proxy_that_nothing_here_speaks_with(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "socksio", None)
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    found = only(examine_mlflow(config_of(tmp_path, tracking={"uri": "http://mlflow.invalid:5000"})))
    assert (found.state, "socksio" in found.says) == ("problem", True)


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def tenant() -> Iterator[tuple[int, type[BaseHTTPRequestHandler]]]:
    """A port with a server whose answer is what its handler's `bodies` has for the path, or else its `body`."""

    class Handler(BaseHTTPRequestHandler):
        body = b""
        bodies: ClassVar[dict[str, bytes]] = {}

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(self.bodies.get(self.path, self.body))

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port, Handler
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_database_without_its_driver_wants_it_installed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pymysql", None)
    found = only(examine_mlflow(config_of(tmp_path, tracking={"uri": "mysql+pymysql://me:pass@db/mlflow"})))
    assert (found.state, "pymysql" in found.says) == ("problem", True)
    assert "install that driver" in (found.mend or "")


def test_an_mlflow_server_that_answers_without_its_database_is_not_to_be_started(tmp_path, tenant, monkeypatch):
    port, handler = tenant

    def answer(self: BaseHTTPRequestHandler) -> None:
        self.send_response(200 if self.path == "/health" else 503)
        self.end_headers()

    handler.do_GET = answer
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    found = only(examine_mlflow(config_of(tmp_path, tracking={"uri": f"http://127.0.0.1:{port}"})))
    assert found.state == "problem"
    assert found.says == f"http://127.0.0.1:{port}: too many 503 error responses"
    assert "whether its database is up" in (found.mend or "")


def test_vllm_with_the_loop_in_it_is_no_other_program(tmp_path, tenant):
    port, handler = tenant
    handler.body = b'{"version": "0.32.0"}'
    status = b'{"draft_version": 3, "unusable_adapters": {"5": "out of memory"}, "swap_waits": "vLLM sleeps"}'
    handler.bodies = {"/hotdraft/status": status}
    serves, waits, unusable = examine_port(config_of(tmp_path, server={"port": port}))
    assert (serves.state, "hotdraft over vLLM 0.32.0 serves" in serves.says) == ("ok", True)
    assert (waits.state, "swaps no version in: vLLM sleeps" in waits.says) == ("warning", True)
    assert "cannot serve version 5" in unusable.says
    handler.bodies = {}
    assert only(examine_port(config_of(tmp_path, server={"port": port}))).state == "problem", "vLLM alone"


@pytest.mark.parametrize(
    ("body", "state"),
    [(b'{"version": "0.1.0", "draft_version": 3}', "ok"), (b"<html>", "problem"), (b"[1]", "problem")],
)
def test_a_port_in_use(tmp_path, tenant, body, state):
    port, handler = tenant
    handler.body = body
    for host in ("127.0.0.1", "0.0.0.0"):
        found = only(examine_port(config_of(tmp_path, server={"host": host, "port": port})))
        assert found.state == state
        assert ("hotdraft 0.1.0 serves" in found.says and "draft version 3" in found.says) == (state == "ok")


def test_a_server_here_is_known_past_a_proxy_that_the_environment_names(tmp_path, tenant, monkeypatch):
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{closed_port()}")
    port, handler = tenant
    handler.body = b'{"version": "0.1.0", "draft_version": 3}'
    assert only(examine_port(config_of(tmp_path, server={"port": port}))).state == "ok"


def test_a_server_that_cannot_serve_a_version_is_named(tmp_path, tenant):
    port, handler = tenant
    handler.body = b'{"version": "1", "draft_version": 3, "unusable_adapters": {"5": "out of memory"}}'
    serves, unusable = examine_port(config_of(tmp_path, server={"port": port}))
    assert (serves.state, unusable.state) == ("ok", "warning")
    assert "cannot serve version 5, and serves on without it: out of memory" in unusable.says
    handler.body = b'{"version": "1", "draft_version": 3, "unusable_adapters": [5]}'
    assert only(examine_port(config_of(tmp_path, server={"port": port}))).state == "ok"


def test_what_a_server_serves_on_in_spite_of_is_told(tmp_path, tenant):
    port, handler = tenant
    handler.body = b'{"version": "1", "draft_version": 3}'
    handler.bodies = {
        "/health": b'{"status": "ok", "adapter_registry": "no such file", "recording": "OSError: read-only", '
        b'"run_dir": "run is another folder"}'
    }
    serves, *amiss = examine_port(config_of(tmp_path, server={"port": port}))
    assert serves.state == "ok"
    assert [(one.about, one.state, one.says.rpartition(": ")[2]) for one in amiss] == [
        ("adapters", "warning", "no such file"),
        ("recorder", "warning", "read-only"),
        ("run_dir", "warning", "run is another folder"),
    ]


def test_a_port_that_is_free_and_addresses_of_other_machines(tmp_path):
    assert only(examine_port(config_of(tmp_path, server={"port": closed_port()}))).state == "ok"
    assert only(examine_port(config_of(tmp_path, server={"port": 0}))).state == "ok"
    for host in ("192.0.2.1", "no.such.host.invalid"):
        assert only(examine_port(config_of(tmp_path, server={"host": host}))).state == "problem"


def test_who_may_ask(tmp_path):
    def examined(**server: object) -> tuple[Finding, Finding]:
        api, admin = examine_access(config_of(tmp_path, server=server))
        return api, admin

    assert [found.state for found in examined()] == ["ok", "ok"]
    assert [found.state for found in examined(host="0.0.0.0")] == ["warning", "problem"]
    assert [found.state for found in examined(host="0.0.0.0", open_admin=True)] == ["warning", "warning"]
    assert [found.state for found in examined(host="0.0.0.0", api_keys=["secret"])] == ["ok", "problem"]
    assert [found.state for found in examined(host="::", api_keys=["a"], admin_keys=["b"])] == ["ok", "ok"]
    missing, _ = examined(api_key_file=tmp_path / "keys")
    assert (missing.state, "cannot be read" in missing.says) == ("problem", True)
    (tmp_path / "keys").write_text("# ours\nsecret-one\nsecret-two\n")
    for found in examined(api_key_file=tmp_path / "keys", admin_key_file=tmp_path / "keys"):
        assert (found.state, found.says[:2]) == ("ok", "2,")
        assert "secret" not in found.says


def test_a_limit_on_open_files_that_would_keep_serve_from_serving_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: None)
    config = config_of(tmp_path)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (4096, 4096))
    assert only(examine_files(config)).state == "ok"
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (64, 64))
    found = only(examine_files(config))
    assert found.state == "problem"
    assert "this process may open 64 files" in found.says
