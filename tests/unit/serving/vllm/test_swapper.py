"""A version serves on all workers or on none: no engine drafts with another one than the rest."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hotdraft.pipeline.models.adapter_folder import AdapterError
from hotdraft.serving.messages.events import RoundStats, SwapEvent
from hotdraft.serving.messages.request import GenerationRequest, RequestStats
from hotdraft.serving.updates.hot_swap import SwapError
from hotdraft.serving.updates.swapper import NotNowError
from hotdraft.serving.vllm.front import followed_engine
from hotdraft.serving.vllm.front import swapper as module
from hotdraft.serving.vllm.front.followed_engine import FollowedEngine, outer_id
from hotdraft.serving.vllm.front.swapper import StagedVersion, VllmSwapper
from hotdraft.serving.vllm.journal import UNKNOWN, Journal, JournalFollower


class Workers:
    """Two engines' workers, which answer in the journal as `WorkerPart` does."""

    def __init__(self, folder: Path) -> None:
        self.journals = {name: Journal(folder, name) for name in ("engine0", "engine1")}
        self.serves = dict.fromkeys(self.journals, 0)
        self.refuses: dict[str, set[tuple[str, int]]] = {name: set() for name in self.journals}
        """(method, version) that each does not do."""
        self.silent: set[str] = set()
        self.stuck: dict[str, int] = {}
        """What those serve then that cannot bring the old weights back."""
        self.called: list[tuple[Any, ...]] = []
        for journal in self.journals.values():
            journal.tell("attached", has_draft=True, version=0, records=True, problem=None)

    def call(self, method: str, *args: Any) -> None:
        self.called.append((method, *args))
        for name, journal in self.journals.items():
            if name in self.silent:
                continue
            refused = args and (method, args[0]) in self.refuses[name]
            if method == "hotdraft_stage" and refused:
                journal.tell("not_staged", version=args[0], kind="adapter", why="a rank of 4 was expected")
            elif method == "hotdraft_stage":
                journal.tell("staged", version=args[0])
            elif method == "hotdraft_commit" and refused:
                serves = self.serves[name] = self.stuck.get(name, self.serves[name])
                why = "the live draft's output is 0.4 from it"
                journal.tell("not_swapped", version=args[0], serves=serves, why=why)
            elif method == "hotdraft_commit":
                self.serves[name] = args[0]
                journal.tell("swapped", version=args[0], seconds=0.01 if name == "engine0" else 0.03, distance=0.0)


class Heard:
    def __init__(self) -> None:
        self.swaps: list[SwapEvent] = []
        self.finished: list[tuple[GenerationRequest, RequestStats]] = []

    def on_round(self, stats: RoundStats) -> None: ...

    def on_finish(self, request: GenerationRequest, stats: RequestStats, finish_reason: str) -> None:
        self.finished.append((request, stats))

    def on_swap(self, event: SwapEvent) -> None:
        self.swaps.append(event)


@pytest.fixture
def workers(tmp_path: Path) -> Workers:
    return Workers(tmp_path)


def followed(folder: Path, *engines: str) -> FollowedEngine:
    return FollowedEngine(JournalFollower(folder), engines=engines, k=2, num_slots=4, max_model_len=64)


@pytest.fixture
def engine(workers: Workers, tmp_path: Path) -> Iterator[FollowedEngine]:
    engine = followed(tmp_path, "engine0", "engine1")
    engine.listeners.append(Heard())
    engine.start()
    assert engine.drafting_workers == {"engine0", "engine1"}
    yield engine
    engine.stop()


def test_a_version_is_staged_everywhere_before_it_is_committed_anywhere(
    workers: Workers, engine: FollowedEngine, tmp_path: Path
) -> None:
    swapper = VllmSwapper(engine, workers.call)
    event = swapper.swap(swapper.stage(3, tmp_path), "promotion")
    assert [call[:2] for call in workers.called] == [("hotdraft_stage", 3), ("hotdraft_commit", 3)]
    assert workers.serves == {"engine0": 3, "engine1": 3}
    assert (event.version, event.previous_version, event.stall_seconds) == (3, 0, 0.03)
    assert swapper.live_version == engine.draft_version == 3
    heard = engine.listeners[0]
    assert isinstance(heard, Heard)
    assert [one.version for one in heard.swaps] == [3]


def test_what_one_worker_cannot_stage_is_committed_by_none(
    workers: Workers, engine: FollowedEngine, tmp_path: Path
) -> None:
    workers.refuses["engine1"].add(("hotdraft_stage", 3))
    swapper = VllmSwapper(engine, workers.call)
    with pytest.raises(AdapterError, match="a rank of 4 was expected"):
        swapper.stage(3, tmp_path)
    assert [call[0] for call in workers.called] == ["hotdraft_stage", "hotdraft_discard"]
    assert workers.serves == {"engine0": 0, "engine1": 0}


