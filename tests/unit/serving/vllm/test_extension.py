"""A worker records and swaps by itself, and whatever goes wrong in that it says and serves on."""

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.adapter_folder import AdapterError
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.serving.engine import recorder
from hotdraft.serving.vllm.front.loop import worker_settings
from hotdraft.serving.vllm.worker import extension
from hotdraft.serving.vllm.worker.extension import WorkerExtension
from hotdraft.serving.vllm.worker.staging import DraftVersion
from tests.unit.serving.vllm.fake_models import VOCAB, Model, expected_logits, some_weights
from tests.unit.serving.vllm.fakes import RunnerV1, Scheduled, new_request, parallel_config

IDS = torch.arange(9) % VOCAB


class Group:
    rank_in_group, world_size, is_last_rank = 0, 1, True


class Worker(WorkerExtension):
    """vLLM's, with the extension among its bases."""

    device = torch.device("meta")

    def __init__(self, runner: Any, model: Any) -> None:
        self.model_runner = runner
        self._model = model
        self.vllm_config = SimpleNamespace(
            parallel_config=parallel_config(data_parallel_index=1),
            speculative_config=SimpleNamespace(
                rejection_sample_method="standard", draft_model_config=SimpleNamespace(dtype=torch.float32)
            ),
        )

    def get_draft_model(self) -> Any:
        return self._model

    def sleep(self, level: int = 1) -> None: ...

    def wake_up(self, tags: list[str] | None = None) -> None: ...


class DraftFile:
    """Versions by their folders' names; the probe of `spoiled` is another draft's."""

    model: Model

    def __init__(self, *_: Any) -> None: ...

    def version(self, adapter: Path | None) -> DraftVersion:
        if adapter is None:
            return DraftVersion(some_weights(0))
        if adapter.name == "foreign":
            raise AdapterError("it was trained on another base")
        weights = some_weights(int(adapter.name[0]))
        probed = some_weights(9) if adapter.name.endswith("spoiled") else weights
        with torch.inference_mode():
            return DraftVersion(weights, IDS, expected_logits(self.model, probed, IDS)[-4:].softmax(-1))


class Attached:
    def __init__(self, worker: Worker, folder: Path) -> None:
        self.worker = worker
        self.folder = folder
        told = {"flush_seconds": 0.1}
        config = HotdraftConfig(
            target="t", draft="d", run_dir=folder, recorder=told, predistill={"hidden_states": [0, 1, 2]}
        )
        self.status = worker.hotdraft_attach(worker_settings(config, folder / "journal", folder, "f"))

    def told(self, *events: str) -> list[dict[str, Any]]:
        lines = [line for path in (self.folder / "journal").glob("*") for line in path.read_text().splitlines()]
        return [event for line in lines if (event := json.loads(line))["event"] in events]

    def stage(self, version: int, name: str | None) -> dict[str, Any]:
        before = len(self.told("staged", "not_staged"))
        self.worker.hotdraft_stage(version, None if name is None else str(self.folder / name))
        while len(self.told("staged", "not_staged")) == before:
            pass
        return self.told("staged", "not_staged")[-1]

    def commit(self, version: int) -> dict[str, Any]:
        self.worker.hotdraft_commit(version)
        return self.told("swapped", "not_swapped")[-1]


@pytest.fixture
def attached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Attached]:
    distributed, context = ModuleType("vllm.distributed"), ModuleType("vllm.forward_context")
    distributed.get_pp_group = distributed.get_tp_group = Group  # type: ignore[attr-defined]
    context.set_forward_context = lambda *_: nullcontext()  # type: ignore[attr-defined]
    for module in (ModuleType("vllm"), distributed, context):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(extension, "installed", lambda: None)
    monkeypatch.setattr(extension, "DraftFile", DraftFile)
    monkeypatch.setattr(recorder, "weights_id", "weights of {}".format)

    def attach(runner: Any = None, model: Any = None) -> Attached:
        DraftFile.model = model = Model() if model is None else model
        model.load_weights(some_weights(0).items())
        return Attached(Worker(runner or RunnerV1(), model), tmp_path)

    return attach


def weights_of(worker: Worker) -> torch.Tensor:
    return worker._model.o_proj.weight.clone()


