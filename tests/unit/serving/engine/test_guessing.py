"""Answers help those that follow: no token is another, rounds are fewer, and whose answers helps whom is kept."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.loading import weights_id
from hotdraft.pipeline.models.names import ModelError
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.replay.sample import GUESSED, missed, tells_of_draft
from hotdraft.serving.decoding.choice import Choice, ProposalChoice
from hotdraft.serving.decoding.costs import RoundCosts
from hotdraft.serving.decoding.guessing import Guessing
from hotdraft.serving.decoding.learned_costs import RoundSetting
from hotdraft.serving.decoding.outlook import Outlook
from hotdraft.serving.engine.engine import Engine
from hotdraft.serving.engine.load import build_engine
from hotdraft.serving.messages.request import RequestStats
from hotdraft.serving.proposers.text_memory import TextMemory
from tests.unit.serving.clients import ask, greedy, request

PROMPT = (5, 6, 7, 8)
TOKENS = 40


class AllGuesses(ProposalChoice):
    """Proposes all that is guessed, and drafts one token behind it where there is a draft."""

    def choose(self, rows: Sequence[Outlook], setting: RoundSetting | None = None) -> Choice:
        room = [
            min(self.costs.most - len(row.guessed), row.most - len(row.guessed), len(row.drafted)) for row in rows
        ]
        return Choice([len(row.guessed) for row in rows], [min(1, left) for left in room])


def build(
    config: HotdraftConfig, buffer: ReplayBuffer | None = None, *, draft: bool = False, started: bool = True
) -> Engine:
    proposers = ["draft", "suffix"] if draft else ["suffix"]
    section = config.engine.model_copy(update={"k": "auto", "proposers": proposers, "num_slots": 1, "max_guess": 8})
    changes = {"engine": section, "draft": config.draft if draft else None}
    engine = build_engine(config.model_copy(update=changes), buffer)
    engine.k_choice.adaptive = AllGuesses(RoundCosts({1: [1.0] * 9}, {1: 0.1}), engine.decoder.max_k)
    if started:
        engine.start()
    return engine


@pytest.fixture
def engine(config: HotdraftConfig) -> Iterator[Engine]:
    engine = build(config)
    yield engine
    engine.stop()


def answered(engine: Engine, target: str, prompt: tuple[int, ...] = PROMPT, **changes: object) -> RequestStats:
    asked = replace(request("r", prompt, max_tokens=TOKENS), **changes)  # type: ignore[arg-type]
    client = ask(engine, asked)
    stats = client.wait().stats
    assert client.ids == greedy(target, prompt, TOKENS)
    return stats


def test_what_was_answered_before_takes_few_rounds(engine: Engine, tiny_target: str) -> None:
    first, second = (answered(engine, tiny_target) for _ in range(2))
    assert second.rounds < first.rounds
    assert second.rounds <= 2 + TOKENS / 8
    assert second.accepted_guesses > 0.8 * second.guessed_tokens > 0
    assert (second.drafted_tokens, second.examined_tokens, second.accepted_tokens) == (0, 0, 0)


@pytest.mark.parametrize(("asked", "helps"), [({}, True), ({"record": False}, False), ({"scope": "other"}, False)])
def test_an_answer_that_is_not_to_be_kept_or_is_anothers_helps_nobody(
    engine: Engine, tiny_target: str, asked: dict[str, object], helps: bool
) -> None:
    alone = answered(engine, tiny_target, **asked).rounds
    assert (answered(engine, tiny_target).rounds < alone) == helps


@pytest.mark.parametrize(
    ("target_id", "vocab_size", "scope", "helps"),
    [(None, 257, "", True), ("", 2, "", False), (None, 257, ":a salt", False), ("another", 257, "", False)],
    ids=["same", "of more tokens", "salted", "another target's"],
)
def test_a_restarted_server_begins_with_what_was_recorded(
    config: HotdraftConfig,
    tiny_target: str,
    tmp_path: object,
    target_id: str | None,
    vocab_size: int,
    scope: str,
    helps: bool,
) -> None:
    buffer = ReplayBuffer(str(tmp_path))
    engine = build(config, buffer)
    alone = answered(engine, tiny_target, scope=scope).rounds
    engine.stop()
    assert engine.recorder is not None
    engine.recorder.close()
    restarted = build(config)
    assert restarted.k_choice.guessing is not None
    recall = restarted.k_choice.guessing.recall
    target_id = weights_id(config.target) if target_id is None else target_id
    restarted.between_rounds(lambda: recall(ReplayBuffer(str(tmp_path)), target_id, vocab_size)).result()
    assert (answered(restarted, tiny_target).rounds < alone) == helps
    restarted.stop()


def test_a_buffer_that_cannot_be_read_is_no_reason_not_to_serve(caplog: pytest.LogCaptureFixture) -> None:
    class Away:
        def newest(self, count: int) -> "Away":
            return self

        def may_be_of(self, target_id: str) -> np.ndarray:
            return np.ones(3, bool)

        def table(self, rows: np.ndarray) -> None:
            raise OSError("away")

    class AwayAtOnce:
        def newest(self, count: int) -> None:
            raise OSError("away")

    for buffer in (Away(), AwayAtOnce()):
        caplog.clear()
        Guessing(TextMemory(1 << 16), 8).recall(buffer, "", 257)  # type: ignore[arg-type]
        assert "recorded answers are not guessed from" in caplog.text


def test_a_guess_is_no_miss_of_the_draft(config: HotdraftConfig, tiny_target: str, tmp_path: object) -> None:
    buffer = ReplayBuffer(str(tmp_path))
    engine = build(config, buffer, draft=True)
    stats = [answered(engine, tiny_target) for _ in range(2)][1]
    engine.stop()
    assert engine.recorder is not None
    engine.recorder.close()
    *_, (_, sample) = buffer.rows().read(range(2))
    drafted_ids, accepted = np.asarray(sample["drafted_ids"]), np.asarray(sample["accepted"])
    guessed = drafted_ids == GUESSED
    assert stats.accepted_guesses <= guessed.sum() <= stats.guessed_tokens
    assert not accepted[guessed].any()
    assert (drafted_ids >= 0).sum() == stats.examined_tokens
    assert accepted.sum() == stats.accepted_tokens
    assert not missed(drafted_ids, accepted)[guessed].any()


def test_what_follows_a_guess_is_no_miss_and_a_plain_token_is() -> None:
    drafted = np.array([GUESSED, GUESSED, -1, -1, 7, 8, -1])
    accepted = np.array([False, False, False, False, True, False, False])
    assert missed(drafted, accepted).tolist() == [False, False, False, True, False, True, True]


def test_a_fixed_k_is_the_drafts_alone(config: HotdraftConfig, tiny_target: str) -> None:
    engine = build_engine(config, None)
    engine.start()
    stats = [answered(engine, tiny_target) for _ in range(2)][1]
    engine.stop()
    assert stats.guessed_tokens == 0
    assert stats.drafted_tokens == 2 * stats.rounds


def test_a_draft_that_nobody_may_ask_is_refused(config: HotdraftConfig) -> None:
    section = config.engine.model_copy(update={"proposers": ["suffix"]})
    with pytest.raises(ModelError, match=r"engine\.proposers leaves the draft out: set draft to null"):
        build_engine(config.model_copy(update={"engine": section}), None)


def test_a_fixed_k_says_nothing_of_what_a_draft_saves(config: HotdraftConfig) -> None:
    engine = build(config, draft=True)
    for _ in range(40):
        engine.k_choice.ended(saved=0.02, reading=0.006, at_once=1)
    engine.k_choice.k = 2
    for _ in range(40):
        engine.k_choice.ended(saved=0.0, reading=0.006, at_once=1)
    engine.k_choice.k = "auto"
    assert all(engine.k_choice.is_drafted(1) for _ in range(24))
    engine.stop()


def test_a_prompt_that_the_draft_has_not_read_is_answered_without_it(
    config: HotdraftConfig, tiny_target: str
) -> None:
    engine = build(config, draft=True)
    for _ in range(8):
        engine.k_choice.is_drafted(1)
        engine.k_choice.ended(saved=0.0, reading=100.0, at_once=1)
    drafted = [answered(engine, tiny_target, (9, 9, 8, 7 + number)).drafted_tokens for number in range(16)]
    engine.stop()
    assert sum(count > 0 for count in drafted) == 2


@pytest.mark.parametrize("recorded", [True, False])
def test_what_the_draft_is_worth_is_still_seen_where_text_guesses_all(
    config: HotdraftConfig, tiny_target: str, tmp_path: object, recorded: bool
) -> None:
    engine = build(config, ReplayBuffer(str(tmp_path)) if recorded else None, draft=True)
    engine.k_choice.adaptive = ProposalChoice(RoundCosts({1: [1.0, 1.0, 1.0]}, {1: 0.1}), engine.decoder.max_k)
    stats = [answered(engine, tiny_target) for _ in range(60)][4:]
    engine.stop()
    told = [tells_of_draft(each.examined_tokens, each.completion_tokens) for each in stats]
    assert any(told) == recorded
    assert sum(told) <= len(told) / 2
    assert all(each.guessed_tokens == 0 for each, tells in zip(stats, told, strict=True) if tells)


def test_a_guess_of_before_k_was_set_teaches_nothing(config: HotdraftConfig) -> None:
    engine = build(config, started=False)
    plans, plan = [], engine.scheduler.plan
    engine.scheduler.plan = lambda: plans.append(plan()) or plans[-1]  # type: ignore[func-returns-value,method-assign]
    ask(engine, request("r", (1, 2, 3, 1, 2), max_tokens=TOKENS))
    engine.step()
    assert plans[0].guesses[0].token_ids
    [sequence] = engine.scheduler.running
    of_guesses = sequence.estimates.guessed
    assert of_guesses is not None
    engine.k = 0
    engine.step()
    before = of_guesses.rates()
    engine.step()
    assert of_guesses.rates().tolist() == before.tolist()
    engine.stop()
