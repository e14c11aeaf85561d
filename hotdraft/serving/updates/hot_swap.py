"""Hot swap: the live draft takes on an adapter's weights between two rounds.

Protocol. `stage` reads and checks the adapter, merges it with the draft's original weights and brings
them into the form they are served in: on a GPU beside the rounds, on a CPU layer by layer between them.
`swap` then, between rounds, copies them in
place (so that addresses stay valid for CUDA graphs), and compares the live draft's output on the
adapter's probe with what the trainer's model gave. If they differ, or anything fails on the way, the
weights from before are put back. Running requests go on: draft keys of the old version only cost
acceptance, never correctness.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from hotdraft.pipeline.models.adapter_folder import (
    PROBE_POSITIONS,
    PROBE_TOKENS,
    AdapterBase,
    AdapterError,
    LoadedAdapter,
    load_adapter,
    merge,
    merged_weights,
)
from hotdraft.pipeline.models.draft_vocabulary import choose_vocabulary
from hotdraft.pipeline.system.transfer import in_stream
from hotdraft.serving.engine.aside import aside
from hotdraft.serving.engine.engine import Engine
from hotdraft.serving.messages.events import SwapEvent, SwapReason
from hotdraft.serving.models.trimmed_head import TrimmedHead
from hotdraft.serving.proposers.draft_model import DraftModel

T = TypeVar("T")

PROBE_TOLERANCE = 0.05
"""Total variation allowed between live and trained output: bfloat16 rounding gives about 0.01."""

ROUNDED_TOLERANCE = 0.1
"""Likewise for a draft in 8 bits: they give about 0.02, and more where a random adapter is large."""


class SwapError(RuntimeError):
    """The swapped-in draft did not compute what its adapter says; the old one serves on."""


REHEARSED_RANK = 32
"""Of an adapter, as trainers make them."""


@dataclass(frozen=True)
class StagedDraft:
    """A draft version ready to be copied in. Version 0, the draft itself, has no probe."""

    version: int
    weights: list[Tensor]
    """Prepared, for each of the draft's linear layers."""
    vocabulary: Tensor | None = None
    """int64 [N]: the tokens of a trimmed head."""
    head: Tensor | None = None
    """Its prepared weight."""
    probe_ids: Tensor | None = None
    """int64 [1, T]."""
    probe_probs: Tensor | None = None
    """float32 [P, N]: what the trainer's model gave after each of the last P probe ids, over the head's tokens."""


