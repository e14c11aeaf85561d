"""A draft that reads its target's states: what it drafts is what its own definition says, whoever runs the two."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from hotdraft.pipeline.config.learning import PredistillConfig
from hotdraft.pipeline.models.hidden_state_draft import HiddenStateDraft, at_unit_size
from hotdraft.pipeline.models.layer_stack import layer_stack
from hotdraft.pipeline.models.loading import load_causal_lm
from hotdraft.serving.decoding.build import build_decoder
from hotdraft.serving.decoding.decoder import SpeculativeDecoder
from hotdraft.serving.models.native_runner import NativeRunner
from hotdraft.serving.proposers.plan import ProposalPlan
from hotdraft.serving.proposers.row_proposal import Alternative, RowProposal
from hotdraft.serving.sampling.alternatives import Alternatives
from hotdraft.serving.sampling.proposal import Proposal
from hotdraft.training.drafts.hidden_state_init import new_hidden_state_draft
from tests.models import save, tiny_llama, tiny_neox
from tests.unit.serving.decoders import GREEDY, PROMPTS, batch, greedy_reference, load, run, start
from tests.unit.serving.models.runner_kinds import INSTRUCTIONS

LAYERS = [1, 3, 4]
PAIRS = ["llama", "neox"]


@pytest.fixture(scope="module", params=PAIRS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Folders of a target and of a draft for it whose layer does something."""
    folder = tmp_path_factory.mktemp(request.param)
    target = tiny_llama(4, seed=5) if request.param == "llama" else tiny_neox(4, seed=5)
    draft = new_hidden_state_draft(target, PredistillConfig(hidden_states=LAYERS))
    torch.manual_seed(1)
    with torch.no_grad():
        for name, weight in draft.named_parameters():
            if "layers" in name or "fc" in name:
                weight.add_(0.2 * torch.randn_like(weight))
    return save(target, folder / "target"), save(draft, folder / "draft")


def make(pair: tuple[str, str], instructions: str, **options: object) -> SpeculativeDecoder:
    target, draft = map(load, pair)
    return build_decoder(
        target,
        draft,
        num_slots=len(PROMPTS),
        max_model_len=100,
        max_k=4,
        log_top_k=8,
        instructions=instructions,
        **options,  # type: ignore[arg-type]
    )


class Reference:
    def __init__(self, pair: tuple[str, str]) -> None:
        self.target = load_causal_lm(pair[0])
        draft = load_causal_lm(pair[1])
        assert isinstance(draft, HiddenStateDraft)
        self.draft = draft

    def states(self, tokens: list[int]) -> torch.Tensor:
        """[1, T, S] of all of `tokens`."""
        outputs: list[torch.Tensor] = []
        hooks = [
            layer_stack(self.target)[1][behind - 1].register_forward_hook(
                lambda _, __, output: outputs.append(output if isinstance(output, torch.Tensor) else output[0])
            )
            for behind in LAYERS
        ]
        with torch.no_grad():
            self.target(torch.tensor([tokens]))
        for hook in hooks:
            hook.remove()
        return torch.cat([at_unit_size(output) for output in outputs], -1)

    @torch.no_grad()
    def drafted(self, tokens: list[int], k: int, guess: tuple[int, ...] = ()) -> list[int]:
        """Each is what follows all before it, of which those proposed are known by the draft's own states."""
        states = torch.nn.functional.pad(self.states(tokens), (0, 0, 0, len(guess) + k))
        found = [*guess]
        for step in range(len(guess), len(guess) + k):
            ids = torch.tensor([tokens + found])
            made = self.draft.model(input_ids=ids, states=states[:, : ids.shape[1]], steps=step + 1)[0]
            found.append(int(self.draft.lm_head(made[step, -1]).argmax()))
        return found


def drafted(decoder: SpeculativeDecoder, k: int, guesses: list[tuple[int, ...]] | None = None) -> list[list[int]]:
    rows = len(PROMPTS)
    plan = ProposalPlan(guesses or [()] * rows, [k] * rows)
    proposal = decoder.propose(plan, batch([GREEDY] * rows))
    if isinstance(proposal, list):
        assert all(isinstance(row, RowProposal) for row in proposal)
        return [list(row.token_ids) for row in proposal]
    counts = proposal.num_drafted.tolist()
    return [ids[:count] for ids, count in zip(proposal.token_ids.tolist(), counts, strict=True)]


@pytest.mark.parametrize("instructions", ["none", *INSTRUCTIONS])
def test_it_drafts_what_its_definition_says(pair: tuple[str, str], instructions: str) -> None:
    """Behind prompts and behind what was accepted and rejected since, with other rows beside."""
    decoder, reference = make(pair, instructions), Reference(pair)
    start(decoder, PROMPTS)
    greedy = batch([GREEDY] * len(PROMPTS))
    for k in (3, 0, 2, 4, 0, 0, 3):
        held = [decoder.slots.held(row).tolist() for row in range(len(PROMPTS))]
        assert drafted(decoder, 4) == [reference.drafted(tokens, 4) for tokens in held]
        decoder.round(ProposalPlan.uniform(len(PROMPTS), k), greedy, log=False)