def test_engines_that_took_it_up_go_back_where_another_did_not(
    workers: Workers, engine: FollowedEngine, tmp_path: Path
) -> None:
    swapper = VllmSwapper(engine, workers.call)
    swapper.swap(swapper.stage(2, tmp_path), "promotion")
    workers.refuses["engine1"].add(("hotdraft_commit", 3))
    with pytest.raises(SwapError, match=r"engine1: the live draft's output is 0\.4"):
        swapper.swap(swapper.stage(3, tmp_path), "promotion")
    assert workers.serves == {"engine0": 2, "engine1": 2}
    assert swapper.live_version == 2


def test_as_long_as_not_all_are_back_nobody_claims_a_version(
    workers: Workers, engine: FollowedEngine, tmp_path: Path
) -> None:
    swapper = VllmSwapper(engine, workers.call)
    swapper.swap(swapper.stage(2, tmp_path), "promotion")
    workers.refuses["engine1"] |= {("hotdraft_commit", 3), ("hotdraft_commit", 2)}
    with pytest.raises(SwapError, match="engine1"):
        swapper.swap(swapper.stage(3, tmp_path), "promotion")
    assert swapper.live_version == engine.draft_version == UNKNOWN
    workers.refuses["engine1"].clear()
    event = swapper.swap(swapper.stage(2, tmp_path), "promotion")
    assert workers.serves == {"engine0": 2, "engine1": 2}
    assert (event.version, swapper.live_version) == (2, 2)


@pytest.mark.parametrize("can_go_back", [True, False])
def test_what_no_worker_could_take_back_is_not_claimed_to_serve_on(
    workers: Workers, engine: FollowedEngine, tmp_path: Path, can_go_back: bool
) -> None:
    swapper = VllmSwapper(engine, workers.call)
    for name, refuses in workers.refuses.items():
        workers.stuck[name] = UNKNOWN
        refuses |= {("hotdraft_commit", 3)} if can_go_back else {("hotdraft_commit", 3), ("hotdraft_commit", 0)}
    with pytest.raises(SwapError, match="engine0"):
        swapper.swap(swapper.stage(3, tmp_path), "promotion")
    expected = 0 if can_go_back else UNKNOWN
    assert swapper.live_version == engine.draft_version == expected
    assert [facts["version"] for facts in engine.workers.values()] == [expected, expected]


def test_a_call_that_fails_whatever_it_raises_leaves_it_open_which_version_serves(
    workers: Workers, engine: FollowedEngine, tmp_path: Path
) -> None:
    def call(method: str, *args: Any) -> None:
        workers.call(method, *args)
        if method == "hotdraft_commit":
            raise TimeoutError

    swapper = VllmSwapper(engine, call)
    staged = swapper.stage(3, tmp_path)
    with pytest.raises(TimeoutError):
        swapper.swap(staged, "promotion")
    assert swapper.live_version == UNKNOWN


def test_nothing_is_swapped_while_another_engine_would_draft_with_what_it_had(
    workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_engine, "ATTACH_SECONDS", 0.0)
    engine = followed(tmp_path, "engine0", "engine1", "engine2")
    engine.start()
    swapper = VllmSwapper(engine, workers.call)
    with pytest.raises(NotNowError, match="no worker of engine2 has a draft"):
        swapper.stage(3, tmp_path)
    late = Journal(tmp_path, "engine2-stage0-rank0")
    late.tell("attached", has_draft=True, version=0)
    while engine.silent_engines:
        pass
    engine.stop()
    assert (workers.called, swapper.live_version) == ([], 0)
    assert not engine.draftless_engines


def test_vllm_is_left_in_peace_while_it_sleeps(workers: Workers, engine: FollowedEngine, tmp_path: Path) -> None:
    asleep = True
    swapper = VllmSwapper(engine, workers.call, is_asleep=lambda: asleep)
    with pytest.raises(NotNowError, match="vLLM sleeps"):
        swapper.stage(3, tmp_path)
    asleep = False
    staged = swapper.stage(3, tmp_path)
    asleep = True
    with pytest.raises(NotNowError, match="vLLM sleeps"):
        swapper.swap(staged, "promotion")
    assert workers.serves == {"engine0": 0, "engine1": 0}
    assert swapper.live_version == 0


def test_a_draft_that_a_sleep_emptied_is_not_claimed_and_no_version_is_blamed_for_it(
    workers: Workers, engine: FollowedEngine, tmp_path: Path
) -> None:
    swapper = VllmSwapper(engine, workers.call)
    swapper.swap(swapper.stage(2, tmp_path), "promotion")
    for name, journal in workers.journals.items():
        journal.tell("emptied")
        workers.serves[name] = UNKNOWN
        workers.refuses[name].add(("hotdraft_commit", 2))
    while any(facts["version"] != UNKNOWN for facts in engine.workers.values()):
        pass
    assert swapper.live_version == UNKNOWN
    staged = swapper.stage(2, tmp_path)
    with pytest.raises(RuntimeError, match="engine0") as raised:
        swapper.swap(staged, "promotion")
    assert not isinstance(raised.value, SwapError)
    assert swapper.live_version == UNKNOWN
    for refuses in workers.refuses.values():
        refuses.clear()
    swapper.swap(swapper.stage(2, tmp_path), "promotion")
    assert swapper.live_version == 2


