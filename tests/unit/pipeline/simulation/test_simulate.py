import json
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import matplotlib.image
import pytest
import typer
from typer.testing import CliRunner

from hotdraft.commands.simulate import demo, simulate
from hotdraft.pipeline.config.section import ConfigError
from hotdraft.pipeline.loop.job_progress import JobProgress
from hotdraft.pipeline.loop.jobs import JobRecords
from hotdraft.pipeline.processes.local_server import ServerError, local_server
from hotdraft.pipeline.simulation.progress import latest_job
from hotdraft.pipeline.system.log_tail import log_tail
from hotdraft.pipeline.traffic.prompts import ask, write_traffic

KEYS = {
    "requests", "failed_requests", "swaps", "adapters_rejected", "k", "speedup", "tokens", "tokens_per_second",
    "acceptance_rate_first", "acceptance_rate_last", "by_domain", "windows", "wall_seconds", "interrupted",
}  # fmt: skip


class FakeHotdraft(BaseHTTPRequestHandler):
    """Answers with k = 4, 5 rounds and 10 tokens a request; accepts 4 of 20 before its swap, then 14."""

    swap_after = 10
    bodies: ClassVar[list[dict]]

    def do_GET(self):
        if self.path == "/v1/models":
            self.answer({"data": [{"id": "fake"}]})
        elif self.path == "/metrics":
            swapped = len(self.bodies) > self.swap_after
            self.answer(
                "# TYPE hotdraft_swaps counter\n"
                f'hotdraft_swaps_total{{model_name="fake",reason="promotion"}} {3 + swapped}\n'
                'hotdraft_swaps_total{model_name="fake",reason="rollback"} 1\n'
                "# TYPE hotdraft_adapters_rejected counter\n"
                f'hotdraft_adapters_rejected_total{{model_name="fake"}} {2 * swapped}\n'
            )
        else:
            self.answer({"status": "ok"})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.bodies.append(body)
        body["key"] = self.headers["Authorization"]
        if body["messages"][-1]["content"] == "wait":
            time.sleep(60)
        if body["messages"][-1]["content"] == "page":
            return self.answer("<html>a proxy's</html>")
        if body["messages"][-1]["content"] == "null":
            return self.answer({"usage": {"completion_tokens": None}, "hotdraft": {"rounds": 1}})
        if body["messages"][-1]["content"] == "fail":
            return self.answer({"error": {"message": "scripted failure"}}, status=500)
        swapped = len(self.bodies) > self.swap_after
        counts = {"rounds": 5, "drafted_tokens": 20, "accepted_tokens": 14 if swapped else 4, "accepted_guesses": 0}
        return self.answer(
            {"usage": {"completion_tokens": 10}, "hotdraft": {"draft_version": int(swapped), **counts}}
        )

    def answer(self, content, status=200):
        data = (content if isinstance(content, str) else json.dumps(content)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


@contextmanager
def fake_server():
    class Handler(FakeHotdraft):
        bodies: ClassVar[list[dict]] = []

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", Handler.bodies
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(f"target: fake\nrun_dir: {tmp_path / 'run'}\n")
    return path


def cli(command, *arguments):
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_report_counts_what_the_server_said(tmp_path, config):
    write_traffic(tmp_path / "one.jsonl", [ask("sums", f"sum {n}") for n in range(12)])
    write_traffic(tmp_path / "two.jsonl", [ask("sql", f"query {n}") for n in range(20)])
    with fake_server() as (url, bodies):
        result = cli(
            simulate, "--traffic", tmp_path / "one.jsonl", "--traffic", tmp_path / "two.jsonl", "--limit", 10,
            "--config", config, "--out", tmp_path / "out", "--url", f"{url}/v1/", "--concurrency", 1,
            "--max-tokens", 33,
        )  # fmt: skip
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert report.keys() == KEYS
    assert {key: report[key] for key in ("requests", "failed_requests", "swaps", "adapters_rejected", "k")} == {
        "requests": 20,
        "failed_requests": 0,
        "swaps": 1,
        "adapters_rejected": 2,
        "k": 4,
    }
    assert report["tokens"] == 200
    assert report["tokens_per_second"] == pytest.approx(200 / report["wall_seconds"])
    assert (report["acceptance_rate_first"], report["acceptance_rate_last"]) == (14 / 20, 14 / 20)
    assert report["by_domain"]["sums"] == {
        "requests": 10,
        "acceptance_rate": 0.2,
        "acceptance_rate_first": 0.2,
        "acceptance_rate_last": 0.2,
        "mean_acceptance_length": 1.8,
    }
    assert report["windows"] == [
        {
            "request": last,
            "domain": domain,
            "acceptance_rate": rate,
            "mean_acceptance_length": length,
            "draft_version": v,
        }
        for last, domain, rate, length, v in ((10, "sums", 0.2, 1.8, 0), (20, "sql", 0.7, 3.8, 1))
    ]
    picture = matplotlib.image.imread(tmp_path / "out/acceptance.png")
    assert picture.shape[:2] == (690, 1350)
    assert picture[..., :3].std() > 0.05, "the picture is blank"
    assert [body["messages"][0]["content"] for body in bodies[9:11]] == ["sum 9", "query 0"]
    assert bodies[10] | {"messages": None} == {
        "model": "fake",
        "messages": None,
        "key": None,
        "max_tokens": 33,
        "temperature": 0.0,
        "metadata": {"domain": "sql"},
    }
    assert "+0.000" in result.output
    assert "curves" not in result.output, "nothing has served in this run folder"


def test_failures_are_counted_and_shown(tmp_path, config):
    asked = [ask("a", "fail" if n % 3 == 0 else f"{n}") for n in range(15)]
    write_traffic(tmp_path / "t.jsonl", asked)
    with fake_server() as (url, _):
        result = cli(
            simulate, "--traffic", tmp_path / "t.jsonl", "--config", config, "--out", tmp_path, "--url", url
        )
    report = json.loads((tmp_path / "report.json").read_text())
    assert result.exit_code == 1
    assert (report["requests"], report["failed_requests"], report["tokens"]) == (15, 5, 100)
    assert "HTTP 500" in result.output
    assert "scripted failure" in result.output
    assert "and 2 more" in result.output


def test_a_domain_of_which_nothing_was_served_has_no_windows(tmp_path, config):
    asked = [ask("a", "fail"), *(ask("b", f"{n}") for n in range(5))]
    write_traffic(tmp_path / "t.jsonl", asked)
    with fake_server() as (url, _):
        cli(simulate, "--traffic", tmp_path / "t.jsonl", "--config", config, "--out", tmp_path, "--url", url)
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["failed_requests"], [window["domain"] for window in report["windows"]]) == (1, ["b"])


