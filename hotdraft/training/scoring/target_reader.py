"""What the target's layers make of requests, for a draft that learns to read it.

A token's states take many times what is recorded of it. A server on this machine leaves those of its last requests
in a ring; of others the target reads each request again, once. As many are kept as `MOST_BYTES` hold: the window of
a job and what it rehearses come again and again.
"""

from collections.abc import Sequence
from typing import Self

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from hotdraft.pipeline.models.hidden_state_draft import HiddenStateDraft, at_unit_size
from hotdraft.pipeline.models.layer_stack import hook_states
from hotdraft.pipeline.models.loading import load_causal_lm
from hotdraft.pipeline.system.array_ring import ArrayRing
from hotdraft.pipeline.system.transfer import moved
from hotdraft.training.batches.byte_cache import ByteCache
from hotdraft.training.scoring.packed_attention import attend_within_requests

MOST_BYTES = 2**29


class TargetReader:
    """`ReadTarget` of the model `name`, which is loaded when it is first asked for.

    What was not asked for longest is forgotten first.
    """

    def __init__(
        self, name: str, draft: HiddenStateDraft, served: ArrayRing | None = None, most_bytes: int = MOST_BYTES
    ) -> None:
        """`served` has states of requests that a server has answered."""
        self.name = name
        self._served = served
        self._draft = draft
        self._target: PreTrainedModel | None = None
        self._kept = ByteCache[bytes, Tensor](most_bytes)
        """By the tokens of a request, its states [T, S] in bfloat16."""

    @torch.no_grad()
    def __call__(self, input_ids: Tensor, lengths: Sequence[int]) -> Tensor:
        requests = input_ids[0].split(list(lengths))
        names = [tokens.cpu().numpy().tobytes() for tokens in requests]
        found = {name: states for name in names if (states := self._find(name)) is not None}
        missing = {name: tokens for name, tokens in zip(names, requests, strict=True) if name not in found}
        if missing:
            found |= dict(zip(missing, self._read(list(missing.values())), strict=True))
        for name in names:
            self._kept.keep(name, found[name])
        return torch.cat([found[name] for name in names])[None]

    def __deepcopy__(self, memo: object) -> Self:
        """Copies of a draft read the same target."""
        return self

    def _find(self, name: bytes) -> Tensor | None:
        kept = self._kept.get(name)
        if kept is not None or self._served is None:
            return kept
        tokens = len(name) // torch.int64.itemsize
        found = self._served.get(name, (tokens, self._draft.config.state_size), np.uint16)
        if found is None:
            return None
        states = torch.from_numpy(found).view(torch.bfloat16)
        return states.to(self._draft.device) if states.isfinite().all() else None

    def _read(self, requests: Sequence[Tensor]) -> list[Tensor]:
        lengths = [len(tokens) for tokens in requests]
        places = torch.cat([torch.arange(length) for length in lengths])
        target = self._loaded()
        parts: list[Tensor] = []

        def take(behind: int, states: Tensor) -> None:
            if behind in self._draft.config.target_layers:
                parts.append(at_unit_size(states[0]))

        hooks = hook_states(target, take)
        try:
            with torch.autocast(target.device.type, enabled=False):
                target.base_model(
                    input_ids=torch.cat(list(requests))[None],
                    attention_mask=torch.tensor([[[lengths]]]),
                    position_ids=moved(places[None], target.device),
                    use_cache=False,
                )
        finally:
            for hook in hooks:
                hook.remove()
        return [part.clone() for part in torch.cat(parts, -1).split(lengths)]

    def _loaded(self) -> PreTrainedModel:
        if self._target is None:
            # of the embedding's dtype, which is never trained: that of the pair
            embedding: Tensor = self._draft.get_input_embeddings().weight  # type: ignore[assignment]
            self._target = load_causal_lm(self.name, dtype=embedding.dtype, device=embedding.device)
            attend_within_requests(self._target)
        return self._target


def give_target(draft: PreTrainedModel, name: str, served: ArrayRing | None = None) -> None:
    """Have a draft that reads a target's states read those of the model `name`; others read none."""
    if isinstance(draft, HiddenStateDraft):
        draft.read_from(TargetReader(name, draft, served))


def target_given(draft: PreTrainedModel) -> str | None:
    """The name that `give_target` was told."""
    read = draft.model.read_target if isinstance(draft, HiddenStateDraft) else None
    return read.name if isinstance(read, TargetReader) else None
