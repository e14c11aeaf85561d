"""What a job offers the gate: an adapter between where the job began and where it ended.

On the way a draft gains most of what it will gain before it loses what it knew: half the way is often better on
traffic that the job saw little of (WiSE-FT: Wortsman et al., 2022).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import PeftModel
from torch import Tensor, nn

from hotdraft.pipeline.models.adapter_folder import AdapterBase, AdapterCard, LoadedAdapter, load_adapter
from hotdraft.pipeline.models.draft_vocabulary import save_vocabulary
from hotdraft.training.fit.lora import save_lora
from hotdraft.training.judging.served_draft import ServedDraft


@dataclass(frozen=True)
class Candidate:
    folder: Path
    card: AdapterCard
    blend: float
    """Share of the way from the job's first step to its last."""
    adapter: LoadedAdapter
    """As a server would read it back from `folder`."""


def candidate_folder(job_folder: Path, blend: float) -> Path:
    return job_folder / f"adapter-{blend:g}"


def candidates(
    model: PeftModel,
    start: Mapping[str, Tensor],
    draft: ServedDraft,
    card: AdapterCard,
    ranking: Tensor | None,
    blends: Sequence[float],
    job_folder: Path,
) -> list[Candidate]:
    """The adapters at `blends` of the way from `start` to what `model` has become, each written below `job_folder`.

    Raises `AdapterError` if one cannot be served.
    """
    end = copy_trainable(model)
    found = []
    for share in blends:
        blend(model, start, end, share)
        path = candidate_folder(job_folder, share)
        save_lora(path, model, card)
        if ranking is not None:
            save_vocabulary(path, ranking)
        adapter = load_adapter(path, AdapterBase.of(draft.base, draft.fingerprint))
        found.append(Candidate(path, card, share, adapter))
    return found


def copy_trainable(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the trainable parameters."""
    return {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}


@torch.no_grad()
def blend(model: nn.Module, start: Mapping[str, Tensor], end: Mapping[str, Tensor], share: float) -> None:
    """Set the trainable parameters of `model` to `share` of the way from `start` to `end`."""
    for name, parameter in model.named_parameters():
        if name in end:
            parameter.copy_(end[name] if share == 1 else torch.lerp(start[name], end[name], share))
