"""Whatever mix of guesses, drafts and second choices a round proposes, a client sees what plain decoding gives."""

import random
from collections.abc import Sequence

import pytest
import torch

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.loading import load_causal_lm
from hotdraft.serving.decoding.choice import Choice, ProposalChoice
from hotdraft.serving.decoding.costs import RoundCosts
from hotdraft.serving.decoding.learned_costs import RoundSetting
from hotdraft.serving.decoding.outlook import Outlook
from hotdraft.serving.decoding.rounds import RoundSeconds
from hotdraft.serving.engine.load import build_engine
from hotdraft.serving.messages.events import RoundStats
from hotdraft.serving.messages.request import GenerationRequest, SamplingParams
from tests.models import disturbed
from tests.unit.serving.clients import Client, ask


class AnyMix(ProposalChoice):
    """Proposes anything that a row may."""

    def __init__(self, costs: RoundCosts) -> None:
        super().__init__(costs, max_k=4, most_proposed=8)
        self._random = random.Random(1)

    def choose(self, rows: Sequence[Outlook], setting: RoundSetting | None = None) -> Choice:
        choice = Choice([], [], [0.0] * len(rows), [])
        for row in rows:
            guessed = self._up_to(min(len(row.guessed), row.most))
            drafted = self._up_to(min(len(row.drafted), row.most - guessed, self.most_proposed - guessed))
            choice.guessed.append(guessed)
            choice.drafted.append(drafted)
            assert choice.alternatives is not None
            choice.alternatives.append(self._up_to(min(len(row.alternatives), self.costs.most - guessed - drafted)))
        return choice

    def observe(
        self, setting: RoundSetting, num_read: Sequence[int], drafted: Sequence[int], seconds: RoundSeconds
    ) -> None: ...

    def _up_to(self, most: int) -> int:
        return self._random.randint(0, max(most, 0))


class Counted:
    read = came = 0

    def on_round(self, stats: RoundStats) -> None:
        self.read += stats.alternatives
        self.came += stats.accepted_alternatives

    def on_finish(self, *_: object) -> None: ...
    def on_swap(self, *_: object) -> None: ...


def odd_requests(count: int, longest: int) -> list[GenerationRequest]:
    """Of any length up to all that fits, some of them repeating themselves, with any parameters."""
    random_ = random.Random(5)

    def now_and_then(**params: object) -> dict[str, object]:
        return params if random_.random() < 0.25 else {}

    requests = []
    for number in range(count):
        length = random_.choice([1, 2, 5, 20, longest - 40, longest - 3])
        repeated = [*range(5, 15)] * (length // 10 + 1)
        prompt = random_.choice([repeated, random_.choices(range(3, 200), k=length)])[:length]
        params = {
            "max_tokens": min(random_.choice([1, 2, 3, 17, 40, 100]), longest - length),
            "temperature": random_.choice([0.0, 0.7, 1.3]),
            "seed": number,
            **now_and_then(top_p=0.9),
            **now_and_then(presence_penalty=1.0, frequency_penalty=0.5),
            **now_and_then(logit_bias=((7, 5.0), (9, -50.0))),
            **now_and_then(logprobs=2),
            **now_and_then(ignore_eos=True),
            **now_and_then(stop=("ab", "c")),
        }
        requests.append(GenerationRequest(f"r{number}", tuple(prompt), SamplingParams(**params)))
    return requests


def seen(client: Client) -> tuple[object, ...]:
    logprobs = [each.token_id for delta in client.deltas for each in delta.logprobs or ()]
    return client.ids, client.text, logprobs, client.deltas[-1].finish_reason


@pytest.mark.slow
def test_any_mix_of_proposals_is_seen_by_nobody(config: HotdraftConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str, **kind: object) -> object:
        if name != config.draft:
            return load_causal_lm(name, **kind)
        with torch.no_grad():
            return disturbed(load_causal_lm(config.target, **kind), 0.05)

    monkeypatch.setattr("hotdraft.serving.engine.load.load_causal_lm", load)
    requests = odd_requests(60, config.engine.max_model_len)
    answers = []
    for k in (0, "auto"):
        changes = {"k": k, "max_alternatives": 8, "num_slots": 5, "max_queue": 100}
        engine = build_engine(config.model_copy(update={"engine": config.engine.model_copy(update=changes)}), None)
        counted = Counted()
        engine.listeners.append(counted)
        engine.start()
        if engine.k_choice.adaptive is not None:
            engine.k_choice.adaptive = AnyMix(engine.k_choice.adaptive.costs)
            monkeypatch.setattr(engine.k_choice, "is_drafted", lambda at_once: True)
        clients = [ask(engine, request) for request in requests]
        for client in clients:
            client.wait()
        answers.append([seen(client) for client in clients])
        engine.stop()
        assert not any(engine.failures.values())
    assert answers[0] == answers[1]
    assert counted.read > counted.came > 10, "the check has teeth"
