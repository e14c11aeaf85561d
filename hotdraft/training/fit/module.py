"""The Lightning module: a draft learns the target's logged distributions."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import lightning
import torch
from torch import Tensor, nn

from hotdraft.pipeline.config.learning import LossName
from hotdraft.training.batches.packing import PackedBatch
from hotdraft.training.fit.sharding import shard
from hotdraft.training.scoring.forward import DraftForward, disable_dropout
from hotdraft.training.scoring.kept_prompts import KeptPrompts
from hotdraft.training.scoring.position_scores import PositionScores, position_scores

WARMUP_STEPS = 5
LOG_EVERY_STEPS = 10
LATER = 0.8
"""Weight of each step of a round by the one before it: fewer rounds come as far (Li et al., 2025)."""


class NonFiniteLossError(ValueError):
    """The loss became NaN or infinite: nothing that comes after could be trusted."""


class DistillationModule(lightning.LightningModule):
    """A weighted loss on the trainable parameters of `model`, under AdamW and a cosine-decayed rate.

    The loss of an optimiser step is the weighted mean over the positions of all its batches, those of
    other processes included: it does not depend on how they are shared out.

    `elapsed_fraction` is the share of a time budget that is spent; the learning rate follows it or the
    steps, whichever is further, so that it has reached its end when either budget ends the run.
    Checkpoints hold the trainable parameters only. `vocabulary` (int64 [S]) is what the draft's head covers when
    served; None is everything. `momentum` is AdamW's first beta. Prompts are kept for `prompt_steps` steps, see
    `scoring.kept_prompts`; with 0 gradients go through them.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        loss: LossName,
        learning_rate: float,
        max_steps: int,
        warmup_steps: int = WARMUP_STEPS,
        accumulate: int = 1,
        elapsed_fraction: Callable[[], float] = lambda: 0.0,
        vocabulary: Tensor | None = None,
        greedy_temperature: float = 1.0,
        prompt_steps: int = 0,
        momentum: float = 0.9,
    ) -> None:
        super().__init__()
        disable_dropout(model)
        self._prompts = KeptPrompts(prompt_steps) if prompt_steps else None
        self.draft = DraftForward(model, vocabulary, self._prompts)
        self.strict_loading = False
        self._loss: LossName = loss
        self._learning_rate = learning_rate
        self._greedy_temperature = greedy_temperature
        self._max_steps = max_steps
        self._warmup_steps = warmup_steps
        self._accumulate = accumulate
        self._elapsed_fraction = elapsed_fraction
        self._momentum = momentum
        self._step_loss = torch.zeros(())
        self._looked: list[Tensor] = []

    def configure_model(self) -> None:
        if self.device_mesh is not None:
            shard(self.draft, self.device_mesh["data_parallel"])

    def training_step(self, batch: PackedBatch, batch_idx: int) -> Tensor:
        measure = self.global_step % LOG_EVERY_STEPS == 0
        if self._prompts is not None:
            self._prompts.step = self.global_step
        read = partial(
            position_scores,
            batch=batch,
            loss=self._loss,
            measure=measure,
            greedy_temperature=self._greedy_temperature,
        )
        by_step: Sequence[PositionScores] = self.draft(batch, read)
        scores = by_step[0]
        weight = self._summed(batch.step_weight).clamp_min(torch.finfo().eps)  # of none, a step teaches nothing
        loss = _joined(by_step) / weight
        if measure:  # what is no number stays none, and to look at every step is to wait for every step
            self._check(loss)
        first = batch_idx % self._accumulate == 0
        self._step_loss = loss.detach() if first else self._step_loss + loss.detach()
        self.log("loss", self._step_loss, prog_bar=True, sync_dist=True, reduce_fx="sum")
        if scores.overlap is not None and scores.agreement is not None:
            expected = torch.where(batch.temperature == 0, scores.agreement, scores.overlap)
            self.log("overlap", scores.overlap.mean(), prog_bar=True, sync_dist=True)
            self.log("expected_acceptance", expected.mean(), sync_dist=True)
            self.log("tokens", float(len(batch.supervised)))
        # The trainer divides by the batches of a step, and the mean over processes by their number.
        return loss * (self._accumulate * self.trainer.world_size)

    def on_train_end(self) -> None:
        self._check(self._step_loss)

    def transfer_batch_to_device(
        self, batch: PackedBatch, device: torch.device, dataloader_idx: int
    ) -> PackedBatch:
        return batch.on(device)

    def validation_step(self, batch: PackedBatch, batch_idx: int) -> None:
        by_step: Sequence[PositionScores] = self.draft(
            batch, partial(position_scores, batch=batch, loss=self._loss, measure=True)
        )
        scores = by_step[0]
        assert scores.overlap is not None
        assert scores.agreement is not None
        sums = [
            _joined(by_step),
            scores.overlap @ batch.weight,
            scores.agreement @ batch.weight,
            batch.weight.sum(),
        ]
        self._looked.append(torch.stack([value.double() for value in sums]))

    def on_validation_epoch_end(self) -> None:
        *sums, weight = self._summed(torch.stack(self._looked).sum(0))
        self._looked.clear()
        # What the logger takes for its step, which it would otherwise count from 0.
        self.log("step", float(self.global_step), sync_dist=True)
        for name, value in zip(("loss", "overlap", "greedy_agreement"), sums, strict=True):
            self.log(f"validation/{name}", (value / weight).float(), prog_bar=name == "overlap", sync_dist=True)

    def on_validation_model_eval(self) -> None:
        """Stays in training mode: without dropout it is the same, but for NF4 layers, see `training.fit.lora`."""

    def on_validation_model_train(self) -> None:
        pass

    def configure_optimizers(self) -> Any:
        trainable = [parameter for parameter in self.parameters() if parameter.requires_grad]
        betas = (self._momentum, 0.99)
        optimizer = torch.optim.AdamW(trainable, lr=self._learning_rate, betas=betas, weight_decay=0.0)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self._rate)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:  # type: ignore[override]
        trainable = {name for name, parameter in self.named_parameters() if parameter.requires_grad}
        state = super().state_dict(*args, **kwargs)
        return {name: tensor for name, tensor in state.items() if name in trainable}

    def _check(self, loss: Tensor) -> None:
        if not torch.isfinite(loss):
            raise NonFiniteLossError(f"the loss is {loss.item()} at step {self.global_step}")

    def _rate(self, step: int) -> float:
        warmup = min(1.0, (step + 1) / max(1, self._warmup_steps))
        done = min(1.0, max(step / self._max_steps, self._elapsed_fraction()))
        return warmup * max(0.5 * (1 + math.cos(math.pi * done)), 0.02)

    def _summed(self, value: Tensor) -> Tensor:
        """The sum of `value` over all processes."""
        return self.trainer.strategy.reduce(value.clone(), reduce_op="sum")


def _joined(by_step: Sequence[PositionScores]) -> Tensor:
    """The mean loss over the steps of a round, by their weights."""
    weights = [LATER**step for step in range(len(by_step))]
    losses = [weight * scores.loss for weight, scores in zip(weights, by_step, strict=True)]
    return torch.stack(losses).sum() / sum(weights)
