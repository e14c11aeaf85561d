"""The loop in vLLM's front end begins with all workers or not at all."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.serving.vllm.front.loop import LoopBesideVllm


class Client:
    """vLLM's engine, of whose workers one does not take part."""

    def __init__(self) -> None:
        self.called: list[str] = []

    async def collective_rpc(self, method: str, args: tuple[Any, ...] = ()) -> list[dict[str, Any]]:
        self.called.append(method)
        return [{"worker": "engine0-stage0-rank0"}, {"failed": "OSError: no space left on device"}]


def test_a_worker_that_cannot_take_part_ends_the_loop_on_all(tmp_path: Path, tiny_draft: str) -> None:
    config = HotdraftConfig(target=tiny_draft, draft=tiny_draft, run_dir=tmp_path, server={"admin_keys": ["k"]})
    told = SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=2, model=tiny_draft),
        scheduler_config=SimpleNamespace(max_num_seqs=4),
        model_config=SimpleNamespace(max_model_len=64),
    )

    async def begin(client: Client) -> None:
        await LoopBesideVllm(config, tmp_path / "c.yaml", {}, vllm_config=told, engine_client=client).start()

    client = Client()
    with pytest.raises(RuntimeError, match="a worker cannot take part: OSError: no space left"):
        asyncio.run(begin(client))
    assert client.called == ["hotdraft_attach", "hotdraft_close"]
