"""Rows, queue and chunks, without a thread and without a model."""

from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from hotdraft.serving.engine.detokenizer import Detokenizer
from hotdraft.serving.engine.k_choice import KChoice
from hotdraft.serving.engine.output import Output
from hotdraft.serving.engine.scheduler import Scheduler
from hotdraft.serving.engine.sequence import Sequence
from hotdraft.serving.engine.waiting import QueueFullError, Waiting
from hotdraft.serving.messages.request import GenerationRequest, SamplingParams
from hotdraft.serving.proposers.acceptance import AcceptanceEstimate, Estimates, by_position
from tests.models import tiny_tokenizer
from tests.unit.serving.rounds import a_round

CHUNK = 8


class Rows:
    """A decoder that notes which prompt stands in which row, and how much of it was read."""

    def __init__(self) -> None:
        self.slots = SimpleNamespace(num_slots=3, lengths=[0] * 3)
        self.max_k, self.proposer, self.device = 4, object(), torch.device("cpu")
        self.max_alternatives = 0
        self.graphed: dict[str, object] = {}
        self.forwards: list[list[int]] = []
        self.prompts: list[Any] = [None] * 3
        self.left = [0] * 3
        self.is_behind = self.keeps_states = False
        self.proposer_seconds = 0.0

    def load(self, row: int, prompt_ids: tuple[int, ...], *, scope: str, read_whole: bool) -> None:
        self.prompts[row], self.left[row] = prompt_ids, len(prompt_ids) - 1
        self.slots.lengths[row] = len(prompt_ids)

    def unread(self, row: int, *, with_proposer: bool) -> int:
        return self.left[row]

    def prefill(self, row: int, budget: int, **_: object) -> None:
        self.forwards.append([row])
        self.proposer_seconds += 0.25
        self.left[row] -= min(budget, self.left[row])

    def prefill_together(self, rows: slice, **_: object) -> None:
        self.forwards.append(list(range(rows.start, rows.stop)))
        self.left[rows] = [0] * (rows.stop - rows.start)

    def move(self, source: int, destination: int) -> None:
        for column in (self.prompts, self.left, self.slots.lengths):
            column[destination] = column[source]

    def discard(self, row: int) -> None:
        self.prompts[row] = None

    def catch_up(self, rows: list[int], budget: int) -> list[int]:
        return rows if self.is_behind else []


@pytest.fixture
def rows() -> Rows:
    return Rows()


@pytest.fixture
def scheduler(rows: Rows) -> Scheduler:
    return Scheduler(rows, KChoice(rows, 2, CHUNK), max_queue=4, prefill_chunk=CHUNK)  # type: ignore[arg-type]


def wait(
    scheduler: Scheduler, *lengths: int, max_tokens: int = 100, first: int = 0, client: str = ""
) -> list[Sequence]:
    """Requests whose prompts are of these lengths, the n-th named n."""
    sequences = []
    for n, length in enumerate(lengths, first):
        params = SamplingParams(max_tokens=max_tokens)
        request = GenerationRequest(str(n), (1 + n,) * length, params, client=client)
        detokenizer = Detokenizer(tiny_tokenizer().backend_tokenizer, frozenset())
        output = Output(request, lambda delta: None, detokenizer)
        estimates = partial(Estimates, AcceptanceEstimate(by_position(4)))
        sequences.append(Sequence(output, seed=n, eos_ids=frozenset(), estimates=estimates))
        scheduler.add(sequences[-1])
    return sequences


def in_rows(scheduler: Scheduler, rows: Rows) -> list[int]:
    """Which request runs in each row, after a check that its row has its prompt."""
    everybody = [*scheduler.running, *([scheduler.prefilling] if scheduler.prefilling else [])]
    assert rows.prompts[: len(everybody)] == [sequence.request.prompt_ids for sequence in everybody]
    return [int(sequence.request.request_id) for sequence in scheduler.running]


