"""The draft's weights exchanged on all ranks of an engine, or on none."""

import math
from typing import Any

import torch
from torch import Tensor

from hotdraft.pipeline.models.adapter_folder import PROBE_TOKENS
from hotdraft.serving.updates.hot_swap import PROBE_TOLERANCE
from hotdraft.serving.vllm.worker.live_draft import DraftError, LiveDraft
from hotdraft.serving.vllm.worker.staging import DraftVersion

FIRST_PROBE = torch.zeros(PROBE_TOKENS, dtype=torch.long)
"""What the draft is asked before any version was swapped in."""


class AgreedDraft:
    """One rank's part. The others have to be asked for the same at once, but for `prepare`."""

    def __init__(self, draft: LiveDraft, vllm_config: Any) -> None:
        self.prepare = draft.prepare
        self._draft = draft
        self._vllm_config = vllm_config
        self._own_probe: Tensor | None = None
        """What the draft as it was loaded gives after `FIRST_PROBE`, on ranks that see logits."""

    def warm_up(self) -> None:
        """Ask the draft for the first time, which is slow."""
        self._own_probe = self._logits(FIRST_PROBE, 1)

    def exchange(self, read: DraftVersion, weights: Any) -> float | Exception:
        """How far the draft's output is from what it should be with `weights`, which `prepare` made of `read`.

        Where a rank finds fault it is that, and the weights before serve on. Raises where they cannot be had back.
        """
        exchanged, distance = False, math.inf
        error: Exception | None = None
        try:
            self._draft.exchange(weights)
            exchanged = True
        except Exception as found:  # noqa: BLE001 -- other ranks wait for an answer
            error = found
        if all_agree(exchanged):
            try:
                distance = self._distance(read)
            except Exception as found:  # noqa: BLE001 -- likewise
                error = found
            if all_agree(distance <= PROBE_TOLERANCE):
                return distance
        if exchanged:
            self._draft.exchange(weights)
        return error or DraftError(
            f"the live draft's output is {distance:.3f} (total variation) from what the adapter's trainer "
            f"computed, {PROBE_TOLERANCE} is allowed"
            if distance < math.inf
            else "another rank could not exchange its weights"
        )

    def _distance(self, read: DraftVersion) -> float:
        """Mean total variation over the probe's positions; 0 for ranks that see no logits."""
        if read.probe_ids is None or read.probe_probs is None:
            logits, expected = self._logits(FIRST_PROBE, 1), self._own_probe
            expected = None if expected is None else expected.softmax(-1)
        else:
            logits, expected = self._logits(read.probe_ids, len(read.probe_probs)), read.probe_probs
        if logits is None or expected is None:
            return 0.0
        expected = expected.to(logits.device)
        return float((logits[:, : expected.shape[1]].softmax(-1) - expected).abs().sum(-1).mean() / 2)

    def _logits(self, input_ids: Tensor, last: int) -> Tensor | None:
        from vllm.forward_context import set_forward_context

        with set_forward_context(None, self._vllm_config):
            return self._draft.logits(input_ids, last)


def all_agree(fine: bool) -> bool:
    """Whether all tensor-parallel ranks of this engine are fine; each has to ask."""
    from vllm.distributed import get_tp_group

    group = get_tp_group()
    if group.world_size == 1:
        return fine
    flag = torch.tensor([int(fine)])
    torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MIN, group=group.cpu_group)
    return bool(flag.item())
