"""A request's record follows from its passes: what was drafted, accepted, and cut at the answer's end."""

from typing import Any

import numpy as np
import pytest

from hotdraft.pipeline.replay.sample import NOT_DRAFTED
from hotdraft.serving.sampling.target_log import TargetLog
from hotdraft.serving.vllm.worker.request_log import RequestLog
from hotdraft.serving.vllm.worker.requests import ServedRequest
from tests.unit.serving.vllm.fakes import new_request


def log_of(**told: Any) -> RequestLog:
    request = ServedRequest.of(new_request("r", **told))
    assert request is not None
    return RequestLog(request)


def logged(count: int, first: int = 0) -> TargetLog:
    """Distributions that tell which position they are of."""
    ids = np.arange(first, first + count, dtype=np.int32)[:, None]
    return TargetLog(ids, -ids.astype(np.float32), np.zeros(count, np.float32), None)


def take(log: RequestLog, tokens: list[int], drafted: list[int], version: int = 0, first: int = 0) -> None:
    log.take(np.array(tokens), np.array(drafted, np.int32), logged(len(drafted) + 1, first), version)


def test_a_refused_token_is_recorded_where_the_targets_own_came_and_what_follows_it_is_not() -> None:
    log = log_of()
    take(log, [5, 9], [5, 6, 7], first=10)
    take(log, [4, 3, 2, 1], [4, 3, 2], first=20)
    sample, counts = log.sample(), log.counts()
    assert sample is not None
    assert sample.output_ids.tolist() == [5, 9, 4, 3, 2, 1]
    assert sample.drafted_ids.tolist() == [5, 6, 4, 3, 2, NOT_DRAFTED]
    assert sample.accepted.tolist() == [True, False, True, True, True, False]
    assert sample.target_top_ids[:, 0].tolist() == [10, 11, 20, 21, 22, 23]
    assert (counts.rounds, counts.drafted_tokens, counts.examined_tokens, counts.accepted_tokens) == (2, 6, 5, 4)
    assert (counts.first_examined, counts.first_accepted) == (2, 2)


def test_what_was_drafted_before_a_swap_is_the_old_versions_though_it_is_verified_after_it() -> None:
    log = log_of()
    take(log, [5], [], version=1)
    take(log, [6, 7, 8], [6, 7], version=2)
    before = log.counts()
    assert (before.draft_version, before.one_version) == (1, True)
    take(log, [9, 3], [9, 4], version=2)
    sample, counts = log.sample(), log.counts()
    assert sample is not None
    assert sample.draft_versions.tolist() == [1, 1, 1, 1, 2, 2]
    assert (counts.draft_version, counts.one_version) == (2, False)


@pytest.mark.parametrize(
    ("told", "length"),
    [
        ({"max_tokens": 3}, 3),
        ({"stop_token_ids": [6]}, 2),
        ({"eos_token_id": 6, "all_stop_token_ids": {6}}, 2),
        ({"all_stop_token_ids": {6}}, 4),  # as with `ignore_eos`
        ({"max_tokens": None}, 4),
    ],
)
def test_an_answer_ends_where_vllm_ends_it_though_the_worker_sees_more(told: dict[str, Any], length: int) -> None:
    log = log_of(**told)
    take(log, [5, 6, 7, 8], [5, 6, 7])
    sample, counts = log.sample(), log.counts()
    assert sample is not None
    assert len(sample.output_ids) == len(sample.drafted_ids) == len(sample.target_tail_logprob) == length
    assert counts.completion_tokens == length
    assert counts.accepted_tokens == min(length, 3)


def test_a_pass_without_drafts_asked_the_draft_for_nothing() -> None:
    log = log_of()
    take(log, [5], [])
    counts = log.counts()
    assert (counts.rounds, counts.drafted_tokens, counts.examined_tokens, counts.first_examined) == (1, 0, 0, 0)


def test_nothing_is_recorded_of_an_answer_that_a_pass_is_missing_of() -> None:
    log = log_of()
    take(log, [5], [])
    log.take(np.array([6]), np.empty(0, np.int32), None, 0)
    assert log.sample() is None
    assert log.counts().completion_tokens == 2


def test_an_answer_of_nothing_is_no_record() -> None:
    log = log_of()
    log.take(np.empty(0, np.int32), np.empty(0, np.int32), logged(1), 0)
    assert log.sample() is None
    assert log.counts().rounds == 0
