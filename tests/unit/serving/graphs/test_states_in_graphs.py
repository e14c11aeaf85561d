"""What a target's graphs leave of its states is what a draft reads without them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hotdraft.pipeline.config.learning import PredistillConfig
from hotdraft.pipeline.models.loading import load_causal_lm
from hotdraft.serving.messages.request import SamplingParams
from hotdraft.serving.proposers.plan import ProposalPlan
from hotdraft.training.drafts.hidden_state_init import new_hidden_state_draft
from tests.models import save
from tests.unit.serving.decoders import GREEDY, PROMPTS, batch, load, start
from tests.unit.serving.graphs.recorded import RecordedGraphs
from tests.unit.serving.graphs.test_graphed_runner import DRAWN, counts, decoder


@pytest.mark.parametrize("params", [[GREEDY] * 4, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("target", ["tiny_target", "tiny_neox_target"])
def test_a_draft_reads_what_the_targets_graphs_leave_of_their_states(
    target: str, params: Sequence[SamplingParams], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    path = request.getfixturevalue(target)
    layers = load(path).config.num_hidden_layers
    states = PredistillConfig(hidden_states=[1, layers])
    draft = save(new_hidden_state_draft(load_causal_lm(path), states), tmp_path)
    graphs = RecordedGraphs()
    found: list[list[Any]] = []
    guesses = [(3,), (), (5, 6), ()]
    graphed = decoder(path, draft, graphs)
    for one in (graphed, decoder(path, draft)):
        assert one.round_graphs is None or one.round_graphs.record() is None
        start(one, PROMPTS)
        found.append([])
        for k in [4, 0, 2, 3] * 6:
            plans = [ProposalPlan.uniform(4, k)]
            if k == 3:
                plans = [ProposalPlan(guesses, [2] * 4), ProposalPlan(guesses, [2, 2, 0, 2])]
            for plan in plans:
                outcome = one.round(plan, batch(params), log=False)
                found[-1].append((outcome.token_ids.tolist(), outcome.proposed_ids.tolist()))
    assert found[0] == found[1]
    assert graphs.replays > graphs.captures > 0
    assert {(one.dropped, one.missed) for one in counts(graphed)} == {(0, 0)}
