"""Keys are handed from one request to another only while the weights that made them serve."""

import numpy as np
import pytest
import torch
from torch import Tensor

from hotdraft.serving.decoding.decoder import SpeculativeDecoder
from hotdraft.serving.models.fused_runner import FusedRunner
from hotdraft.serving.models.native_runner import NativeRunner
from hotdraft.serving.models.runner import Window
from hotdraft.serving.proposers.draft_model import DraftModel
from hotdraft.serving.proposers.plan import ProposalPlan
from tests.unit.serving.decoders import GREEDY, batch, make_decoder

PROMPT = list(range(1, 61))


def read(decoder: SpeculativeDecoder, row: int, prompt: list[int], chunk: int = 100, scope: str = "") -> None:
    decoder.load(row, prompt, scope=scope)
    while not decoder.prefill(row, chunk, with_proposer=True):
        pass


def swap(decoder: SpeculativeDecoder, seed: int) -> None:
    """Other weights, the same for each seed."""
    assert decoder.proposer is not None
    generator = torch.Generator().manual_seed(seed)
    with torch.inference_mode():
        for linear in decoder.proposer.runner.linears:
            weights = {n: 0.3 * torch.randn(w.shape, generator=generator) for n, w in linear.weights().items()}
            linear.install(linear.prepare(weights))
    decoder.proposer.weights_changed()


def drafted(decoder: SpeculativeDecoder, rows: int) -> list[list[int]]:
    outcome = decoder.round(ProposalPlan.uniform(rows, 4), batch([GREEDY] * rows), log=False)
    ids: list[list[int]] = outcome.proposed_ids[:, :4].tolist()
    return ids


def draft_keys(decoder: SpeculativeDecoder, row: int) -> Tensor:
    """Keys and values [layers, heads, positions, 2, 8] of the prompt that a row's rounds find read."""
    assert isinstance(decoder.proposer, DraftModel)
    runner, length = decoder.proposer.runner, decoder.slots.max_length
    if isinstance(runner, FusedRunner):
        kv = runner._kv[:, row].permute(0, 2, 3, 1, 4)
    else:
        assert isinstance(runner, NativeRunner)
        heads = runner._keys_values[row].view(torch.float32).view(len(runner.linears) // 4, 2, -1)
        keys = heads[..., : 8 * length].unflatten(-1, (-1, 8, 16)).transpose(-1, -2).flatten(2, 3)
        kv = torch.stack([keys, heads[..., 8 * length :].unflatten(-1, (length, 16))[..., :8]], 3)
    return kv[:, :, : len(PROMPT) - 2].clone()


def fresh_keys(target: str, draft: str, seed: int) -> Tensor:
    decoder = make_decoder(target, draft)
    swap(decoder, seed)
    read(decoder, 0, PROMPT)
    return draft_keys(decoder, 0)


def count_fed(decoder: SpeculativeDecoder) -> dict[str, int]:
    """Tokens fed to each model, from now on."""
    fed = {"target": 0, "proposer": 0}

    def counting(name: str) -> None:
        runner = getattr(decoder, name).runner
        forward = runner.forward

        def count(window: Window, ids: Tensor, keep: int) -> Tensor:
            fed[name] += ids.numel()
            logits: Tensor = forward(window, ids, keep)
            return logits

        runner.forward = count

    for name in fed:
        counting(name)
    return fed


@pytest.mark.parametrize("row", [0, 2], ids=["the same slot", "another"])
def test_a_prefix_is_read_anew_by_the_draft_after_a_swap_and_not_by_the_target(
    tiny_target: str, tiny_draft: str, row: int
) -> None:
    decoder = make_decoder(tiny_target, tiny_draft)
    swap(decoder, 1)
    read(decoder, 0, PROMPT)
    swap(decoder, 2)
    fed = count_fed(decoder)
    read(decoder, row, PROMPT)
    assert fed == {"target": 0, "proposer": len(PROMPT) - 2}
    torch.testing.assert_close(draft_keys(decoder, row), fresh_keys(tiny_target, tiny_draft, 2))
    read(decoder, 3, PROMPT)  # the new keys are as good as any
    assert fed == {"target": 0, "proposer": len(PROMPT) - 2}


def test_a_request_under_way_goes_on_with_its_keys_and_hands_none_of_them_on(
    tiny_target: str, tiny_draft: str
) -> None:
    """Half of the prompt was read before the swap: what comes behind builds on it."""
    decoder = make_decoder(tiny_target, tiny_draft)
    swap(decoder, 1)
    decoder.load(0, PROMPT)
    decoder.prefill(0, 30, with_proposer=True)
    swap(decoder, 2)
    fed = count_fed(decoder)
    decoder.prefill(0, 100, with_proposer=True)
    assert fed == {"target": len(PROMPT) - 1 - 30, "proposer": len(PROMPT) - 2 - 30}
    decoder.move(0, 1)
    read(decoder, 2, PROMPT)
    torch.testing.assert_close(draft_keys(decoder, 2), fresh_keys(tiny_target, tiny_draft, 2))


def test_keys_of_two_versions_are_not_those_of_the_first_when_it_comes_back(
    tiny_target: str, tiny_draft: str
) -> None:
    decoder = make_decoder(tiny_target, tiny_draft)
    swap(decoder, 1)
    decoder.load(0, PROMPT)
    decoder.prefill(0, 30, with_proposer=True)
    swap(decoder, 2)
    decoder.prefill(0, 100, with_proposer=True)
    swap(decoder, 1)
    read(decoder, 1, PROMPT)
    torch.testing.assert_close(draft_keys(decoder, 1), fresh_keys(tiny_target, tiny_draft, 1))


def test_a_discarded_slot_hands_nothing_on(tiny_target: str, tiny_draft: str) -> None:
    decoder = make_decoder(tiny_target, tiny_draft)
    read(decoder, 0, PROMPT)
    expected = drafted(decoder, 1)
    decoder.discard(0)
    assert not draft_keys(decoder, 0).any()
    fed = count_fed(decoder)
    read(decoder, 1, PROMPT)
    decoder.move(1, 0)
    assert fed == {"target": len(PROMPT) - 1, "proposer": len(PROMPT) - 2}
    assert drafted(decoder, 1) == expected


def test_what_may_be_reused(tiny_target: str, tiny_draft: str) -> None:
    decoder = make_decoder(tiny_target, tiny_draft)
    track = decoder.proposer
    assert track is not None
    for slot, length in enumerate((5, 20, 20, 20)):
        track.begin(slot, length)
    track.discard(2)
    assert track.reusable(np.array([9, 9, 9, 30])).tolist() == [5, 9, 0, 20]
    track.weights_changed()
    track.begin(1, 7)
    track.move(1, 3)
    assert track.reusable(np.array([9, 9, 9, 30])).tolist() == [0, 7, 0, 7]


def test_a_prompt_of_another_scope_is_read_anew(tiny_target: str, tiny_draft: str) -> None:
    """How soon a first token comes would tell what somebody else asked."""
    decoder = make_decoder(tiny_target, tiny_draft)
    read(decoder, 0, PROMPT, scope="one")
    decoder.move(0, 1)
    fed = count_fed(decoder)
    read(decoder, 0, PROMPT, scope="another")
    assert fed == {"target": len(PROMPT) - 1, "proposer": len(PROMPT) - 2}
    read(decoder, 2, PROMPT, scope="one")
    read(decoder, 3, PROMPT, scope="another")
    assert fed == {"target": len(PROMPT) - 1, "proposer": len(PROMPT) - 2}
