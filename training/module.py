"""The Lightning module: a draft learns the target's logged distributions."""

import math
from collections.abc import Callable
from typing import Any

import lightning
import torch
from torch import Tensor, nn

from training.data import PackedBatch
from training.losses import expected_acceptance, forward_kl

WARMUP_STEPS = 5
LOG_EVERY_STEPS = 10


class NonFiniteLossError(ValueError):
    """The loss became NaN or infinite: nothing that comes after could be trusted."""


def draft_logits(model: nn.Module, batch: PackedBatch) -> Tensor:
    """Logits [N, V] at the supervised positions only, where the output head's work is worth it."""
    output = model(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask,
        position_ids=batch.position_ids,
        logits_to_keep=batch.supervised,
        use_cache=False,
    )
    return output.logits.squeeze(0)  # indexing would cost a zero-filled [1, N, V] in the backward pass


class DistillationModule(lightning.LightningModule):
    """Weighted forward KL on the trainable parameters of `model`, under AdamW and a cosine-decayed rate.

    `elapsed_fraction` is the share of a time budget that is spent; the learning rate follows it or the
    steps, whichever is further, so that it has reached its end when either budget ends the run.
    Checkpoints hold the trainable parameters only.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        learning_rate: float,
        max_steps: int,
        elapsed_fraction: Callable[[], float] = lambda: 0.0,
    ) -> None:
        super().__init__()
        self.model = model
        self.strict_loading = False
        self._learning_rate = learning_rate
        self._max_steps = max_steps
        self._elapsed_fraction = elapsed_fraction

    def training_step(self, batch: PackedBatch, batch_idx: int) -> Tensor:
        logits = draft_logits(self.model, batch)
        targets = (batch.top_ids, batch.top_logprobs, batch.tail_logprob)
        loss = (forward_kl(logits, *targets) * batch.weight).sum() / batch.weight.sum()
        if not torch.isfinite(loss):
            raise NonFiniteLossError(f"the loss is {loss.item()} at step {self.global_step}")
        self.log("loss", loss.detach(), prog_bar=True)
        if self.global_step % LOG_EVERY_STEPS == 0:
            with torch.no_grad():
                greedy = torch.zeros_like(batch.temperature)
                agreement = expected_acceptance(logits, *targets, greedy).mean()
                overlap = expected_acceptance(logits, *targets, greedy + 1).mean()
                expected = torch.where(batch.temperature == 0, agreement, overlap).mean()
            self.log("overlap", overlap, prog_bar=True)
            self.log("expected_acceptance", expected)
            self.log("tokens", float(len(batch.supervised)))
        return loss

    def configure_optimizers(self) -> Any:
        trainable = [parameter for parameter in self.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trainable, lr=self._learning_rate, betas=(0.9, 0.99), weight_decay=0.0)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self._rate)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:  # type: ignore[override]
        trainable = {name for name, parameter in self.named_parameters() if parameter.requires_grad}
        state = super().state_dict(*args, **kwargs)
        return {name: tensor for name, tensor in state.items() if name in trainable}

    def _rate(self, step: int) -> float:
        warmup = min(1.0, (step + 1) / WARMUP_STEPS)
        done = min(1.0, max(step / self._max_steps, self._elapsed_fraction()))
        return warmup * max(0.5 * (1 + math.cos(math.pi * done)), 0.02)
