"""Both of vLLM's model runners are followed alike, by the parameters that their methods have, or not at all."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hotdraft.pipeline.config.serving import RecorderConfig
from hotdraft.pipeline.replay.buffer import ReplayBuffer, sample_from_row
from hotdraft.pipeline.replay.sample import NOT_DRAFTED, ReplaySample
from hotdraft.serving.engine.recorder import Recorder
from hotdraft.serving.vllm.journal import Journal
from hotdraft.serving.vllm.worker import runner_v1, runner_v2
from hotdraft.serving.vllm.worker.recording import Recording
from hotdraft.serving.vllm.worker.seams import SeamError
from tests.unit.serving.vllm.fakes import VOCAB, RunnerV1, RunnerV2, Scheduled, new_request

TOP_K = 4
RUNNERS = pytest.mark.parametrize(("module", "runner_class"), [(runner_v1, RunnerV1), (runner_v2, RunnerV2)])


class Followed:
    def __init__(self, module: Any, runner: Any, folder: Path, config: RecorderConfig) -> None:
        self.runner = runner
        self.buffer = ReplayBuffer(str(folder / "replay"))
        self.recorder = Recorder(ReplayBuffer(str(folder / "replay")), config)
        self.journal = folder / "journal"
        self.recording = Recording(Journal(self.journal, "w"), self.recorder, TOP_K)
        self.detach = module.attach(runner, self.recording)

    def samples(self) -> dict[str, ReplaySample]:
        self.recorder.close()
        rows = self.buffer.load() if self.buffer.shards() else []
        return {row["request_id"]: sample_from_row(row) for row in rows}

    def told(self) -> list[dict[str, Any]]:
        return [json.loads(line) for path in self.journal.glob("*") for line in path.read_text().splitlines()]


@pytest.fixture
def follow(tmp_path: Path) -> Iterator[Callable[..., Followed]]:
    made: list[Followed] = []

    def one(module: Any, runner: Any, **told: Any) -> Followed:
        made.append(Followed(module, runner, tmp_path, RecorderConfig(**told)))
        return made[-1]

    yield one
    for followed in made:
        followed.recorder.close()


def logits(rows: int) -> torch.Tensor:
    return torch.randn(rows, VOCAB)


@RUNNERS
def test_a_record_holds_the_targets_distributions_at_the_positions_of_the_answer(
    module: Any, runner_class: Any, follow: Callable[..., Followed]
) -> None:
    followed = follow(module, runner_class())
    runner, first, second = followed.runner, logits(2), logits(6)
    kept = second.clone()
    told = {"hotdraft_client": "c", "hotdraft_domain": "sql"}
    both = Scheduled([new_request("a", extra_args=told), new_request("b", [7])])
    runner.step(both, {"a": [], "b": []}, [[3], [4]], first.clone())
    runner.step(Scheduled(), {"a": [5, 6, 7], "b": [8]}, [[5, 9], [8, 2]], second)
    runner.step(Scheduled(finished_req_ids={"a", "b"}), {}, [], logits(0))
    samples = followed.samples()
    assert samples["a"].output_ids.tolist() == [3, 5, 9]
    assert samples["a"].drafted_ids.tolist() == [NOT_DRAFTED, 5, 6]
    assert samples["a"].accepted.tolist() == [False, True, False]
    assert samples["b"].output_ids.tolist() == [4, 8, 2]
    assert (samples["a"].domain, samples["b"].domain) == ("sql", "default")
    assert samples["b"].prompt_ids.tolist() == [7]
    expected = torch.cat([first[:1], kept[:2]]).log_softmax(-1).topk(TOP_K).values
    np.testing.assert_allclose(samples["a"].target_top_logprobs, expected.numpy(), atol=2e-3)
    expected = torch.cat([first[1:], kept[4:6]]).log_softmax(-1).topk(TOP_K).values
    np.testing.assert_allclose(samples["b"].target_top_logprobs, expected.numpy(), atol=2e-3)
    finished = {event["id"]: event for event in followed.told() if event["event"] == "finished"}
    assert finished["a"]["examined_tokens"] == 2
    assert finished["a"]["accepted_tokens"] == 1
    assert finished["b"]["accepted_tokens"] == 1


@RUNNERS
def test_a_prompt_that_is_not_read_to_its_end_gives_no_token(
    module: Any, runner_class: Any, follow: Callable[..., Followed]
) -> None:
    followed = follow(module, runner_class())
    runner = followed.runner
    if isinstance(runner, RunnerV1):
        runner.discard_request_mask.np[0] = True
    runner.step(Scheduled([new_request("a")]), {"a": []}, [[9] if isinstance(runner, RunnerV1) else []], logits(1))
    if isinstance(runner, RunnerV1):
        runner.discard_request_mask.np[0] = False
    runner.step(Scheduled(), {"a": []}, [[3]], logits(1))
    runner.step(Scheduled(finished_req_ids={"a"}), {}, [], logits(0))
    assert followed.samples()["a"].output_ids.tolist() == [3]


@RUNNERS
def test_what_is_not_to_be_recorded_is_counted_alone(
    module: Any, runner_class: Any, follow: Callable[..., Followed]
) -> None:
    followed = follow(module, runner_class())
    runner = followed.runner
    new = [
        new_request("a", logit_bias={1: 2.0}),
        new_request("b"),
        new_request("c", extra_args={"hotdraft_client": "c", "hotdraft_store": 0}),
    ]
    runner.step(Scheduled(new), {"a": [1], "b": [5], "c": []}, [[1, 2], [5, 6], [7]], logits(5))
    runner.step(Scheduled(finished_req_ids={"a", "b", "c"}), {}, [], logits(0))
    assert list(followed.samples()) == ["b"]
    told = {event["id"]: event for event in followed.told() if event["event"] == "finished"}
    assert {name: event["left_out"] for name, event in told.items()} == {"a": "logit_bias", "b": None, "c": "store"}
    assert told["a"]["accepted_tokens"] == 1
    assert told["c"]["domain"] == "unrecorded"


@RUNNERS
def test_an_error_ends_recording_and_nothing_else(
    module: Any, runner_class: Any, follow: Callable[..., Followed]
) -> None:
    followed = follow(module, runner_class())
    runner = followed.runner
    output = runner.step(Scheduled([new_request("a")]), {"a": [5]}, [[5, 6]], logits(7))  # five rows too many
    assert output.sampled_token_ids.tolist() == [[5, 6]]
    assert followed.recording.problem is not None
    assert [event["event"] for event in followed.told()] == ["detached"]
    assert "7 rows of logits for 2 positions" in followed.told()[0]["why"]
    runner.step(Scheduled(finished_req_ids={"a"}), {}, [], logits(0))
    assert followed.samples() == {}


@RUNNERS
def test_taken_back_nothing_of_ours_is_left(
    module: Any, runner_class: Any, follow: Callable[..., Followed]
) -> None:
    runner = runner_class()
    before = dict(vars(runner))
    followed = follow(module, runner)
    followed.detach()
    assert vars(runner) == before


@RUNNERS
def test_what_is_closed_before_the_next_pass_has_recorded_the_answers_that_the_last_one_ended(
    module: Any, runner_class: Any, follow: Callable[..., Followed]
) -> None:
    followed = follow(module, runner_class())
    followed.runner.step(Scheduled([new_request("a")]), {"a": [5]}, [[5, 6]], logits(2))
    followed.recording.close()
    followed.runner.step(Scheduled(finished_req_ids={"a"}), {}, [], logits(0))
    assert followed.samples()["a"].output_ids.tolist() == [5, 6]
    assert [event["event"] for event in followed.told()] == ["finished"]


def test_requests_that_were_preempted_are_not_followed(follow: Callable[..., Followed]) -> None:
    old, new = follow(runner_v1, RunnerV1()), None
    old.runner.step(Scheduled([new_request("a")]), {"a": []}, [[3]], logits(1))
    old.runner.step(Scheduled(resumed={"a"}), {"a": []}, [[3]], logits(1))
    old.runner.step(Scheduled(finished_req_ids={"a"}), {}, [], logits(0))
    new = follow(runner_v2, RunnerV2())
    new.runner.step(Scheduled([new_request("b")]), {"b": []}, [[3]], logits(1))
    new.runner.step(Scheduled(preempted_req_ids={"b"}), {}, [], logits(0))
    back = new_request("b")
    back.prefill_token_ids = [*back.prompt_token_ids, 3]
    new.runner.step(Scheduled([back]), {"b": []}, [[4]], logits(1))
    new.runner.step(Scheduled(finished_req_ids={"b"}), {}, [], logits(0))
    assert old.samples() == new.samples() == {}


def test_a_share_of_the_requests_is_recorded_where_that_is_asked_for(follow: Callable[..., Followed]) -> None:
    followed = follow(runner_v1, RunnerV1(), sample_rate=0.25)
    for number in range(200):
        name = f"r{number}"
        followed.runner.step(Scheduled([new_request(name)]), {name: []}, [[3]], logits(1))
        followed.runner.step(Scheduled(finished_req_ids={name}), {}, [], logits(0))
    assert 25 <= len(followed.samples()) <= 75
    assert {event["left_out"] for event in followed.told()} == {None, "sample_rate"}


def test_a_runner_of_another_signature_is_named_and_left_alone(follow: Callable[..., Followed]) -> None:
    class Newer(RunnerV1):
        def _sample(self, logits: Any, spec_decode_metadata: Any, more: Any = None) -> Any:  # type: ignore[override]
            return None

    with pytest.raises(SeamError, match=r"_sample takes \(logits, spec_decode_metadata, more\)"):
        follow(runner_v1, Newer())

    class Sharded(RunnerV2):
        def __init__(self) -> None:
            super().__init__()
            self.batch_sharder = object()  # type: ignore[assignment]

    with pytest.raises(SeamError, match="shards"):
        follow(runner_v2, Sharded())
    assert runner_v1.fits(RunnerV1())
    assert not runner_v1.fits(RunnerV2())
    assert runner_v2.fits(RunnerV2())
    assert not runner_v2.fits(RunnerV1())
