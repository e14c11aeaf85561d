"""An oracle for packed rows: one pass of the whole model under a mask that says what sees what."""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hotdraft.training.batches.packing import PackedBatch


def draft_logits(model: PreTrainedModel, batch: PackedBatch) -> Tensor:
    """Logits [N, V] at the supervised positions."""
    model.set_attn_implementation("sdpa")
    owner = torch.repeat_interleave(torch.arange(len(batch.lengths)), torch.tensor(batch.lengths))
    seen = (owner[:, None] == owner[None, :]).tril()[None, None]
    output = model(
        input_ids=batch.input_ids,
        attention_mask=seen,
        position_ids=batch.position_ids,
        logits_to_keep=batch.supervised,
        use_cache=False,
    )
    return output.logits.squeeze(0)
