"""In what form a model's weights are served, and by which runner."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hotdraft.pipeline.models.names import ModelError
from hotdraft.serving.models.fused_runner import FusedRunner
from hotdraft.serving.models.hidden_states.runner import HiddenStateRunner
from hotdraft.serving.models.hidden_states.target_states import TargetStates
from hotdraft.serving.models.linear import ServedLinear
from hotdraft.serving.models.llama_like import is_llama_like
from hotdraft.serving.models.native_runner import NativeRunner, why_not_native
from hotdraft.serving.models.runner import Runner
from hotdraft.serving.models.transformers_runner import TransformersRunner
from hotdraft.serving.models.trimmed_head import TrimmedHead
from hotdraft.serving.native.bindings import Format, NativeError, ThreadPool, find_instructions, supports
from hotdraft.serving.native.linear import NativeLinear
from hotdraft.serving.native.memory import WeightMemory


@dataclass(frozen=True)
class TorchForm:
    """Weights as torch's own operators take them."""

    why_not_native: str = field(compare=False)

    def linear(self, weights: Mapping[str, Tensor], bias: Tensor | None) -> ServedLinear:
        return ServedLinear(weights, bias)

    def runner(
        self,
        model: PreTrainedModel,
        head: nn.Module,
        num_slots: int,
        max_length: int,
        states: TargetStates | None = None,
    ) -> Runner:
        if states is not None:
            return HiddenStateRunner(model, head, num_slots, max_length, states, why_not_native=self.why_not_native)
        kind = FusedRunner if is_llama_like(model) else TransformersRunner
        return kind(model, head, num_slots, max_length, why_not_native=self.why_not_native)


@dataclass(frozen=True)
class NativeForm:
    """Weights as the native library takes them."""

    format: Format
    memory: WeightMemory
    pool: ThreadPool
    keeps_weights: bool
    """As they were before they were rounded, for adapters to be merged with."""

    def linear(self, weights: Mapping[str, Tensor], bias: Tensor | None) -> NativeLinear:
        return NativeLinear(weights, bias, self.format, self.memory, keeps=self.keeps_weights)

    def runner(
        self,
        model: PreTrainedModel,
        head: nn.Module,
        num_slots: int,
        max_length: int,
        states: TargetStates | None = None,
    ) -> Runner:
        assert isinstance(head, NativeLinear | TrimmedHead), "made by `linear`"
        return NativeRunner(
            model,
            head,
            num_slots,
            max_length,
            format=self.format,
            memory=self.memory,
            pool=self.pool,
            keeps_weights=self.keeps_weights,
            states=states,
        )


Form = TorchForm | NativeForm
"""Makes of a model what serves it, with a target's states for a `HiddenStateDraft`. Equal ones can share a head."""


class Forms:
    """Chooses one for each model of a server. Native forms compute with the same threads."""

    def __init__(self, instructions: str) -> None:
        """`instructions` of the processor for the native library: "auto", one of their names, or "none" for torch.

        Raises `ModelError` for a name that the processor has not.
        """
        self.reason: str | None = None
        """Why there is no native form for any model."""
        self._memory = WeightMemory()
        self._pool: ThreadPool | None = None
        try:
            if instructions == "none":
                raise NativeError("engine.instructions is none")
            self._pool = ThreadPool(find_instructions(instructions), torch.get_num_threads())
        except NativeError as error:
            if instructions not in ("auto", "none"):
                raise ModelError(f"engine.instructions is {instructions}, and {error}") from error
            self.reason = str(error)

    def of_target(self, model: PreTrainedModel, *, int8: bool) -> Form:
        """Raises `ModelError` where `int8` weights are asked for and cannot be had."""
        return self._form(model, Format.W8A16 if int8 else None)

    def of_draft(self, model: PreTrainedModel, *, int8: bool | None) -> Form:
        """With `int8=None` 8 bits a weight where that is faster than the model's bfloat16.

        Raises `ModelError` where they are asked for and cannot be had.
        """
        form = self._form(model, Format.W8A16 if int8 else None, keeps_weights=bool(int8))
        if int8 is not None or not isinstance(form, NativeForm) or form.format is not Format.BFLOAT16:
            return form
        if supports(form.pool.instructions, Format.W8A16):
            return replace(form, format=Format.W8A16, keeps_weights=True)
        return form

    def _form(self, model: PreTrainedModel, wanted: Format | None, *, keeps_weights: bool = False) -> Form:
        reason = self.reason or why_not_native(model)
        if reason is not None:
            if wanted is not None:
                raise ModelError(f"8-bit weights need the native library: {reason}")
            return TorchForm(reason)
        assert self._pool is not None, "there is a reason without"
        if wanted is None:
            wanted = Format.BFLOAT16 if model.dtype == torch.bfloat16 else Format.FLOAT32
        elif not supports(self._pool.instructions, wanted):
            raise ModelError(f"8-bit weights need AVX-512 BF16 and VNNI, not {self._pool.instructions}")
        return NativeForm(wanted, self._memory, self._pool, keeps_weights)
