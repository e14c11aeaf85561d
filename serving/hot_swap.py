"""Hot swap: the live draft takes on an adapter's weights between two rounds.

Protocol. `stage` reads and checks the adapter and merges it with the draft's original weights, off
the hot path. `swap` then, between rounds, copies the merged weights in place (so that addresses
stay valid for CUDA graphs), and compares the live draft's output on the adapter's probe with what
the trainer's model gave. If they differ, the weights from before are put back. Running requests go
on: draft keys of the old version only cost acceptance, never correctness.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from pipeline.adapters import load_adapter, merged_weights
from serving.attention import causal_mask, groups_of
from serving.engine import Engine
from serving.events import SwapEvent

SwapReason = Literal["promotion", "rollback", "startup"]

PROBE_TOLERANCE = 0.05
"""Total variation allowed between live and trained output: bfloat16 rounding gives about 0.01."""


class SwapError(RuntimeError):
    """The swapped-in draft did not compute what its adapter says; the old one serves on."""


@dataclass(frozen=True)
class StagedDraft:
    """A draft version ready to be copied in. Version 0, the draft itself, has no probe."""

    version: int
    weights: Mapping[str, Tensor]
    """Parameter name → weight, for every linear layer of the draft."""
    probe_ids: Tensor | None = None
    probe_logits: Tensor | None = None


class HotSwapper:
    """Exchanges the draft's weights under a running engine."""

    def __init__(self, engine: Engine, base_fingerprint: str, rank: int) -> None:
        assert engine.decoder.draft is not None, "there is no draft to swap"
        self._engine = engine
        self._draft = engine.decoder.draft.model
        self._base_fingerprint = base_fingerprint
        self._rank = rank
        head = self._draft.get_output_embeddings()
        self._parameters = {
            f"{name}.weight": module.weight
            for name, module in self._draft.named_modules()
            if isinstance(module, nn.Linear) and module is not head
        }
        self._base = StagedDraft(0, {name: w.detach().clone() for name, w in self._parameters.items()})
        self._live = self._base

    @property
    def live_version(self) -> int:
        return self._live.version

    def stage(self, version: int, folder: Path | None) -> StagedDraft:
        """Check the adapter in `folder` and merge it; version 0 needs no folder.

        Raises `AdapterError` naming what is wrong.
        """
        if version == 0 or folder is None:
            return self._base
        adapter = load_adapter(folder, self._draft, self._base_fingerprint, self._rank)
        return StagedDraft(
            version,
            {**self._base.weights, **merged_weights(self._base.weights, adapter)},
            adapter.probe_ids.to(self._draft.device),
            adapter.probe_logits.to(self._draft.device),
        )

    def swap(self, staged: StagedDraft, reason: SwapReason) -> SwapEvent:
        """Wait for the end of the round under way and swap. Raises `SwapError` if the probe differs."""
        return self._engine.between_rounds(lambda: self._install(staged, reason)).result()

    @torch.inference_mode()
    def _install(self, staged: StagedDraft, reason: SwapReason) -> SwapEvent:
        started = time.perf_counter()
        self._copy(staged)
        distance = self._probe(staged)
        if not distance <= PROBE_TOLERANCE:
            self._copy(self._live)
            raise SwapError(
                f"version {staged.version}: the live draft's output is {distance:.3f} (total variation) "
                f"from what the adapter's trainer computed, {PROBE_TOLERANCE} is allowed"
            )
        previous, self._live = self._live.version, staged
        event = SwapEvent(staged.version, previous, reason, time.perf_counter() - started)
        self._engine.announce_swap(event)
        return event

    def _copy(self, staged: StagedDraft) -> None:
        names = list(self._parameters)
        torch._foreach_copy_([self._parameters[n].data for n in names], [staged.weights[n] for n in names])

    def _probe(self, staged: StagedDraft) -> float:
        """Mean total variation between the live draft and the trainer's model over the probe's positions."""
        if staged.probe_ids is None or staged.probe_logits is None:
            return 0.0
        ids = staged.probe_ids
        positions = torch.arange(ids.shape[1], device=ids.device)[None]
        logits = self._draft(
            input_ids=ids,
            attention_mask=causal_mask(positions, ids.shape[1], groups_of(self._draft.config.get_text_config())),
            position_ids=positions,
            use_cache=False,
            logits_to_keep=staged.probe_logits.shape[0],
        ).logits[0]
        live, trained = logits.float().softmax(-1), staged.probe_logits.float().softmax(-1)
        return float((live - trained).abs().sum(-1).mean() / 2)
