"""vLLM's own server with the loop in it, two engines of one target: asked over HTTP, as its clients do."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from hotdraft.pipeline.config.settings import load_config
from hotdraft.pipeline.processes.local_server import wait_until_healthy
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.store.connection import open_client
from hotdraft.pipeline.store.registry import AdapterRegistry
from tests.integration.adapters import write_adapter
from tests.integration.processes import free_port, wait_for
from tests.models import disturbed, save, tiny_llama

pytest.importorskip("vllm", reason="vLLM is not installed here: make test-vllm")
pytestmark = pytest.mark.slow

ENGINES = 2
KEY = {"Authorization": "Bearer operator"}
ASKED = {"model": "tiny", "temperature": 0, "max_tokens": 16, "ignore_eos": True}


class Server:
    def __init__(self, folder: Path) -> None:
        target = tiny_llama(layers=2, seed=1, heads=2, head_size=32)
        self.draft = save(disturbed(target), folder / "draft")
        self.config = folder / "config.yaml"
        told = {
            "target": save(target, folder / "target"),
            "draft": self.draft,
            "dtype": "float32",
            "run_dir": str(folder / "run"),
            "engine": {"kind": "vllm", "k": 3, "max_model_len": 256},
            "recorder": {"flush_seconds": 0.5},
            "server": {"served_model_name": "tiny", "admin_keys": ["operator"]},
        }
        self.config.write_text(yaml.safe_dump(told))
        port = free_port()
        command = ["serve", "--config", str(self.config), "--port", str(port)]
        flags = ["--", "--enforce-eager", "--data-parallel-size", str(ENGINES)]
        cores = "|".join(str(engine) for engine in range(ENGINES))
        environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": cores}
        self.log = folder / "server.log"
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "hotdraft", *command, *flags], stdout=output, stderr=output, env=environment
            )
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120)
        wait_until_healthy(str(self.client.base_url), self.process, self.log)

    def ask(self, number: int, **told: Any) -> dict[str, Any]:
        content = f"question {number}"
        body = {**ASKED, "messages": [{"role": "user", "content": content}], **told}
        answer = self.client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def counts(self, answer_id: str) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            found = self.get(f"requests/{answer_id}")
            return found.json() if found.is_success else None

        return wait_for("counts of an answer", look)

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.client.get(f"/hotdraft/{path}", **more)

    def versions(self) -> dict[str, int]:
        return {worker["worker"]: worker["version"] for worker in self.get("status").json()["workers"]}

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("server"))
    yield running
    running.stop()


def text(answer: dict[str, Any]) -> str:
    return answer["choices"][0]["message"]["content"]


def test_both_engines_take_a_promoted_version_up_and_answers_stay_as_they_were(
    server: Server, tmp_path: Path
) -> None:
    assert server.versions() == {"engine0-stage0-rank0": 0, "engine1-stage0-rank0": 0}
    before = [text(server.ask(number)) for number in range(6)]
    config = load_config(server.config)
    registry, client = AdapterRegistry(config), open_client(config)
    run_id = client.create_run("0").info.run_id
    version = registry.publish(write_adapter(tmp_path / "a", server.draft, scale=0.1), run_id=run_id, tags={})
    promoted = server.client.post(f"/hotdraft/admin/adapters/{version}/promote", json={}, headers=KEY)
    assert promoted.status_code == 200, promoted.text
    wait_for("a swap", lambda: set(server.versions().values()) == {version})
    after = [server.ask(number) for number in range(6)]
    assert [text(answer) for answer in after] == before
    assert {server.counts(answer["id"])["draft_version"] for answer in after} == {version}
    foreign = write_adapter(tmp_path / "b", str(config.target), scale=0.1)
    unfit = registry.publish(foreign, run_id=client.create_run("0").info.run_id, tags={})
    server.client.post(f"/hotdraft/admin/adapters/{unfit}/promote", json={}, headers=KEY)
    amiss = wait_for("a mark", lambda: server.get("status").json()["unusable_adapters"])
    assert "trained on another base" in amiss[str(unfit)]
    assert set(server.versions().values()) == {version}
    back = server.client.post("/hotdraft/admin/adapters/rollback", json={}, headers=KEY)
    assert back.json()["champion"] == version


def test_what_a_client_says_of_its_traffic_is_kept_to(server: Server) -> None:
    tagged = server.counts(server.ask(1, metadata={"domain": "sql"})["id"])
    assert (tagged["domain"], tagged["recorded"], tagged["completion_tokens"]) == ("sql", True, 16)
    assert tagged["examined_tokens"] >= tagged["accepted_tokens"] > 0
    assert tagged["examined_tokens"] >= tagged["first_examined"] >= tagged["first_accepted"] > 0
    unstored = server.counts(server.ask(2, store=False, metadata={"domain": "private"})["id"])
    assert (unstored["domain"], unstored["recorded"]) == ("unrecorded", False)
    penalised = server.counts(server.ask(3, presence_penalty=0.5)["id"])
    assert penalised["left_out"] == "presence_penalty"
    two = server.ask(4, n=2, temperature=0.7)["id"]
    wait_for("the sum of two answers", lambda: server.counts(two)["completion_tokens"] == 32)
    rows = wait_for("records", lambda: ReplayBuffer(str(load_config(server.config).replay_url)).rows())
    assert "private" not in set(rows["domain"])
    metrics = server.client.get("/metrics").text
    assert 'hotdraft_domain_accepted_tokens_total{domain="sql"' in metrics
    of_first = r'vllm:spec_decode_num_accepted_tokens_per_pos_total\{[^}]*position="0"[^}]*\} [1-9]'
    assert re.search(of_first, metrics), "what the alert goes by"
    assert re.search(r"vllm:spec_decode_num_drafts_total\{[^}]*\} [1-9]", metrics)
    assert re.search(r"hotdraft_recorder_samples_total\{[^}]*\} [1-9]", metrics)
    assert re.search(r"hotdraft_recorder_dropped_total\{[^}]*\} 0", metrics)
    assert "private" not in metrics


def test_the_operators_pages_are_for_operators(server: Server) -> None:
    assert server.get("admin/status").status_code == 401
    assert server.get("admin/status", headers=KEY).json()["k"] == 3
    assert server.client.put("/hotdraft/admin/k", json={"k": 1}, headers=KEY).status_code == 409
    assert "<title>" in server.get("dashboard").text
    for wrong in (b"{", b"[]", json.dumps({"vllm_xargs": 3}).encode()):
        refused = server.client.post(
            "/v1/chat/completions", content=wrong, headers={"Content-Type": "application/json"}
        )
        assert 400 <= refused.status_code < 500


def test_what_it_recorded_last_is_written_when_it_is_told_to_end(server: Server) -> None:
    for number in range(3):
        server.ask(number, metadata={"domain": "last"})
    server.stop()
    rows = ReplayBuffer(str(load_config(server.config).replay_url)).rows()
    assert list(rows["domain"]).count("last") == 3
    assert "Application shutdown failed" not in server.log.read_text()
