"""Rows that differ in length, in what they draft, and in where their keys lie."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor

from hotdraft.serving.models.native_runner import NativeRunner
from hotdraft.serving.models.runner import Window
from hotdraft.serving.native.bindings import CONFIDENCES
from tests.unit.serving.models.runner_kinds import INSTRUCTIONS, KINDS, MODELS, make, natively


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_different_lengths_are_computed_as_if_they_were_alone(kind: str, ids: Tensor) -> None:
    model, counts = make("llama"), [3, 0, 5]
    positions = torch.arange(5).expand(3, -1)
    with torch.inference_mode():
        ragged = KINDS[kind](copy.deepcopy(model)).forward(
            Window(slice(0, 3), positions, 32, torch.tensor(counts, dtype=torch.int32)), ids[:3, :5], 5
        )
        for row, count in enumerate(counts):
            if count:
                window = Window(slice(row, row + 1), positions[:1, :count], 32)
                alone = KINDS[kind](copy.deepcopy(model)).forward(window, ids[row : row + 1, :count], count)
                torch.testing.assert_close(ragged[row, :count], alone[0])


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_drafts_of_different_lengths_behind_different_rests_are_those_of_single_steps(
    instructions: str, ids: Tensor
) -> None:
    model, ks = make("qwen2"), [2, 0, 3]
    positions = torch.arange(4).expand(3, -1)
    with torch.inference_mode():
        runner = natively(instructions)(copy.deepcopy(model))
        assert isinstance(runner, NativeRunner)
        # of the last row all but one token have been read
        runner.forward(Window(slice(2, 3), positions[:1, :3], 32), ids[2:3, :3], 1)
        drafted, counts, _, sound, *_ = runner.draft_greedily(
            positions.numpy(), ids[:3, :4].numpy(), [4, 0, 1], ks, np.ones(CONFIDENCES), [0.0] * 3, 0
        )
        assert sound.all()
        assert counts.tolist() == ks
        stepping = natively(instructions)(copy.deepcopy(model))
        for row, k in enumerate(ks):
            fed, at = ids[row : row + 1, :4], positions[:1]
            for step in range(k):
                fed = stepping.forward(Window(slice(row, row + 1), at, 32), fed, 1).argmax(-1)
                at = torch.tensor([[4 + step]])
                assert drafted[row, step] == fed
            assert not drafted[row, k:].any()


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_a_draft_ends_where_it_is_not_sure_enough(instructions: str, ids: Tensor) -> None:
    model, positions = make("llama"), torch.arange(4)[None]
    with torch.inference_mode():
        whole = natively(instructions)(copy.deepcopy(model))
        stepping = natively(instructions)(copy.deepcopy(model))
        assert isinstance(whole, NativeRunner)
        rates, prompt = np.linspace(0.1, 0.9, CONFIDENCES), (positions.numpy(), ids[:1, :4].numpy())
        drafted, counts, confidences, _, others, chances = whole.draft_greedily(*prompt, [4], [6], rates, [0.0], 3)
        assert counts.tolist() == [6]
        fed, at, reached = ids[:1, :4], positions, 1.0
        for step in range(6):
            probs = stepping.forward(Window(slice(0, 1), at, 32), fed, 1).softmax(-1)
            chance, fed = probs.max(-1)
            at = torch.tensor([[4 + step]])
            assert drafted[0, step] == fed
            best = probs[0, 0].topk(4)
            assert others[0, step].tolist() == best.indices[1:].tolist()
            torch.testing.assert_close(torch.from_numpy(chances[0, step]), best.values)
            confidence = int(confidences[0, step])
            assert confidence == min(int(chance * CONFIDENCES), CONFIDENCES - 1)
            reached *= float(rates[confidence])
            again = whole.draft_greedily(*prompt, [4], [6], rates, [1.001 * reached], 0)
            assert again.num_drafted.tolist() == [step + 1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_whose_key_lies_elsewhere_sees_what_is_before_its_position(kind: str, ids: Tensor) -> None:
    """Two tokens at one position: neither sees the other, and the second may be brought to where the first is."""
    runner, alone = (KINDS[kind](make("qwen2")) for _ in range(2))
    prompt, first, second, following = ids[:1, :6], ids[:1, 6:7], ids[:1, 7:8], ids[:1, 8:9]

    def at(positions: list[int], keys: list[int] | None = None) -> Window:
        stored = None if keys is None else torch.tensor([keys])
        return Window(slice(0, 1), torch.tensor([positions]), 32, keys=stored)

    with torch.inference_mode():
        for one in (runner, alone):
            one.forward(at(list(range(6))), prompt, 1)
        both = runner.forward(at([6, 6], [6, 7]), torch.cat([first, second], 1), 2)
        torch.testing.assert_close(both[:, :1], alone.forward(at([6]), first, 1))
        torch.testing.assert_close(both[:, 1:], alone.forward(at([6]), second, 1))
        runner.move_keys(torch.tensor([7]), torch.tensor([6]))
        torch.testing.assert_close(runner.forward(at([7]), following, 1), alone.forward(at([7]), following, 1))


@pytest.mark.parametrize("model", ["llama", "heads of 80"])
@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_natively_a_token_beside_a_chain_is_computed_as_in_its_place_to_the_last_bit(
    dtype: torch.dtype, instructions: str, model: str, ids: Tensor
) -> None:
    runner, alone = (natively(instructions)(make(**MODELS[model]).to(dtype)) for _ in range(2))
    chain, beside = ids[0, 17:21], ids[0, 21:26]
    instead_of = [18, 19, 19, 20, 21]

    def window(positions: list[int], keys: list[int]) -> Window:
        return Window(slice(0, 1), torch.tensor([positions]), 32, keys=torch.tensor([keys]))

    with torch.inference_mode():
        for one in (runner, alone):
            one.forward(window(list(range(17)), list(range(17))), ids[:1, :17], 1)
        tree = window([*range(17, 21), *instead_of], list(range(17, 26)))
        logits = runner.forward(tree, torch.cat([chain, beside])[None], 9)[0]
        for token, position, found in zip(beside, instead_of, logits[4:], strict=True):
            path = [*chain[: position - 17], token]
            places = list(range(17, position + 1))
            assert torch.equal(alone.forward(window(places, places), torch.stack(path)[None], 1)[0, 0], found)


@pytest.mark.parametrize("keys", [None, [[5, 6, 7], [4, 5, 6]]])
@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_what_is_read_without_tensors_is_what_a_window_gives_to_the_last_bit(
    instructions: str, keys: list[list[int]] | None, ids: Tensor
) -> None:
    counts, positions = torch.tensor([3, 2], dtype=torch.int32), torch.tensor([[5, 6, 6], [4, 5, 0]])
    found = []
    for reads in (False, True):
        runner = natively(instructions)(make("llama"))
        assert isinstance(runner, NativeRunner)
        with torch.inference_mode():
            runner.forward(Window(slice(0, 2), torch.arange(5).expand(2, -1), 32), ids[:2, :5], 1)
            at = None if keys is None else torch.tensor(keys)
            if reads:
                told = (ids[:2, 5:8].contiguous(), positions, counts, *([] if at is None else [at]))
                arrays = [tensor.numpy() for tensor in told]
                found.append(torch.from_numpy(runner.read(*arrays, *([None] if at is None else []))))
            else:
                found.append(runner.forward(Window(slice(0, 2), positions, 32, counts, at), ids[:2, 5:8], 3))
    for row, count in enumerate(counts):
        assert torch.equal(found[0][row, :count], found[1][row, :count])
