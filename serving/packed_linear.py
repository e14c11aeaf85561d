"""Linear layers whose frozen weight is packed once in oneDNN's own layout, for bfloat16 on a CPU.

Without it every call reorders the weight first, which for a few tokens costs more than the product.
"""

import torch
from torch import nn
from transformers import PreTrainedModel


class PackedLinear(nn.Module):
    """y = x Wᵀ + b with W packed; W itself is not kept."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self.bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(inputs, self.packed, self.bias, "none", [], "")


def pack_frozen(target: PreTrainedModel, draft: PreTrainedModel | None) -> None:
    """Pack all of the target and, if it is the target's, the draft's head; the draft's layers get swapped.

    Does nothing where packing has no use: in float32, on a GPU.
    """
    if target.device.type != "cpu" or target.dtype != torch.bfloat16:
        return
    head = target.get_output_embeddings()
    shares_head = draft is not None and torch.equal(draft.get_output_embeddings().weight, head.weight)
    for name, module in list(target.named_modules()):
        if isinstance(module, nn.Linear):
            target.set_submodule(name, PackedLinear(module))
    if draft is not None and shares_head:
        draft.set_output_embeddings(target.get_output_embeddings())
