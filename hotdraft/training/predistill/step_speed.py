"""How fast a draft trains here: a few steps of the kind that a run consists of, on samples at hand."""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from hotdraft.pipeline.config.learning import PredistillConfig
from hotdraft.pipeline.replay.sample import ReplaySample
from hotdraft.training.batches.packing import grouped, pack
from hotdraft.training.planning.plan_time import tokens_per_second
from hotdraft.training.predistill.train_draft import trainable
from hotdraft.training.scoring.forward import OutputHead, hidden_states
from hotdraft.training.scoring.position_scores import position_scores


def train_tokens_per_second(
    draft: PreTrainedModel, settings: PredistillConfig, samples: Sequence[ReplaySample]
) -> float:
    """Packed tokens a second of one device. `draft`, which `drafts.draft_init.make_draft` made, is changed."""
    compute = draft.dtype
    device = draft.device
    model = trainable(draft, settings)
    head = OutputHead(model)
    optimizer = torch.optim.AdamW(parameter for parameter in model.parameters() if parameter.requires_grad)
    full = max(grouped(samples, settings.batch_tokens), key=lambda group: sum(len(s.output_ids) for s in group))
    batch = pack(full, max_length=settings.batch_tokens).on(device)

    def step() -> int:
        for _ in range(settings.accumulate):
            with torch.autocast(device.type, compute, enabled=compute != torch.float32):
                scores = position_scores(
                    hidden_states(model, batch), head, batch=batch, loss=settings.loss, measure=False
                )
            (scores.loss / batch.step_weight).backward()
        optimizer.step()
        optimizer.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return settings.accumulate * batch.input_ids.shape[1]

    return tokens_per_second(step)