def test_an_answer_that_is_none_costs_no_other_and_names_of_domains_are_only_names(tmp_path, config):
    write_traffic(tmp_path / "t.jsonl", [ask("[/a]$x^", "one"), ask("[/a]$x^", "page"), ask("[red]", "null")])
    with fake_server() as (url, _):
        result = cli(
            simulate, "--traffic", tmp_path / "t.jsonl", "-c", config, "--url", url, "--out", tmp_path / "o"
        )
    assert result.exit_code == 1
    assert "no chat completion" in result.output
    assert "[/a]$x^" in result.output
    report = json.loads((tmp_path / "o" / "report.json").read_text())
    assert (report["requests"], report["failed_requests"]) == (3, 2)


def test_the_servers_key_is_that_of_the_configuration_or_the_one_given(tmp_path, config, monkeypatch):
    config.write_text(config.read_text() + "server:\n  api_keys: [mine]\n")
    write_traffic(tmp_path / "t.jsonl", [ask("a", "one")])
    with fake_server() as (url, bodies):
        told = ["--traffic", tmp_path / "t.jsonl", "-c", config, "--url", url, "--out", tmp_path / "o"]
        assert cli(simulate, *told).exit_code == 0
        assert cli(simulate, *told, "--api-key", "other").exit_code == 0
        monkeypatch.setenv("HOTDRAFT_API_KEY", "secret")
        assert cli(simulate, *told).exit_code == 0
    assert [body["key"] for body in bodies] == ["Bearer mine", "Bearer other", "Bearer secret"]


