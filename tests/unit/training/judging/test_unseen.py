from dataclasses import replace

import numpy as np
import pytest

from hotdraft.training.judging import unseen
from hotdraft.training.judging.unseen import unlike

TOKENS = np.random.default_rng(0).integers(0, 1000, 10_000)


def ids(start: int, length: int = 40) -> np.ndarray:
    return TOKENS[start : start + length].astype(np.int32)


def nearly(tokens: np.ndarray) -> np.ndarray:
    """The same with another nonce."""
    return np.concatenate([tokens[:-1], [1001]]).astype(np.int32)


@pytest.fixture
def request_of(make_llama, serve):
    made = serve(make_llama(0), 1)[0]

    def of(name: str, prompt_ids: np.ndarray, output_ids: np.ndarray):
        return replace(made, request_id=name, prompt_ids=prompt_ids, output_ids=output_ids)

    return of


def test_what_was_asked_before_is_left_out_and_what_only_resembles_it_is_not(request_of):
    known = [(ids(0), ids(100))]
    told = {
        "same prompt, other answer": (ids(0), ids(200), False),
        "nearly the same": (nearly(ids(0)), nearly(ids(100)), False),
        "same instruction, other question": (nearly(ids(0)), ids(200), True),
        "other question, same answer": (ids(300), ids(100), True),
        "half the prompt, same answer": (np.append(ids(0, 20), ids(800, 20)), ids(100), True),
        "nearly the same prompt, half the answer": (
            np.append(ids(0), np.int32(1002)),
            np.append(ids(100, 20), ids(900, 20)),
            True,
        ),
        "other": (ids(400), ids(500), True),
        "nothing but a word": (ids(600, 1), ids(700, 1), True),
    }
    samples = [request_of(name, prompt, answer) for name, (prompt, answer, _) in told.items()]
    expected = [name for name, (*_, kept) in told.items() if kept]
    assert [sample.request_id for sample in unlike(samples, known)] == expected


@pytest.mark.parametrize(("changed", "kept"), [((10, 20), False), ((10, 20, 30), True)])
def test_texts_are_nearly_the_same_by_the_runs_of_tokens_that_they_share(request_of, changed, kept):
    """Each of three changed tokens of 40 is in three of 38 runs: 29 of the 47 that either has are of both."""
    prompt, answer = ids(0), ids(100)
    prompt[[changed]] = answer[[changed]] = 1001
    sample = request_of("new", prompt, answer)
    assert bool(unlike([sample], [(ids(0), ids(100))])) == kept


def test_a_family_of_requests_counts_once_and_by_its_newest(request_of):
    family = [request_of(f"f{index}", np.append(ids(0), index).astype(np.int32), ids(100)) for index in range(20)]
    other = request_of("other", ids(300), ids(400))
    assert [sample.request_id for sample in unlike([*family[:10], other, *family[10:]], [])] == ["other", "f19"]
    assert unlike([], [(ids(0), ids(1))]) == []


def test_a_long_common_instruction_is_counted_at_once_for_all_that_begin_with_it():
    texts = [np.concatenate([ids(0, 400), ids(1000 + 40 * n)]) for n in range(40)]
    owners = unseen._Shingles(texts)._owners
    assert sum(map(len, owners)) < 3 * len(texts), "its 398 shingles by themselves are of 40 texts each"


def test_prompts_are_looked_into_only_where_answers_are_alike(request_of, monkeypatch):
    looked_into, itself = [], unseen._shingles
    monkeypatch.setattr(unseen, "_shingles", lambda tokens: looked_into.append(len(tokens)) or itself(tokens))
    samples = [request_of("new", ids(0, 400), ids(1000))]
    known = [(nearly(ids(0, 400)), ids(2000 + 40 * n)) for n in range(20)]
    assert unlike(samples, [*known, (nearly(ids(0, 400)), ids(1000))]) == []
    assert looked_into.count(400) == 2, "the newcomer's, and the last one's"