class HotSwapper:
    """Exchanges the draft's weights under a running engine.

    `ranking` orders the draft's tokens by frequency where its head is trimmed: adapters without a
    ranking of their own are served with it.
    """

    def __init__(self, engine: Engine, fingerprint: str, ranking: Tensor | None = None) -> None:
        draft = engine.decoder.proposer
        assert isinstance(draft, DraftModel), "there is no draft to swap"
        self._engine = engine
        self._draft = draft
        self._runner = draft.runner
        self._ranking = ranking
        device = engine.decoder.device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._weights = self._aside(
            lambda: {name: w for linear in self._runner.linears for name, w in linear.weights().items()}
        )
        shapes = {name: weight.shape for name, weight in self._weights.items()}
        self._base = AdapterBase(fingerprint, draft.own_vocab_size, shapes)
        self._original = self._aside(self._prepare_original)
        self._live = self._original
        rounded = self._runner.computation.weights == "w8a16"
        self._tolerance = ROUNDED_TOLERANCE if rounded else PROBE_TOLERANCE
        if self._stream is not None:
            self._aside(self._rehearse_staging)
            engine.between_rounds(self._rehearse_swap)

    @property
    def live_version(self) -> int:
        return self._live.version

    def stage(self, version: int, folder: Path | None) -> StagedDraft:
        """Check the adapter in `folder` and merge it, while the engine runs; version 0 needs no folder.

        Raises `AdapterError` naming what is wrong.
        """
        if version == 0 or folder is None:
            return self._original
        staged, adapter = self._aside(partial(self._read, version, folder))
        if self._stream is not None:
            return self._aside(partial(self._merge, staged, adapter))
        return self._merge(staged, adapter)

    def _aside(self, work: Callable[[], T]) -> T:
        """Beside rounds, which wait neither for its thread nor for what it launches."""
        return aside(lambda: in_stream(self._stream, work))

    def _rehearse_staging(self) -> None:
        """A GPU loads a kernel when it first comes, and holds up all launches: now, and not beside a stream."""
        for weight in {weight.shape: weight for weight in self._weights.values()}.values():
            rows, columns = weight.shape
            lora = (torch.zeros(REHEARSED_RANK, columns), torch.zeros(rows, REHEARSED_RANK))
            merge(weight, lora, 1.0, "none")

    @torch.inference_mode()
    def _rehearse_swap(self) -> None:
        self._copy(self._original)
        ids = torch.zeros(1, PROBE_TOKENS, dtype=torch.int64, device=self._engine.decoder.device)
        logits = self._draft.logits(ids, PROBE_POSITIONS)
        self._probe(replace(self._original, probe_ids=ids, probe_probs=logits.float().softmax(-1)))

    def _read(self, version: int, folder: Path) -> tuple[StagedDraft, LoadedAdapter]:
        """What is known of a version before anything is merged."""
        adapter, longest = load_adapter(folder, self._base), self._draft.longest
        if adapter.probe_ids.shape[1] > longest:
            raise AdapterError(f"the probe is longer than the {longest} tokens of a slot")
        device, vocabulary = self._engine.decoder.device, self._choose_vocabulary(adapter.vocabulary)
        logits = adapter.probe_logits if vocabulary is None else adapter.probe_logits[:, vocabulary]
        probe_ids, probe_probs = adapter.probe_ids.to(device), logits.to(device).float().softmax(-1)
        return StagedDraft(version, [], vocabulary, None, probe_ids, probe_probs), adapter

    def _merge(self, staged: StagedDraft, adapter: LoadedAdapter) -> StagedDraft:
        weights = self._weights | dict(self._by_turns(merged_weights(self._weights, adapter)))
        prepared = list(self._by_turns(linear.prepare(weights) for linear in self._runner.linears))
        if staged.vocabulary is None:
            return replace(staged, weights=prepared)
        parts = self._by_turns(self._trimmed_head.prepared_by_parts(staged.vocabulary))
        return replace(staged, weights=prepared, head=TrimmedHead.joined(parts))

    def _prepare_original(self) -> StagedDraft:
        staged = StagedDraft(0, [linear.prepare(self._weights) for linear in self._runner.linears])
        vocabulary = self._choose_vocabulary(None)
        if vocabulary is None:
            return staged
        return replace(staged, vocabulary=vocabulary, head=self._trimmed_head.prepare(vocabulary))

    def _by_turns(self, parts: Iterator[T]) -> Iterator[T]:
        """`parts`, on a CPU each made between two rounds, which work beside them would hold up for longer."""
        if self._stream is not None:
            yield from parts
            return
        while (part := self._engine.between_rounds(lambda: next(parts, None)).result()) is not None:
            yield part

    def swap(self, staged: StagedDraft, reason: SwapReason) -> SwapEvent:
        """Wait for the end of the round under way and swap. Raises `SwapError` if the probe differs.

        Whatever it raises, the version from before serves on.
        """
        return self._engine.between_rounds(lambda: self._install(staged, reason)).result()

    def _choose_vocabulary(self, ranking: Tensor | None) -> Tensor | None:
        if not isinstance(head := self._runner.head, TrimmedHead):
            return None
        return choose_vocabulary([ranking, self._ranking], len(head.token_ids), self._engine.decoder.vocab_size)

    @property
    def _trimmed_head(self) -> TrimmedHead:
        assert isinstance(self._runner.head, TrimmedHead), "only a trimmed head has a vocabulary"
        return self._runner.head

    @torch.inference_mode()
    def _install(self, staged: StagedDraft, reason: SwapReason) -> SwapEvent:
        started = time.perf_counter()
        try:
            self._copy(staged)
            distance, allowed = self._probe(staged), self._tolerance
            if not distance <= allowed:
                raise SwapError(
                    f"version {staged.version}: the live draft's output is {distance:.3f} (total variation) "
                    f"from what the adapter's trainer computed, {allowed} is allowed"
                )
        except BaseException:
            self._copy(self._live)
            raise
        self._draft.weights_changed()
        previous, self._live = self._live.version, staged
        event = SwapEvent(staged.version, previous, reason, time.perf_counter() - started)
        self._engine.announce_swap(event)
        return event

    def _copy(self, staged: StagedDraft) -> None:
        for linear, weight in zip(self._runner.linears, staged.weights, strict=True):
            linear.install(weight)
        if staged.vocabulary is not None and staged.head is not None:
            self._trimmed_head.install(staged.vocabulary, staged.head)

    def _probe(self, staged: StagedDraft) -> float:
        """Mean total variation between the live draft and the trainer's model over the probe's positions."""
        if staged.probe_ids is None or staged.probe_probs is None:
            return 0.0
        logits = self._draft.logits(staged.probe_ids, len(staged.probe_probs))
        return float((logits.float().softmax(-1) - staged.probe_probs).abs().sum(-1).mean() / 2)