def test_ctrl_c_ends_it_with_a_report_of_what_was_played(tmp_path, config):
    write_traffic(tmp_path / "t.jsonl", [ask("a", "one"), ask("a", "wait")])
    with fake_server() as (url, bodies):
        command = [sys.executable, "-m", "hotdraft", "simulate", "--traffic", tmp_path / "t.jsonl", "-c", config]
        command += ["--url", url, "--out", tmp_path / "o"]
        heard = partial(
            signal.signal, signal.SIGINT, signal.SIG_DFL
        )  # where a shell runs tests behind it, it is not
        process = subprocess.Popen([*map(str, command)], preexec_fn=heard)
        while len(bodies) < 2:
            assert process.poll() is None
            time.sleep(0.1)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    report = json.loads((tmp_path / "o" / "report.json").read_text())
    assert (report["requests"], report["failed_requests"], report["interrupted"]) == (1, 0, True)


def test_a_folder_that_is_no_demos_is_left_where_it_is(tmp_path, config):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    result = cli(demo, "--out", tmp_path / "mine", "--config", config)
    assert result.exit_code == 2
    assert "is not empty: name a new folder" in " ".join(result.output.split())
    assert (tmp_path / "mine" / "thesis.tex").exists()


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://127.0.0.1:none"])
def test_a_server_that_is_not_there_is_named_and_leaves_nothing(tmp_path, config, url):
    write_traffic(tmp_path / "t.jsonl", [ask("a", "x")])
    out = tmp_path / "out"
    result = cli(simulate, "--traffic", tmp_path / "t.jsonl", "--config", config, "--out", out, "--url", url)
    assert result.exit_code == 2
    assert result.output.startswith(f"error: {url} does not answer as hotdraft does: ")
    assert not list(out.iterdir())


@pytest.mark.parametrize(
    ("path", "content", "fault"),
    [
        ("/v1/models", "<html>welcome</html>", "/v1/models names no model"),
        ("/v1/models", '{"data": []}', "/v1/models names no model"),
        ("/v1/models", '{"object": "error"}', "/v1/models names no model"),
        ("/v1/models", "[1]", "/v1/models names no model"),
        ("/metrics", "<html>welcome</html>", "/metrics is not in Prometheus's format"),
    ],
)
def test_another_program_that_answers_is_named_in_one_line(tmp_path, config, monkeypatch, path, content, fault):
    def elsewise(handler):
        handler.answer(content) if handler.path == path else known(handler)

    known = FakeHotdraft.do_GET
    monkeypatch.setattr(FakeHotdraft, "do_GET", elsewise)
    write_traffic(tmp_path / "t.jsonl", [ask("a", "x")])
    with fake_server() as (url, _):
        result = cli(
            simulate, "--traffic", tmp_path / "t.jsonl", "-c", config, "--url", url, "--out", tmp_path / "o"
        )
    assert result.exit_code == 2
    assert result.output.strip() == f"error: {url} does not answer as hotdraft does: {fault}"


@pytest.mark.parametrize("name", ["report.json", "acceptance.png"])
def test_what_could_not_be_written_in_the_end_is_not_played(tmp_path, config, name):
    (tmp_path / "out" / name).mkdir(parents=True)
    write_traffic(tmp_path / "t.jsonl", [ask("a", "x")])
    with fake_server() as (url, bodies):
        result = cli(
            simulate, "--traffic", tmp_path / "t.jsonl", "-c", config, "--url", url, "--out", tmp_path / "out"
        )
    assert result.exit_code == 2
    assert "cannot be written" in result.output
    assert not bodies
    assert [path.name for path in (tmp_path / "out").iterdir()] == [name]