def test_a_version_is_staged_then_committed_and_what_it_drafts_is_recorded_as_its_own(
    attached: Callable[..., Attached],
) -> None:
    one = attached()
    assert one.status == {
        "worker": "engine1-stage0-rank0",
        "has_draft": True,
        "version": 0,
        "records": True,
        "problem": None,
        "dropped": 0,
    }
    assert one.stage(3, "3")["event"] == "staged"
    swapped = one.commit(3)
    assert (swapped["event"], swapped["version"], swapped["distance"] < 1e-4) == ("swapped", 3, True)
    assert torch.equal(weights_of(one.worker), some_weights(3)["layers.0.o_proj.weight"])
    runner = one.worker.model_runner
    runner.step(Scheduled([new_request("a")]), {"a": [5]}, [[5, 6]], torch.randn(2, 16))
    runner.step(Scheduled(finished_req_ids={"a"}), {}, [], torch.randn(0, 16))
    one.worker.hotdraft_close()
    assert [event["draft_version"] for event in one.told("finished")] == [3]
    [row] = ReplayBuffer(str(one.folder / "replay")).load()
    assert (row["target_id"], row["draft_id"]) == ("weights of t", "weights of d")
    runner.step(Scheduled([new_request("b")]), {"b": [5]}, [[5, 6]], torch.randn(2, 16))
    runner.step(Scheduled(finished_req_ids={"b"}), {}, [], torch.randn(0, 16))
    assert len(one.told("finished")) == 1, "what is closed records nothing more"
    assert one.stage(0, None)["event"] == "staged"
    assert one.commit(0)["event"] == "swapped"


def test_a_probe_that_differs_brings_the_old_weights_back(attached: Callable[..., Attached]) -> None:
    one = attached()
    before = weights_of(one.worker)
    one.stage(3, "3-spoiled")
    told = one.commit(3)
    assert told["event"] == "not_swapped"
    assert "total variation" in told["why"]
    assert told["serves"] == 0
    assert torch.equal(weights_of(one.worker), before)
    assert one.worker.hotdraft_status() == one.status


