"""A draft in training reads of each request what the target's layers make of it: once, and in bounded memory."""

import copy
from pathlib import Path

import pytest
import torch

from hotdraft.pipeline.config.learning import PredistillConfig
from hotdraft.pipeline.models.hidden_state_draft import HiddenStateDraft, at_unit_size
from hotdraft.pipeline.models.layer_stack import layer_stack
from hotdraft.pipeline.models.loading import load_causal_lm
from hotdraft.pipeline.system.array_ring import ArrayRing
from hotdraft.training.drafts.hidden_state_init import new_hidden_state_draft
from hotdraft.training.scoring.target_reader import TargetReader, give_target, target_given
from tests.models import save, tiny_llama, tiny_neox

REQUESTS = [[5, 6, 7], list(range(10, 50)), [9, 9, 9, 1]]
BEHIND = [1, 3]


@pytest.fixture(scope="module", params=[tiny_llama, tiny_neox])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(request.param(3, seed=1), tmp_path_factory.mktemp("target"))


def draft_of(target: str) -> HiddenStateDraft:
    draft = new_hidden_state_draft(load_causal_lm(target), PredistillConfig(hidden_states=BEHIND))
    assert isinstance(draft, HiddenStateDraft)
    return draft


def read(states: TargetReader, *requests: list[int]) -> list[torch.Tensor]:
    lengths = [len(tokens) for tokens in requests]
    packed = torch.tensor([[token for tokens in requests for token in tokens]])
    return list(states(packed, lengths)[0].split(lengths))


@torch.no_grad()
def alone(target: str, tokens: list[int]) -> torch.Tensor:
    """Oracle: transformers' own layers over one request."""
    model, found = load_causal_lm(target), []
    for behind in BEHIND:
        layer_stack(model)[1][behind - 1].register_forward_hook(
            lambda _, __, output: found.append(output if isinstance(output, torch.Tensor) else output[0])
        )
    model(torch.tensor([tokens]))
    return at_unit_size(torch.cat(found)).float().transpose(0, 1).flatten(1)


def test_packed_requests_have_the_states_that_each_has_alone(target: str) -> None:
    for states, tokens in zip(read(TargetReader(target, draft_of(target)), *REQUESTS), REQUESTS, strict=True):
        torch.testing.assert_close(states.float(), alone(target, tokens), atol=0.02, rtol=0.01)


def test_a_request_is_read_once_and_what_was_not_asked_for_longest_is_forgotten(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 2 * draft_of(target).config.state_size  # bytes of a token's states
    states = TargetReader(target, draft_of(target), most_bytes=size * 48)
    counted: list[int] = []
    real = TargetReader._read
    monkeypatch.setattr(TargetReader, "_read", lambda self, asked: counted.append(len(asked)) or real(self, asked))
    first = read(states, *REQUESTS)  # 47 tokens
    assert all(torch.equal(a, b) for a, b in zip(read(states, *REQUESTS), first, strict=True))
    read(states, REQUESTS[0])
    assert counted == [3]
    read(states, [1, 2, 3, 4])  # leaves no room for the longest one
    read(states, REQUESTS[0])
    assert counted == [3, 1]
    assert torch.equal(read(states, REQUESTS[1])[0], first[1])
    assert counted == [3, 1, 1]


def test_copies_read_the_same_target_and_other_drafts_none(target: str, tiny_draft: str) -> None:
    draft = draft_of(target)
    assert target_given(draft) is None
    give_target(draft, target)
    assert copy.deepcopy(draft).model.read_target is draft.model.read_target
    assert target_given(draft) == target
    plain = load_causal_lm(tiny_draft)
    give_target(plain, target)
    assert target_given(plain) is None


def test_what_is_saved_comes_back(target: str, tmp_path: Path) -> None:
    draft = draft_of(target)
    give_target(draft, target)
    ids = torch.tensor([REQUESTS[1]])
    before = draft(input_ids=ids).logits
    draft.save_pretrained(tmp_path)
    again = load_causal_lm(str(tmp_path))
    give_target(again, target)
    torch.testing.assert_close(again(input_ids=ids).logits, before)


def test_what_a_server_left_is_taken_if_it_is_whole(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, draft = [5, 6, 7], draft_of(target)
    key = torch.tensor(tokens).numpy().tobytes()
    left = torch.ones(3, draft.config.state_size, dtype=torch.bfloat16)
    ring = ArrayRing(tmp_path / "ring", 10_000)
    own = read(TargetReader(target, draft), tokens)[0]
    for spoiled in (left[:2], left * torch.nan):
        ring.put(key, spoiled.view(torch.uint16).numpy())
        assert torch.equal(read(TargetReader(target, draft, ring), tokens)[0], own)
    ring.put(key, left.view(torch.uint16).numpy())
    monkeypatch.setattr(TargetReader, "_loaded", lambda self: pytest.fail("the target was asked"))
    assert torch.equal(read(TargetReader(target, draft, ring), tokens)[0], left)
