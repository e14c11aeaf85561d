"""A server of our own, for as long as it is needed."""

import sys
from pathlib import Path

import pytest

from hotdraft.pipeline.processes.local_server import ServerError, local_server

SERVER = """
import sys, signal
from http.server import *
signal.signal(signal.SIGTERM, lambda *_: (print("stopped politely", flush=True), sys.exit()))
class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[-1])), Health).serve_forever()
"""


def test_own_server_is_started_and_stopped_by_sigterm(tmp_path):
    log = tmp_path / "server.log"
    with local_server(Path("c.yaml"), log, command=[sys.executable, "-c", SERVER]) as url:
        assert url.startswith("http://127.0.0.1:")
    assert "stopped politely" in log.read_text()


def test_it_is_asked_past_a_proxy_that_the_environment_names(tmp_path, monkeypatch):
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setattr("hotdraft.pipeline.processes.local_server.START_SECONDS", 60.0)
    with local_server(Path("c.yaml"), tmp_path / "server.log", command=[sys.executable, "-c", SERVER]):
        pass


def test_a_server_of_our_own_is_reached_by_this_machine_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("HOTDRAFT_SERVER__HOST", "0.0.0.0")
    print_host = [sys.executable, "-c", "import os; exit(os.environ['HOTDRAFT_SERVER__HOST'])"]
    with (
        pytest.raises(ServerError, match=r"127\.0\.0\.1$"),
        local_server(Path("c.yaml"), tmp_path / "server.log", command=print_host),
    ):
        pass


def test_a_server_that_dies_tells_its_last_words(tmp_path):
    program = "import os; print('no model', os.environ['HOTDRAFT_ENGINE__K']); raise SystemExit(3)"
    command = [sys.executable, "-c", program]
    with (
        pytest.raises(ServerError, match="ended with 3 while starting:\nno model 2"),
        local_server(Path("c.yaml"), tmp_path / "server.log", {"engine": {"k": 2}}, command=command),
    ):
        pass
