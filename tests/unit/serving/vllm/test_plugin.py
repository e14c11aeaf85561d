"""Where the loop cannot run, vLLM serves, and our pages say why there are none."""

import asyncio
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from hotdraft.pipeline.system.run_lock import run_lock
from hotdraft.serving.vllm.front import plugin as module
from hotdraft.serving.vllm.front.plugin import HotdraftPlugin
from tests.unit.serving.vllm.fakes import parallel_config


@pytest.fixture
def served(tmp_path: Path, tiny_draft: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    config = tmp_path / "c.yaml"
    config.write_text(
        f"target: {tiny_draft}\ndraft: {tiny_draft}\nrun_dir: {tmp_path}\nserver: {{admin_keys: [k]}}\n"
    )
    monkeypatch.setenv("HOTDRAFT_CONFIG", str(config))
    monkeypatch.setattr(module, "installed", lambda: None)
    speculative = SimpleNamespace(method="draft_model", num_speculative_tokens=2, model=tiny_draft)
    vllm_config = SimpleNamespace(
        speculative_config=speculative,
        parallel_config=parallel_config(),
        scheduler_config=SimpleNamespace(max_num_seqs=4),
        model_config=SimpleNamespace(max_model_len=64, model=tiny_draft),
    )
    plugin, app = HotdraftPlugin(), FastAPI()
    app.get("/health")(lambda: "vllm")
    plugin.attach_router(app)

    def begin(**served: str) -> TestClient:
        vllm_config.model_config.model = served.get("target", tiny_draft)
        speculative.model = served.get("draft", tiny_draft)
        client = SimpleNamespace(vllm_config=vllm_config)
        asyncio.run(plugin.init_state(client, None, Namespace(host=None, port=8000)))
        return TestClient(app)

    return begin


def test_a_process_beside_the_one_with_the_loop_says_so(served: Any, tmp_path: Path) -> None:
    with run_lock(tmp_path, "server"):
        client = served()
    answer = client.get("/hotdraft/status")
    assert answer.status_code == 503
    assert f"works in {tmp_path}" in answer.json()["error"]["message"]
    assert client.get("/health").json() == "vllm"


def test_what_went_wrong_otherwise_is_for_the_log(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise OSError("postgresql://me:secret@host is away")

    monkeypatch.setattr(module, "LoopBesideVllm", fails)
    answer = served().get("/hotdraft")
    assert answer.status_code == 503
    assert answer.json()["error"]["message"].endswith("vLLM's log says why")


@pytest.mark.parametrize("which", ["target", "draft"])
def test_the_loop_is_about_the_models_that_vllm_serves(served: Any, tiny_target: str, which: str) -> None:
    answer = served(**{which: tiny_target}).get("/hotdraft/status")
    assert answer.status_code == 503
    assert f"vLLM serves another, {tiny_target}" in answer.json()["error"]["message"]