@pytest.mark.parametrize("instructions", ["none", *INSTRUCTIONS])
def test_it_goes_on_behind_guesses_by_its_own_states(pair: tuple[str, str], instructions: str) -> None:
    decoder, reference = make(pair, instructions), Reference(pair)
    start(decoder, PROMPTS)
    guesses: list[tuple[int, ...]] = [(7, 8, 9), (), (12,), (3, 1)]
    wanted = [
        [*guess, *reference.drafted(prompt, 2, guess)[len(guess) :]]
        for prompt, guess in zip(PROMPTS, guesses, strict=True)
    ]
    assert drafted(decoder, 2, guesses) == wanted
    assert drafted(decoder, 4) == [reference.drafted(prompt, 4) for prompt in PROMPTS], "guesses leave no trace"


@pytest.mark.parametrize("instructions", ["none", *INSTRUCTIONS])
def test_rows_that_only_guess_are_nothing_to_those_that_draft(pair: tuple[str, str], instructions: str) -> None:
    decoder, reference = make(pair, instructions), Reference(pair)
    start(decoder, PROMPTS)
    plan = ProposalPlan([(7, 8, 9, 4), (), (12,), (3, 1)], [0, 2, 2, 0])
    decoder.round(plan, batch([GREEDY] * len(PROMPTS)), log=False)
    held = [decoder.slots.held(row).tolist() for row in range(len(PROMPTS))]
    assert drafted(decoder, 4) == [reference.drafted(tokens, 4) for tokens in held]


@pytest.mark.parametrize("instructions", ["none", *INSTRUCTIONS])
def test_answers_are_the_targets(pair: tuple[str, str], instructions: str) -> None:
    decoder = make(pair, instructions, draft_vocabulary=torch.arange(0, 257, 2), max_alternatives=3)
    start(decoder, PROMPTS)
    assert run(decoder, [4, 0, 2, 1], batch([GREEDY] * len(PROMPTS)), len(PROMPTS)) == greedy_reference(
        pair[0], PROMPTS
    )


def in_numbers(wrong: int, right: int) -> list[RowProposal]:
    return [RowProposal([wrong, 5], 0, [Alternative(0, right)])]


def in_tensors(wrong: int, right: int) -> Proposal:
    beside = Alternatives(torch.tensor([[right]]), torch.tensor([[0]]), torch.tensor([[1]]))
    return Proposal(torch.tensor([[wrong, 5]]), torch.tensor([2]), None, torch.tensor([[True]]), None, beside)


@pytest.mark.parametrize("proposed", [in_numbers, in_tensors])
@pytest.mark.parametrize("instructions", ["none", *INSTRUCTIONS])
def test_a_second_choice_that_comes_leaves_its_own_states(
    pair: tuple[str, str], instructions: str, proposed: Callable[[int, int], Any]
) -> None:
    decoder, reference = make(pair, instructions, max_alternatives=3), Reference(pair)
    if proposed is in_numbers and not isinstance(decoder.target.runner, NativeRunner):
        pytest.skip("what torch computes is judged in tensors")
    decoder.load(0, PROMPTS[0])
    decoder.prefill(0, 100, with_proposer=True)
    with torch.no_grad():
        right = int(reference.target(torch.tensor([PROMPTS[0]])).logits[0, -1].argmax())
    decoder.propose = lambda *_: proposed(right ^ 1, right)  # type: ignore[method-assign]
    with torch.inference_mode():
        outcome = decoder.round(ProposalPlan.uniform(1, 0), batch([GREEDY]), log=False)
    assert outcome.num_new.tolist() == [2]
    kept = torch.from_numpy(decoder.states_of(0)).view(torch.bfloat16).float()
    assert len(kept) == len(PROMPTS[0]) + 1, "the second choice's among them"
    wanted = reference.states(decoder.slots.held(0).tolist())[0, : len(kept)]
    torch.testing.assert_close(kept.flatten(1), wanted.float(), atol=0.02, rtol=0.02)


@pytest.mark.parametrize("instructions", ["none", *INSTRUCTIONS])
def test_a_slot_that_is_moved_or_begins_as_another_did_has_its_states(
    pair: tuple[str, str], instructions: str
) -> None:
    decoder, reference = make(pair, instructions), Reference(pair)
    long, begun = list(range(60, 100)), [*range(60, 90), 3, 4]
    decoder.load(0, long)
    decoder.prefill(0, 100, with_proposer=True)
    decoder.move(0, 2)
    decoder.move(2, 3)
    decoder.load(0, [5, 5, 5])
    decoder.prefill(0, 100, with_proposer=True)
    decoder.load(1, begun)
    assert decoder.target.lengths[1] == 30
    decoder.prefill(1, 100, with_proposer=True)
    found = drafted(decoder, 3)
    assert found == [reference.drafted(tokens, 3) for tokens in ([5, 5, 5], begun, long, long)]
