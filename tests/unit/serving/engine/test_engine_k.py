"""k may be anything, chosen by anybody, changed at any time: it changes no token."""

import time
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.names import ModelError
from hotdraft.serving.decoding.choice import Choice, ProposalChoice
from hotdraft.serving.decoding.costs import RoundCosts
from hotdraft.serving.decoding.learned_costs import RoundSetting
from hotdraft.serving.decoding.outlook import Outlook
from hotdraft.serving.decoding.rounds import RoundSeconds
from hotdraft.serving.engine.engine import Engine
from hotdraft.serving.engine.load import build_engine
from hotdraft.serving.messages.events import RoundStats
from hotdraft.serving.proposers.plan import ProposalPlan
from tests.unit.serving.clients import ask, greedy, request


class Ks:
    """A listener that notes every round and k, and what became of second choices."""

    def __init__(self) -> None:
        self.rounds: list[RoundStats] = []
        self.seen: set[int] = set()
        self.read = self.came = 0

    def on_round(self, stats: RoundStats) -> None:
        self.rounds.append(stats)
        self.seen.add(stats.k)
        self.read += stats.alternatives
        self.came += stats.accepted_alternatives

    def on_finish(self, *_: object) -> None: ...

    def on_swap(self, *_: object) -> None: ...


class Fixed(ProposalChoice):
    """Learns no costs, but notes what it was told."""

    def __init__(self, costs: RoundCosts, max_k: int | None = None) -> None:
        super().__init__(costs, max_k or costs.most)
        self.told: list[tuple[RoundSetting, int, float]] = []

    def observe(
        self, setting: RoundSetting, num_read: Sequence[int], drafted: Sequence[int], seconds: RoundSeconds
    ) -> None:
        self.told.append((setting, max(num_read), seconds.total))


def test_every_round_tells_what_it_cost(config: HotdraftConfig) -> None:
    engine = build_engine(
        config.model_copy(update={"engine": config.engine.model_copy(update={"k": "auto", "max_k": 4})}), None
    )
    engine.start()
    engine.k_choice.adaptive = told = Fixed(RoundCosts({1: [1.0, 1.1, 1.2, 1.3, 1.4]}, {1: 0.1}))
    for name, params in {
        "greedy": {},
        "hot": {"temperature": 1.0, "top_p": 0.9},
        "seeded": {"temperature": 1.0, "seed": 2},
    }.items():
        ask(engine, request(name, (1, 2, 3, 4), max_tokens=20, **params)).wait()
    engine.stop()
    settings = [setting for setting, _, _ in told.told]
    assert len({setting.kind for setting in settings}) == 3
    assert {setting.rows for setting in settings} == {1}
    assert {setting.context for setting in settings} <= set(range(4, 25))
    assert min(seconds for _, _, seconds in told.told) > 0
    assert {k for _, k, _ in told.told} <= set(range(5))


