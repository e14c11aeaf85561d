"""The draft's vocabulary: the tokens that its output head covers, the most frequent first.

A head over the frequent part of the vocabulary costs a fraction of the whole one (FR-Spec, Zhao et al.,
2025). Outside it draft_probs are 0, which the rejection sampler allows: what it leaves out costs
acceptance, never correctness. A *ranking* is a 1-D tensor of distinct token ids, most frequent first.
It stands as `draft_vocabulary.safetensors` in a draft's folder and, counted anew from traffic, in an
adapter's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

if TYPE_CHECKING:
    from datasets import Dataset

VOCABULARY_FILE = "draft_vocabulary.safetensors"
TENSOR = "token_ids"


class VocabularyError(ValueError):
    """A file that holds no ranking of the model's tokens; the message says why."""


def count_answers(rows: Dataset, vocab_size: int) -> Tensor:
    """How often [V] the target said a token in `rows` (of `ReplayBuffer.load`) or held it likeliest.

    Where a token was sampled the two differ, and the draft should be able to propose either.
    """
    return _count(_answers(rows), vocab_size)


def count_prompts(rows: Dataset, vocab_size: int) -> Tensor:
    """How often [V] a token stands in the prompts of `rows`, which answers take words from."""
    prompts = rows.select_columns(["prompt_ids"]).with_format("numpy")
    return _count((row["prompt_ids"] for row in prompts), vocab_size)


def rank_tokens(counts: Tensor) -> Tensor:
    """Ids with a count above 0, highest `counts` [V] first, the lower id first among equals."""
    order = counts.argsort(descending=True, stable=True)
    return order[: int((counts > 0).sum())]


def merge_rankings(rankings: Sequence[Tensor | None]) -> Tensor:
    """All ids of `rankings`, each once and where it comes first; int64 [N]. None ranks nothing."""
    given = [ranking.long() for ranking in rankings if ranking is not None and len(ranking)]
    seen = torch.zeros(max((int(ranking.max()) + 1 for ranking in given), default=0), dtype=torch.bool)
    parts = [torch.empty(0, dtype=torch.int64)]
    for ranking in given:
        parts.append(ranking[~seen[ranking]])
        seen[ranking] = True
    return torch.cat(parts)


def choose_vocabulary(rankings: Sequence[Tensor | None], size: int, vocab_size: int) -> Tensor:
    """The `size` first ids of `rankings` in order of precedence; int64, ascending.

    Where they rank too few, the lowest other ids follow: BPE numbers frequent merges first. All ids
    if `size` is not below `vocab_size`. Ids that are not below it, of another model's padding, are left out.
    """
    merged = merge_rankings([*rankings, torch.arange(vocab_size)])
    return merged[merged < vocab_size][:size].sort().values


def save_vocabulary(folder: Path, ranking: Tensor) -> None:
    """Write `ranking` [N] into `folder`."""
    save_file({TENSOR: ranking.to("cpu", torch.int32).contiguous()}, folder / VOCABULARY_FILE)


def read_vocabulary(folder: Path, vocab_size: int) -> Tensor | None:
    """The ranking in `folder`, int64 [N]; None if it holds none.

    Raises `VocabularyError` for a file that is broken or ranks anything but distinct ids below
    `vocab_size`.
    """
    path = folder / VOCABULARY_FILE
    if not path.is_file():
        return None
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise VocabularyError(f"{path.name} is not a readable safetensors file: {error}") from error
    if set(tensors) != {TENSOR}:
        raise VocabularyError(f"{path.name} holds {sorted(tensors)}, expected one tensor {TENSOR!r}")
    ids = tensors[TENSOR]
    if ids.ndim != 1 or ids.dtype not in (torch.int32, torch.int64):
        raise VocabularyError(f"{path.name}: {TENSOR} is {ids.ndim}-D {ids.dtype}, expected 1-D int32")
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        raise VocabularyError(
            f"{path.name}: ids range from {int(ids.min())} to {int(ids.max())}, the vocabulary has {vocab_size}"
        )
    if len(ids.unique()) != len(ids):
        raise VocabularyError(f"{path.name}: {len(ids) - len(ids.unique())} ids stand there twice")
    return ids.long()


def _answers(rows: Dataset) -> Iterator[np.ndarray]:
    for row in rows.select_columns(["output_ids", "target_top_ids"]).with_format("numpy"):
        output_ids = row["output_ids"]
        yield output_ids
        yield row["target_top_ids"].reshape(len(output_ids), -1)[:, 0]


def _count(pieces: Iterator[np.ndarray], vocab_size: int) -> Tensor:
    # A target may pad its vocabulary further than the draft does; such ids stand for no token.
    counts = np.bincount(np.concatenate([np.empty(0, np.int64), *pieces]), minlength=vocab_size)
    return torch.from_numpy(counts[:vocab_size])