def test_a_long_prompt_is_read_in_chunks_and_short_ones_with_its_last(scheduler: Scheduler, rows: Rows) -> None:
    wait(scheduler, 20, 2, 3)
    found = []
    for _ in range(4):
        scheduler.read_prompts()
        found.append(in_rows(scheduler, rows))
    assert found == [[], [], [0, 1, 2], [0, 1, 2]]
    assert scheduler.num_running == 3
    assert scheduler.num_waiting == 0


def test_what_the_draft_takes_to_read_a_prompt_is_charged_to_its_request(scheduler: Scheduler) -> None:
    long, short = wait(scheduler, 1 + CHUNK + 2, 3)
    scheduler.read_prompts()
    scheduler.read_prompts()
    assert [long.reading, short.reading] == [0.5, 0.25], "a chunk, and another"


def test_who_waits_has_a_row_when_one_is_free(scheduler: Scheduler, rows: Rows) -> None:
    wait(scheduler, 2, 2, 2, 2)
    scheduler.read_prompts()
    assert in_rows(scheduler, rows) == [0, 1, 2]
    assert [int(s.request.request_id) for s in scheduler.drop({"0"})] == [0]
    scheduler.read_prompts()
    assert in_rows(scheduler, rows) == [2, 1, 3]
    assert scheduler.drop({"9"}) == []


def test_a_row_that_ends_is_filled_by_the_last_and_the_prompt_under_way_moves_up(
    scheduler: Scheduler, rows: Rows
) -> None:
    first, _ = wait(scheduler, 2, 40)
    first.left = 1
    scheduler.read_prompts()
    assert in_rows(scheduler, rows) == [0]
    plan = scheduler.plan()
    assert (len(plan.running), plan.proposals.k, plan.log) == (1, 2, True)
    assert scheduler.advance(plan, a_round([5, 6, 7])) == [(1, "length")]
    assert in_rows(scheduler, rows) == []
    assert scheduler.prefilling is not None


def test_a_cancelled_prompt_under_way_leaves_its_row_clean(scheduler: Scheduler, rows: Rows) -> None:
    wait(scheduler, 40, 40)
    scheduler.read_prompts()
    assert len(scheduler.drop({"0", "1"})) == 2
    assert rows.prompts[0] is None
    assert scheduler.is_idle


