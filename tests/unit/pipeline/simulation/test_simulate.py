"""What is played at a server, and what is told of it."""

import json
import signal
import subprocess
import sys
import time
from functools import partial

import matplotlib.image
import pytest

from hotdraft.commands.simulate import simulate
from hotdraft.pipeline.traffic.prompts import ask, write_traffic
from tests.unit.pipeline.simulation.fake_hotdraft import FakeHotdraft, cli, fake_server

KEYS = {
    "requests", "failed_requests", "swaps", "adapters_rejected", "k", "speedup", "tokens", "tokens_per_second",
    "acceptance_rate_first", "acceptance_rate_last", "by_domain", "windows", "wall_seconds", "interrupted",
}  # fmt: skip


def test_where_the_curves_are_is_told_without_the_password_of_the_database(tmp_path, config, monkeypatch):
    monkeypatch.setattr("hotdraft.pipeline.store.tracking.curves_page", lambda _: "/#/experiments/1/runs/abc")
    monkeypatch.setenv("HOTDRAFT_TRACKING__URI", "postgresql://me:secret@db:5432/mlflow")
    write_traffic(tmp_path / "one.jsonl", [ask("sums", "sum")])
    with fake_server() as (url, _):
        result = cli(
            simulate,
            "--traffic",
            tmp_path / "one.jsonl",
            "--config",
            config,
            "--out",
            tmp_path / "out",
            "--url",
            url,
        )
    assert "--backend-store-uri 'postgresql://me:**********@db:5432/mlflow'\n" in result.output
    assert "secret" not in result.output


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


@pytest.mark.parametrize(("variable", "scheme"), [("HTTP_PROXY", "http"), ("ALL_PROXY", "socks5")])
def test_this_machine_is_asked_past_a_proxy_that_the_environment_names(
    variable, scheme, tmp_path, config, monkeypatch
):
    monkeypatch.setitem(sys.modules, "socksio", None)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in (variable, variable.lower()):
        monkeypatch.setenv(name, f"{scheme}://127.0.0.1:9")
    write_traffic(tmp_path / "t.jsonl", [ask("a", "x")])
    with fake_server() as (url, bodies):
        for name in (url, url.replace("127.0.0.1", "localhost")):
            result = cli(
                simulate, "--traffic", tmp_path / "t.jsonl", "-c", config, "--url", name, "--out", tmp_path / "o"
            )
            assert result.exit_code == 0, result.output
    assert len(bodies) == 2


def test_a_socks_proxy_that_nothing_here_speaks_with_is_told_in_a_line(tmp_path, config, monkeypatch):
    monkeypatch.setitem(sys.modules, "socksio", None)
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    write_traffic(tmp_path / "t.jsonl", [ask("a", "x")])
    url = "http://hotdraft.invalid:8000"
    result = cli(simulate, "--traffic", tmp_path / "t.jsonl", "-c", config, "--url", url, "--out", tmp_path / "o")
    assert result.exit_code == 2
    assert f"{url} does not answer as hotdraft does: Using SOCKS proxy, but" in result.output


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