def test_more_slots_than_memory_is_said_of_the_keys_that_ask_for_it(
    config: HotdraftConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def zeros(*sizes: int, **kind: object) -> torch.Tensor:
        raise RuntimeError(f"DefaultCPUAllocator: can't allocate memory: you tried to allocate {sizes[0]} bytes.")

    monkeypatch.setattr("hotdraft.serving.models.slots.torch.zeros", zeros)
    with pytest.raises(ModelError, match=r"no memory for engine\.num_slots \d+ of engine\.max_model_len"):
        build_engine(config, None)


@pytest.mark.slow
@pytest.mark.parametrize("draft", ["other", "itself"])
def test_adaptive_k_changes_no_token(config: HotdraftConfig, tiny_target: str, draft: str) -> None:
    changes: dict[str, object] = {"engine": config.engine.model_copy(update={"k": "auto", "max_k": 3})}
    if draft == "itself":
        changes["draft"] = tiny_target
    engine = build_engine(config.model_copy(update=changes), None)
    assert engine.k == "auto"
    heard = Ks()
    engine.listeners.append(heard)
    engine.start()
    # costs as a large pair has them: of a tiny one drafting is as dear as verifying
    engine.k_choice.adaptive = Fixed(
        RoundCosts({1: [1.0, 1.1, 1.2, 1.3], 3: [1.2, 1.4, 1.6, 1.8]}, {1: 0.1, 3: 0.1})
    )
    prompts = [tuple(range(1, 2 + 5 * n)) for n in range(7)]
    clients = [ask(engine, request(f"r{n}", p, max_tokens=10 + 12 * n)) for n, p in enumerate(prompts)]
    for n, (prompt, client) in enumerate(zip(prompts, clients, strict=True)):
        stats = client.wait().stats
        assert client.ids == greedy(tiny_target, prompt, 10 + 12 * n)
        assert stats.accepted_tokens <= stats.examined_tokens <= stats.drafted_tokens
        if draft == "itself":
            assert stats.accepted_tokens >= stats.completion_tokens / 2, "unsure of itself, it drafts one token"
    engine.stop()
    assert heard.seen <= {0, 1, 2, 3}
    assert len(heard.seen) > 1
    assert (3 in heard.seen) or draft == "other"


def test_no_more_is_read_than_was_measured(config: HotdraftConfig) -> None:
    """Where text is guessed, a greedy draft may draft as much as it is sure of, and second choices stand beside."""
    section = config.engine.model_copy(update={"k": "auto", "max_k": 4, "max_guess": 8, "max_alternatives": 4})
    engine = build_engine(config.model_copy(update={"engine": section}), None)
    choice = engine.k_choice
    verifying = [1.0, 1.01, 1.02, 1.03, 1.04, 1.05, 1.06, 1.07, 1.08]
    setting = RoundSetting(1, 20, (False,))
    for guesses in range(9):
        choice.adaptive = adaptive = ProposalChoice(RoundCosts({1: verifying}, {1: 0.05}), 4, 8)
        row = Outlook(np.full(guesses, 0.9), np.array([0.9, 0.7, 0.3, 0.2]), 99, alternatives=np.full(4, 0.2))
        adaptive.choose([row])
        plan = choice.choose([row], [tuple(range(guesses))], setting)
        read = plan.num_proposed[0] + (plan.alternatives or [0])[0]
        assert read <= 8
        adaptive.observe(setting, [8.6], plan.drafted, RoundSeconds(0.1, 1.0))
    engine.stop()


def test_a_row_that_is_drafted_alone_never_waits_in_a_rest(config: HotdraftConfig) -> None:
    section = config.engine.model_copy(update={"k": "auto", "proposers": ["draft"]})
    engine = build_engine(config.model_copy(update={"engine": section}), None)
    choice, setting = engine.k_choice, RoundSetting(1, 20, (True,))
    choice.adaptive = ProposalChoice(RoundCosts({1: [1.0] * 9}, {1: 9.0}), 4)
    others, alone = (Outlook(np.empty(0), np.full(4, 0.1), 99, is_alone) for is_alone in (False, True))
    assert choice.choose([others], [()], setting).drafted == [0]
    assert choice.choose([alone], [()], setting).drafted[0] > 0
    engine.stop()


def test_a_round_of_rows_that_draft_unlike_numbers_is_told_as_it_was(
    config: HotdraftConfig, tiny_target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a draft that is its target, so that all is accepted."""
    engine = build_engine(config.model_copy(update={"draft": tiny_target}), None)  # the test takes the steps
    uneven = ProposalPlan([()] * 3, [2, 0, 1])
    monkeypatch.setattr(engine.k_choice, "caught_up", lambda plan: uneven)
    engine.listeners.append(heard := Ks())
    for n in range(3):
        ask(engine, request(f"r{n}", max_tokens=20))
    engine.step()
    engine.stop()
    [stats] = heard.rounds
    assert (stats.k, stats.drafts, stats.proposed_tokens, stats.accepted_tokens) == (2, 2, 3, 3)
    assert (stats.accepted_per_position, stats.new_tokens) == ((2, 1), 6)


def test_where_nothing_pays_it_is_not_asked_in_every_round(config: HotdraftConfig, tiny_target: str) -> None:
    class Asked(Fixed):
        count = 0

        def choose(self, rows: Sequence[Outlook], setting: RoundSetting | None = None) -> Choice:
            self.count += 1
            return super().choose(rows, setting)

    section = config.engine.model_copy(update={"k": "auto", "max_k": 4, "proposers": ["draft"]})
    asked = {}
    for draft_step in (9.0, 0.001):
        engine = build_engine(config.model_copy(update={"engine": section}), None)
        engine.start()
        engine.k_choice.adaptive = told = Asked(RoundCosts({1: [1.0] * 9}, {1: draft_step}), 4)
        ask(engine, request("r", max_tokens=40)).wait()
        engine.stop()
        asked[draft_step] = told.count, len(told.told)
    assert asked[9.0] == (10, 40), "one round in four"
    assert asked[0.001][0] > 30, "as long as something is drafted, in each"


def test_second_choices_give_tokens_and_change_none(config: HotdraftConfig, tiny_target: str) -> None:
    """Where it costs nothing to read them."""
    section = config.engine.model_copy(
        update={"k": "auto", "max_k": 2, "max_alternatives": 8, "proposers": ["draft"]}
    )
    engine = build_engine(config.model_copy(update={"engine": section}), None)
    heard = Ks()
    engine.listeners.append(heard)
    engine.start()
    engine.k_choice.adaptive = Fixed(RoundCosts({1: [1.0] * 11}, {1: 0.001}), 2)
    for n in range(3):
        prompt = tuple(range(1, 2 + 5 * n))
        client = ask(engine, request(f"r{n}", prompt, max_tokens=60))
        client.wait()
        assert client.ids == greedy(tiny_target, prompt, 60)
    engine.stop()
    assert heard.read > heard.came > 0


@pytest.mark.slow
def test_a_seed_gives_the_same_text_with_any_k(config: HotdraftConfig, tiny_target: str) -> None:
    prompts = [tuple(range(1, 2 + 5 * n)) for n in range(4)]
    params = [{"temperature": 0.9}, {"temperature": 1.2, "top_p": 0.8}, {"frequency_penalty": 0.5}, {"top_k": 30}]
    texts = []
    for k, draft in [(0, None), (1, config.draft), (2, tiny_target), ("auto", config.draft), ("auto", tiny_target)]:
        section = config.engine.model_copy(update={"k": k})
        engine = build_engine(config.model_copy(update={"engine": section, "draft": draft}), None)
        engine.start()
        clients = [
            ask(engine, request(f"r{n}", prompt, max_tokens=40, seed=5 + n, **more))
            for n, (prompt, more) in enumerate(zip(prompts, params, strict=True))
        ]
        for client in clients:
            client.wait()
        engine.stop()
        texts.append([client.ids for client in clients])
    assert all(each == texts[0] for each in texts)


def test_k_may_change_at_any_time(engine: Engine, tiny_target: str) -> None:
    clients = [ask(engine, request(f"r{n}", max_tokens=100)) for n in range(3)]
    turn = 0
    while not all(client.done.is_set() for client in clients):
        engine.k = (0, 2, 1)[turn % 3]
        turn += 1
        time.sleep(0.005)
    expected = greedy(tiny_target, (1, 2, 3), 100)
    assert [client.ids for client in clients] == [expected] * 3


def test_a_k_that_cannot_be_is_refused(config: HotdraftConfig) -> None:
    engine = build_engine(config, None)
    for k in (3, -1):
        with pytest.raises(ValueError, match=f"between 0 and 2, not {k}"):
            engine.k = k
    with pytest.raises(ValueError, match="costs of rounds were measured"):
        engine.k = "auto"
    assert engine.k == 2
    engine.k_choice.measure_costs()
    engine.k = "auto"
    assert engine.k == "auto"
    alone = build_engine(config.model_copy(update={"draft": None}), None)
    assert alone.k == 0
    with pytest.raises(ValueError, match="between 0 and 0"):
        alone.k = 1
    for built in (engine, alone):
        built.stop()
