"""A draft that reads its target's states, by torch's own operators. `NativeRunner` does the same in one call."""

from dataclasses import replace

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hotdraft.serving.models.fused_runner import FusedRunner, RMSNorm
from hotdraft.serving.models.hidden_states.target_states import TargetStates, slots_of
from hotdraft.serving.models.linear import ServedLinear
from hotdraft.serving.models.runner import Window


class HiddenStateRunner(FusedRunner):
    """Committed tokens come with the target's state of the token before; guesses, one by one, with its own."""

    def __init__(
        self,
        model: PreTrainedModel,
        head: nn.Module,
        num_slots: int,
        max_length: int,
        states: TargetStates,
        *,
        why_not_native: str,
    ) -> None:
        super().__init__(model, head, num_slots, max_length, why_not_native=why_not_native)
        self._reads = states
        self._fc = ServedLinear.of({"model.fc": model.model.fc})
        self.linears.append(self._fc)
        layer = model.model.layers[0]
        self._token_norm, self._state_norm = RMSNorm(layer.input_layernorm), RMSNorm(layer.hidden_norm)
        self._own = torch.zeros(num_slots, 2, model.config.hidden_size, dtype=model.dtype, device=model.device)
        """By the parity of their positions: each guess goes by the one before it."""

    def forward(self, window: Window, token_ids: Tensor, keep: int) -> Tensor:
        count = token_ids.shape[1]
        together = count - window.guesses if count > 1 else 0
        made = [self._read(window, token_ids, slice(0, together))] if together else []
        made += [self._read(window, token_ids, slice(at, at + 1)) for at in range(together, count)]
        return self.head(self._norm(torch.cat(made, 1)[:, -keep:]))

    def _read(self, window: Window, token_ids: Tensor, part: slice) -> Tensor:
        """One token, or several that are committed."""
        positions, keys = window.positions[:, part], None if window.keys is None else window.keys[:, part]
        window = replace(window, positions=positions, keys=keys)
        slots, last = slots_of(window), positions[:, -1]
        before = self._fc(self._reads.before(window).to(self._own.dtype))
        if positions.shape[1] == 1:
            own = self._own[slots, (last - 1) % 2, None]
            before = torch.where(self._reads.committed(window)[..., None], before, own)
        inputs = torch.cat([self._token_norm(self._embed(token_ids[:, part])), self._state_norm(before)], -1)
        state = self._run(window, before, inputs)
        self._own[slots, last % 2] = state[:, -1]
        return state