def test_prompts_that_cannot_be_read_together_leave_clean_rows_and_are_read_alone(
    scheduler: Scheduler, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait(scheduler, 2)
    scheduler.read_prompts()
    rows.graphed["target"] = object()
    wait(scheduler, 3, 2, first=1)
    monkeypatch.setattr(rows, "prefill_together", Mock(side_effect=MemoryError))
    with pytest.raises(MemoryError):
        scheduler.read_prompts()
    scheduler.separate()
    assert rows.prompts == [(1, 1), None, None], "nothing of what failed is reused"
    scheduler.read_prompts()
    assert in_rows(scheduler, rows) == [0, 1, 2]
    assert rows.forwards == [[0], [1], [2]]


def test_after_a_failed_round_the_prompt_under_way_is_in_the_first_row(scheduler: Scheduler, rows: Rows) -> None:
    wait(scheduler, 2, 2, 40)
    scheduler.read_prompts()
    scheduler.drop_running()
    assert in_rows(scheduler, rows) == []
    assert scheduler.num_running == 1
    assert rows.prompts[1] is None, "nothing of what failed is reused"


def test_no_more_wait_than_may(scheduler: Scheduler) -> None:
    with pytest.raises(QueueFullError, match="4 requests"):
        wait(scheduler, 2, 2, 2, 2, 2)
    assert len(scheduler.clear()) == 4
    assert scheduler.is_idle


def test_another_client_waits_behind_one_request_of_a_client_that_fills_the_queue(
    scheduler: Scheduler, rows: Rows
) -> None:
    wait(scheduler, 2, 2, 2, 2, client="many")
    wait(scheduler, 2, first=9, client="one")
    scheduler.read_prompts()
    assert in_rows(scheduler, rows) == [0, 9, 1]


def test_nothing_is_drafted_while_the_proposer_is_far_behind(scheduler: Scheduler, rows: Rows) -> None:
    wait(scheduler, 2)
    scheduler.read_prompts()
    for rows.is_behind, k in ((True, 0), (True, 0), (False, 2)):
        assert scheduler.plan().proposals.k == k


def test_a_request_that_is_put_back_is_asked_about_once(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the draft reads its prompt is tried now and then, and each question counts."""
    asked: list[int] = []
    monkeypatch.setattr(KChoice, "is_drafted", lambda self, at_once: asked.append(at_once) or False)
    [sequence] = wait(scheduler, 5)
    for _ in range(3):
        scheduler._admit()
        assert scheduler.prefilling is sequence
        scheduler._waiting.put_back(sequence)
        scheduler.prefilling = None
    assert asked == [1]
    assert not sequence.is_drafted


def test_what_a_round_committed_beyond_an_answers_end_is_not_remembered(
    scheduler: Scheduler, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[tuple[str, list[int]]] = []
    guessing = SimpleNamespace(remember=lambda scope, token_ids: kept.append((scope, list(token_ids))))
    [sequence] = wait(scheduler, 2, max_tokens=9)
    scheduler.read_prompts()
    sequence.left, plan = 1, scheduler.plan()
    monkeypatch.setattr(scheduler._k_choice, "guessing", guessing)
    rows.slots.held = lambda row: [1, 1, *range(11, 22)]
    assert scheduler.advance(plan, a_round([5, 6, 7])) == [(1, "length")]
    assert kept == [(sequence.request.scope, list(range(11, 20)))], "all nine, and none of the three more"


def one_of(client: str, name: str) -> Any:
    return SimpleNamespace(request=SimpleNamespace(client=client, request_id=name))


def filled(most: int, *names: str) -> Waiting:
    """The client of each is its first letter; who finds no room leaves."""
    waiting = Waiting(most)
    for name in names:
        if waiting.has_room_for(name[0]):
            waiting.add(one_of(name[0], name))
    return waiting


def all_of(waiting: Waiting) -> list[str]:
    return [waiting.take().request.request_id for _ in range(len(waiting))]


def test_clients_take_turns_and_a_clients_own_come_in_their_order() -> None:
    assert all_of(filled(9, "a1", "a2", "a3", "b1", "c1", "b2")) == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_who_comes_later_waits_for_one_of_each_other_client() -> None:
    waiting = filled(9, "a1", "a2", "a3", "b1", "b2")
    assert waiting.take().request.request_id == "a1"
    waiting.add(one_of("c", "c1"))
    assert all_of(waiting) == ["b1", "a2", "c1", "b2", "a3"]


def test_what_is_put_back_is_next_again() -> None:
    waiting = filled(9, "a1", "a2", "b1", "a3")
    taken = [waiting.take() for _ in range(3)]
    for sequence in reversed(taken):
        waiting.put_back(sequence)
    assert all_of(waiting) == ["a1", "b1", "a2", "a3"]


def test_a_full_queue_lets_in_who_has_less_than_an_even_share_up_to_as_many_again() -> None:
    one = filled(4, *[f"a{n}" for n in range(6)])
    assert (len(one), one.has_room_for("b")) == (4, True)
    two = filled(4, *"aaaaa", *"bbb")
    assert (len(two), two.has_room_for("a"), two.has_room_for("b")) == (6, False, False)
    full = filled(4, *"aaaabbccdd")
    assert (len(full), full.has_room_for("e")) == (8, False)


@pytest.mark.parametrize("before", ["", "aaa", "aaaa", "bbb", "aabbcc"])
def test_there_is_room_for_several_where_there_is_for_each_after_the_other(before: str) -> None:
    for count in range(1, 9):
        waiting = filled(5, *before)
        told = waiting.has_room_for("a", count)
        for _ in range(count - 1):
            waiting.add(one_of("a", "more"))
        assert told == waiting.has_room_for("a"), count


def test_who_left_the_queue_has_no_turn_in_it() -> None:
    waiting = filled(9, "a1", "b1", "a2", "b2", "c1")
    assert [gone.request.request_id for gone in waiting.drop({"b1", "b2", "a1", "z9"})] == ["a1", "b1", "b2"]
    assert all_of(waiting) == ["a2", "c1"]
    assert not waiting