def test_where_nothing_was_answered_there_is_no_picture(tmp_path, config):
    (tmp_path / "acceptance.png").touch()
    write_traffic(tmp_path / "t.jsonl", [ask("a", "fail")])
    with fake_server() as (url, _):
        result = cli(
            simulate, "--traffic", tmp_path / "t.jsonl", "--config", config, "--out", tmp_path, "--url", url
        )
    assert result.exit_code == 1
    assert (tmp_path / "report.json").exists()
    assert not (tmp_path / "acceptance.png").exists()


def test_demo_plays_two_domains_and_keeps_the_earlier_run(tmp_path, config, monkeypatch):
    out = tmp_path / "demo"
    out.mkdir()
    for name in ("mlflow.db", "traffic.jsonl"):
        (out / name).touch()
    with fake_server() as (url, bodies):

        @contextmanager
        def at_fake(given_config, log, overrides):
            assert (given_config, log, overrides) == (config, out / "server.log", {"run_dir": out})
            yield url

        monkeypatch.setattr("hotdraft.pipeline.processes.local_server.local_server", at_fake)
        result = cli(demo, "--out", out, "--config", config, "--arithmetic-requests", 10, "--sql-requests", 30)
    assert result.exit_code == 0, result.output
    assert [body["metadata"]["domain"] for body in bodies].count("text_to_sql") == 30
    assert len((out / "traffic.jsonl").read_text().splitlines()) == 40
    assert not (out / "mlflow.db").exists()
    assert len(list(tmp_path.glob("demo-*/mlflow.db"))) == 1
    assert json.loads((out / "report.json").read_text())["swaps"] == 1


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--config", "absent.yaml"], ConfigError),
        (["--engine", "vlm"], ConfigError),
        (["--engin", "vllm"], SystemExit),
        (["--sql-requests", "0"], SystemExit),
    ],
)
def test_a_mistyped_demo_moves_nothing(tmp_path, config, words, fault):
    out = tmp_path / "demo"
    out.mkdir()
    (out / "traffic.jsonl").touch()
    result = cli(demo, "--config", config, "--out", out, *words)
    assert isinstance(result.exception, fault), result.output
    assert not list(tmp_path.glob("demo-*"))
    assert [path.name for path in out.iterdir()] == ["traffic.jsonl"]


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


def test_this_machine_is_asked_past_a_proxy_that_the_environment_names(tmp_path, config, monkeypatch):
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setattr("hotdraft.pipeline.processes.local_server.START_SECONDS", 60.0)
    with local_server(Path("c.yaml"), tmp_path / "server.log", command=[sys.executable, "-c", SERVER]):
        pass
    write_traffic(tmp_path / "t.jsonl", [ask("a", "x")])
    with fake_server() as (url, bodies):
        for name in (url, url.replace("127.0.0.1", "localhost")):
            result = cli(
                simulate, "--traffic", tmp_path / "t.jsonl", "-c", config, "--url", name, "--out", tmp_path / "o"
            )
            assert result.exit_code == 0, result.output
    assert len(bodies) == 2


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


def test_log_tail_shows_what_a_terminal_would(tmp_path):
    (tmp_path / "log").write_bytes(b"one\n\x1b[32mtwo\x1b[0m\n\n10%\r20%\r\x1b[A30%\n")
    assert log_tail(tmp_path / "log", 2) == "two\n30%"
    assert log_tail(tmp_path / "absent") == ""


def test_the_newest_job_is_shown_as_its_record_has_it(tmp_path):
    records = JobRecords(tmp_path)
    assert latest_job(records) == ""
    with records.begin("loop") as job:
        assert latest_job(records) == "a job is running"
        job.tell(JobProgress(3, 60, 0.5, 9.0))
        assert latest_job(records) == "running: step 3 of 60, loss 0.500, about 9 s left"
        job.end("rejected", "loses 0.03 on\narithmetic", version=4)
    assert latest_job(records) == "v4 rejected: loses 0.03 on arithmetic"