def test_without_a_worker_that_drafts_nothing_changes(tmp_path: Path) -> None:
    engine = followed(tmp_path, "engine0")
    swapper = VllmSwapper(engine, lambda *_: None)
    with pytest.raises(NotNowError, match="no worker of engine0"):
        swapper.swap(StagedVersion(3, tmp_path), "promotion")
    assert swapper.live_version == 0


def test_a_worker_that_says_nothing_of_a_commit_leaves_it_open_which_version_serves(
    workers: Workers, engine: FollowedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMMIT_SECONDS", 0.3)
    swapper = VllmSwapper(engine, workers.call)
    staged = swapper.stage(3, tmp_path)
    workers.silent.add("engine1")
    with pytest.raises(RuntimeError, match="no answer"):
        swapper.swap(staged, "promotion")
    assert swapper.live_version == UNKNOWN


def test_a_worker_that_says_nothing_is_named(
    workers: Workers, engine: FollowedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STAGE_SECONDS", 0.3)
    workers.silent.add("engine1")
    with pytest.raises(RuntimeError, match=r"engine1: no answer in 0\.3 s"):
        VllmSwapper(engine, workers.call).stage(3, tmp_path)


@pytest.mark.parametrize("temperature", [0.0, 1000.0])
def test_what_a_worker_counted_of_a_request_is_told_and_kept(
    workers: Workers, engine: FollowedEngine, temperature: float
) -> None:
    counts = {"prompt_tokens": 7, "completion_tokens": 5, "rounds": 3, "drafted_tokens": 6}
    workers.journals["engine1"].tell(
        "finished",
        id="chatcmpl-1-0a1b2c3d",
        domain="sql",
        client="c",
        temperature=temperature,
        seeded=False,
        recorded=True,
        dropped=2,
        left_out="store",
        began=0.0,
        examined_tokens=4,
        accepted_tokens=2,
        first_examined=3,
        first_accepted=1,
        draft_version=0,
        one_version=True,
        **counts,
    )
    while engine.counts_of("chatcmpl-1") is None:
        pass
    heard = engine.listeners[0]
    assert isinstance(heard, Heard)
    while not heard.finished and not engine.failures["journal"]:
        pass
    [(request, stats)] = heard.finished
    assert (request.domain, request.client, request.record) == ("sql", "c", False)
    assert (stats.examined_tokens, stats.accepted_tokens, stats.rounds) == (4, 2, 3)
    assert (stats.first_examined, stats.first_accepted) == (3, 1)
    assert (engine.recorded, engine.dropped, engine.problem) == (1, 2, None)
    assert engine.left_out == {"store": 1}


@pytest.mark.parametrize(
    ("worker_id", "answer_id"),
    [
        ("chatcmpl-98f9ebead20f52dc-b76f77a3", "chatcmpl-98f9ebead20f52dc"),
        ("1_chatcmpl-98f9ebead20f52dc-b76f77a3", "chatcmpl-98f9ebead20f52dc"),
        ("chatcmpl-my-own-3-b76f77a3", "chatcmpl-my-own-3"),
        ("cmpl-98f9ebead20f52dc-0-b76f77a3", "cmpl-98f9ebead20f52dc"),
        ("2_cmpl-98f9ebead20f52dc-10-b76f77a3", "cmpl-98f9ebead20f52dc"),
        ("resp_98f9ebead20f52dc_0-b76f77a3", "resp_98f9ebead20f52dc"),
        ("resp_98f9ebead20f52dc_12-b76f77a3", "resp_98f9ebead20f52dc"),
        ("anything", "anything"),
    ],
)
def test_counts_are_found_by_the_id_that_the_client_has(worker_id: str, answer_id: str) -> None:
    assert outer_id(worker_id) == answer_id


def test_an_event_that_cannot_be_understood_hides_no_swap_behind_it(
    workers: Workers, engine: FollowedEngine
) -> None:
    assert engine.failures == {"recording": 0, "journal": 0}, "an alert sees a rise from nought"
    journal = workers.journals["engine1"]
    journal.tell("finished", id="of a worker that tells nothing else")
    journal.tell("swapped", version=6, pause=0.0, previous=0)
    wait = time.monotonic() + 10
    while engine.workers["engine1"]["version"] != 6 and time.monotonic() < wait:
        time.sleep(0.01)
    assert engine.workers["engine1"]["version"] == 6
    assert engine.failures["journal"] == 1