def test_a_probe_that_fails_brings_them_back_too(
    attached: Callable[..., Attached], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = attached()
    before = weights_of(one.worker)
    one.stage(3, "3")

    def fails(*_: Any) -> None:
        raise MemoryError("no memory for the probe")

    monkeypatch.setattr(extension.LiveDraft, "logits", fails)
    assert "no memory for the probe" in one.commit(3)["why"]
    assert torch.equal(weights_of(one.worker), before)


def test_weights_that_cannot_be_brought_back_are_served_under_no_version_until_others_are(
    attached: Callable[..., Attached], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = attached()
    one.stage(3, "3-spoiled")
    exchange, calls = extension.LiveDraft.exchange, []

    def once(*told: Any) -> None:
        calls.append(told)
        if len(calls) == 2:
            raise MemoryError("no memory to go back")
        exchange(*told)

    monkeypatch.setattr(extension.LiveDraft, "exchange", once)
    told = one.commit(3)
    assert (told["event"], told["serves"]) == ("not_swapped", -1)
    assert "no memory to go back" in told["why"]
    assert torch.equal(weights_of(one.worker), some_weights(3)["layers.0.o_proj.weight"])
    part = one.worker.hotdraft_part
    assert (part.version, part.recording.draft_version) == (-1, -1)
    one.stage(0, None)
    assert one.commit(0)["event"] == "swapped"
    assert (part.version, part.recording.draft_version) == (0, 0)


def test_weights_are_not_touched_while_vllm_sleeps(attached: Callable[..., Attached]) -> None:
    one = attached()
    before = weights_of(one.worker)
    one.stage(3, "3")
    one.worker.sleep(level=1)
    one.worker.wake_up(tags=["kv_cache"])
    told = one.commit(3)
    assert (told["event"], told["serves"], "vLLM sleeps" in told["why"]) == ("not_swapped", 0, True)
    assert torch.equal(weights_of(one.worker), before)
    one.worker.wake_up(tags=["weights"])
    one.stage(3, "3")
    assert one.commit(3)["event"] == "swapped"


@pytest.mark.parametrize(("version", "folder"), [(0, None), (3, "3")])
def test_a_draft_that_a_sleep_emptied_is_of_no_version_until_it_computes_what_it_should(
    attached: Callable[..., Attached], version: int, folder: str | None
) -> None:
    one = attached()
    embed = one.worker._model.embed.weight
    kept = embed.detach().clone()
    one.stage(version, folder)
    one.worker.sleep(level=2)
    embed.data.zero_()
    assert [event["worker"] for event in one.told("emptied")] == [one.worker.hotdraft_part.name]
    assert one.worker.hotdraft_part.recording.draft_version == -1
    one.worker.wake_up()
    told = one.commit(version)
    assert (told["event"], told["serves"]) == ("not_swapped", -1)
    embed.data.copy_(kept)
    one.stage(version, folder)
    assert one.commit(version)["event"] == "swapped"
    assert one.worker.hotdraft_part.recording.draft_version == version


def test_what_is_not_staged_is_not_committed(attached: Callable[..., Attached]) -> None:
    one = attached()
    assert one.stage(4, "foreign") == {
        "event": "not_staged",
        "worker": "engine1-stage0-rank0",
        "version": 4,
        "kind": "adapter",
        "why": "it was trained on another base",
    }
    assert "not staged" in one.commit(4)["why"]
    one.stage(3, "3")
    one.worker.hotdraft_discard()
    assert "not staged" in one.commit(3)["why"]


def test_a_runner_or_a_draft_that_is_not_known_is_left_alone_and_named(attached: Callable[..., Attached]) -> None:
    one = attached(runner=SimpleNamespace())
    assert one.status["records"] is False
    assert one.status["has_draft"] is True
    assert "SimpleNamespace is no model runner that hotdraft knows" in one.status["problem"]


def test_a_draft_that_cannot_be_swapped_is_recorded_all_the_same(attached: Callable[..., Attached]) -> None:
    model = Model()
    del model.attn.impl
    one = attached(model=model)
    assert (one.status["has_draft"], one.status["records"]) == (False, True)
    assert "the draft cannot be swapped" in one.status["problem"]
    one.worker.hotdraft_stage(3, "3")
    one.worker.hotdraft_commit(3)
    assert one.told("staged", "swapped", "not_staged", "not_swapped") == []


def test_a_worker_that_cannot_take_part_says_why_and_serves_on(
    attached: Callable[..., Attached], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(extension, "Journal", full)
    one = attached()
    assert one.status == {"failed": "OSError: no space left on device"}
    one.worker.hotdraft_stage(3, "3")
    one.worker.hotdraft_commit(3)
    one.worker.hotdraft_discard()
    one.worker.hotdraft_close()
    assert one.worker.hotdraft_status() is None


class Ranks(Group):
    """Two, of which the other one answers `answers`, then that it is fine."""

    world_size, cpu_group = 2, None

    def __init__(self, *answers: int) -> None:
        self.answers = list(answers)

    def reduced(self, flag: torch.Tensor, *_: Any, **__: Any) -> None:
        flag.clamp_(max=self.answers.pop(0) if self.answers else 1)


@pytest.fixture
def beside(attached: Callable[..., Attached], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Attached]:
    def attach(*answers: int) -> Attached:
        ranks = Ranks(*answers)
        monkeypatch.setattr(sys.modules["vllm.distributed"], "get_tp_group", lambda: ranks)
        monkeypatch.setattr(torch.distributed, "all_reduce", ranks.reduced)
        return attached()

    return attach


def test_no_rank_takes_part_where_another_one_cannot(beside: Callable[..., Attached]) -> None:
    one = beside(0)
    assert one.status == {"failed": "another rank of its engine failed"}
    assert one.worker.hotdraft_status() is None
    assert one.told("attached") == []


@pytest.mark.parametrize("answers", [(1, 0), (1, 1, 0)])
def test_no_rank_swaps_a_draft_of_which_another_rank_cannot(
    beside: Callable[..., Attached], answers: tuple[int, ...]
) -> None:
    one = beside(*answers)
    assert (one.status["has_draft"], one.status["records"]) == (False, True)
    assert "another rank" in one.status["problem"]
    assert beside().status["has_draft"] is True
