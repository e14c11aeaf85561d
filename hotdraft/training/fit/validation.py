"""Looking at held-out prompts while a draft trains: what is kept of it, and when to end."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import MLFlowLogger
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from hotdraft.pipeline.replay.sample import ReplaySample
from hotdraft.training.batches.packing import pack
from hotdraft.training.scoring.forward import DraftForward

MONITOR = "validation/overlap"
BEST = "best"
SHOWN_PROMPTS = 3
SHOWN_TOKENS = 32
SHOWN_CHARACTERS = 400


@dataclass(frozen=True)
class Validation:
    """How a run looks at the held-out prompts of its data."""

    every_steps: int
    """Optimiser steps between two looks; there is one after the last step in any case."""
    patience: int | None
    """Looks without a better overlap after which training ends; None never ends it."""
    tokenizer: PreTrainedTokenizerBase
    """What the draft says is shown with."""

    def callbacks(self, checkpoints: Path, samples: list[ReplaySample]) -> list[Callback]:
        """The best draft goes to `checkpoints/best.ckpt`: its trainable parameters only."""
        best = ModelCheckpoint(
            checkpoints,
            filename=BEST,
            monitor=MONITOR,
            mode="max",
            save_weights_only=True,
            save_on_train_epoch_end=False,
            enable_version_counter=False,
        )
        shown = SampleGenerations(samples[:SHOWN_PROMPTS], self.tokenizer)
        if self.patience is None:
            return [shown, best]
        stop = EarlyStopping(MONITOR, mode="max", patience=self.patience, check_on_train_epoch_end=False)
        return [shown, best, stop]


class SampleGenerations(Callback):
    """Logs what the draft answers, greedily, beside what the target did, at each look: `generations/step-*.txt`."""

    def __init__(self, samples: list[ReplaySample], tokenizer: PreTrainedTokenizerBase) -> None:
        self._samples = samples
        self._tokenizer = tokenizer

    def on_validation_end(self, trainer: lightning.Trainer, module: Any) -> None:
        with trainer.precision_plugin.forward_context():  # all processes: they may hold a share of the weights
            answers = greedy_answers(module.draft, self._samples, SHOWN_TOKENS)
        if not trainer.is_global_zero or not isinstance(trainer.logger, MLFlowLogger):
            return
        parts = [
            f"--- {sample.domain}\nprompt: {self._text(sample.prompt_ids)[-SHOWN_CHARACTERS:]}\n"
            f"target: {self._text(sample.output_ids[:SHOWN_TOKENS])}\ndraft: {self._text(answer)}\n"
            for sample, answer in zip(self._samples, answers, strict=True)
        ]
        name = f"generations/step-{trainer.global_step:07d}.txt"
        trainer.logger.experiment.log_text(trainer.logger.run_id, "\n".join(parts), name)

    def _text(self, ids: np.ndarray) -> str:
        """To the first end of a text: the draft is not stopped there."""
        ends = np.flatnonzero(ids == self._tokenizer.eos_token_id)
        return str(self._tokenizer.decode(ids[: ends[0] + 1 if len(ends) else None].tolist()))


@torch.no_grad()
def greedy_answers(draft: DraftForward, samples: list[ReplaySample], tokens: int) -> list[np.ndarray]:
    """The `tokens` likeliest next tokens after each sample's prompt, one after the other.

    Without a cache, which activation checkpointing would switch off and sharded weights would have to be
    gathered for: few and short prompts only.
    """
    device = next(draft.parameters()).device
    rows = [sample.part(slice(1)) for sample in samples]  # nothing supervised but what follows the prompt
    for _ in range(tokens):
        batch = pack(rows).on(device)
        chosen: Tensor = draft(batch, lambda hidden, head: head(hidden).argmax(-1))[0]  # of a round's first step
        rows = [
            replace(row, prompt_ids=np.append(row.prompt_ids, token))
            for row, token in zip(rows, chosen.cpu().numpy(), strict=True)
        ]
    return [row.prompt_ids[len(sample.prompt_ids) :] for row, sample in zip(rows, samples, strict=True)]
