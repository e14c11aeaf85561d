"""A draft that reads its target's states, by torch's own operators. `NativeRunner` does the same in one call."""

from dataclasses import replace

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hotdraft.serving.models.fused_runner import FusedRunner, RMSNorm
from hotdraft.serving.models.linear import ServedLinear
from hotdraft.serving.models.runner import Window
from hotdraft.serving.models.target_states import TargetStates


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
        self._own = torch.zeros(num_slots, model.config.hidden_size, dtype=model.dtype, device=model.device)
        """Of the token that each slot's last forward ended with."""

    def forward(self, window: Window, token_ids: Tensor, keep: int) -> Tensor:
        committed, count = self._reads.committed(window), token_ids.shape[1]
        together = max(count - window.guesses, 1)
        made = []
        for start, end in zip([0, *range(together, count)], range(together, count + 1), strict=True):
            part = slice(start, end)
            keys = None if window.keys is None else window.keys[:, part]
            of_part = replace(window, positions=window.positions[:, part], keys=keys)
            made.append(self._read(of_part, token_ids[:, part], committed[:, part]))
        return self.head(self._norm(torch.cat(made, 1)[:, -keep:]))

    def _read(self, window: Window, token_ids: Tensor, committed: Tensor) -> Tensor:
        own = self._own[window.rows, None]
        before = torch.where(committed[..., None], self._fc(self._reads.before(window).to(own.dtype)), own)
        inputs = torch.cat([self._token_norm(self._embed(token_ids)), self._state_norm(before)], -1)
        state = self._run(window, before, inputs)
        self._own[window.rows] = state[:, -1]
        return state
