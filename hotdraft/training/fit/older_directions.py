"""Adapters that leave alone what older traffic goes through: a layer's inputs on it lie in few directions, and what
is orthogonal to these changes nothing there. An adapter that goes on learning keeps what it lets through already.

Gradient Projection Memory (Saha et al., 2021), for the first factor of a LoRA (InfLoRA: Liang and Li, 2024).
"""

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from lightning.pytorch.callbacks import Callback
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from transformers import PreTrainedModel

from hotdraft.training.batches.packing import PackedBatch
from hotdraft.training.scoring.forward import hidden_states

MOST = 2
"""One in so many directions of a layer's inputs, at most: the rest is for what is new."""


class OlderDirections(Callback):
    """Takes `directions` out of every step of an adapter's first factors."""

    def __init__(self, model: PeftModel, directions: Mapping[str, Tensor]) -> None:
        """`directions` are [I, D], orthonormal, by names of the modules that `model` adapts."""
        modules = model.get_base_model().named_modules()
        adapted = {name: module for name, module in modules if isinstance(module, LoraLayer)}
        factors = {name: module.lora_A["default"].get_parameter("weight") for name, module in adapted.items()}
        compute = next(model.get_base_model().parameters()).dtype  # as exact as what the draft's layers are given
        self._factors = [(factors[name], found.to(compute)) for name, found in directions.items()]
        self._before: list[Tensor] = []

    @torch.no_grad()
    def clear(self) -> None:
        """Take them out of the factors themselves, which changes nothing as long as the second ones are 0."""
        for factor, directions in self._factors:
            factor.sub_(_part(factor, directions))

    def on_train_batch_start(self, *_: object) -> None:
        self._before = [factor.detach().clone() for factor, _ in self._factors]

    @torch.no_grad()
    def on_train_batch_end(self, *_: object) -> None:
        for (factor, directions), before in zip(self._factors, self._before, strict=True):
            factor.sub_(_part(factor - before, directions))


@torch.no_grad()
def find_directions(
    model: PreTrainedModel, names: Sequence[str], batch: PackedBatch, count: int
) -> dict[str, Tensor]:
    """By module, the `count` directions [I, D] that hold most of its inputs on `batch`: fewer if it has few tokens,
    and a part of I at most.

    Of the modules of `model` whose names end in one of `names`; of one that is called more than once, at its last
    call. Raises `torch.linalg.LinAlgError` for inputs that are no numbers.
    """
    found: dict[str, Tensor] = {}
    last: list[Tensor] = [torch.empty(0), torch.empty(0)]

    def look(name: str, _: nn.Module, given: tuple[Tensor, ...]) -> None:
        if given[0] is not last[0]:  # modules side by side, as queries and keys, are given the same
            last[:] = given[0], _principal(given[0].flatten(0, -2).float(), count)
        found[name] = last[1]

    modules = {name: one for name, one in model.named_modules() if name.rsplit(".", 1)[-1] in names}
    hooks = [module.register_forward_pre_hook(partial(look, name)) for name, module in modules.items()]
    try:
        hidden_states(model, batch.on(model.device))
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _principal(inputs: Tensor, count: int) -> Tensor:
    """Directions [I, D] of inputs [T, I], by a randomised decomposition (Halko et al., 2011)."""
    rows, width = inputs.shape
    if not rows:  # an expert that nothing was sent to
        return inputs.new_zeros(width, 0)
    return torch.svd_lowrank(inputs, min(count, rows, width // MOST))[2]


def _part(rows: Tensor, directions: Tensor) -> Tensor:
    """What of rows [R, I] lies in `directions` [I, D], computed in their dtype."""
    return (rows.to(directions) @ directions) @ directions.T
