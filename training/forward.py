"""A draft's forward pass in two parts: the states at supervised positions, and what makes logits of them.

Apart, the logits of a large vocabulary need never exist all at once.
"""

import copy
from collections.abc import Callable
from typing import Any, TypeVar

from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from training.packed_attention import attend_within_requests
from training.packing import PackedBatch

T = TypeVar("T")

CHUNK_LOGITS = 2**24
"""Logits alive at a time: 64 MB in float32. Fewer would make the matrix products of the head too small to
be efficient, more would only cost memory."""


def hidden_states(model: nn.Module, batch: PackedBatch) -> Tensor:
    """States [N, H] after the last layer and its norm, at the supervised positions of `batch`."""
    causal = _causal_lm(model)
    attend_within_requests(causal)
    output = causal.base_model(
        input_ids=batch.input_ids,
        attention_mask=batch.lengths.cpu()[None, None, None],
        position_ids=batch.position_ids,
        use_cache=False,
    )
    return output[0].squeeze(0).index_select(0, batch.supervised)


class OutputHead:
    """Logits [N, V] from states [N, H], as the model itself makes them: scaled or capped where it does so.

    It is the model's own forward pass over a copy whose layers give back what they get. Modules are shared.
    """

    def __init__(self, model: nn.Module) -> None:
        causal = _causal_lm(model)
        self._module = causal.get_output_embeddings()
        self._shell = copy.copy(causal)
        self._shell._modules = {**causal._modules, causal.base_model_prefix: _NoLayers()}
        self.vocab_size = int(causal.config.get_text_config().vocab_size)

    def __call__(self, hidden: Tensor) -> Tensor:
        # Indexing the row, not squeezing it, would cost a zero-filled [1, N, V] in the backward pass.
        return self._shell.forward(inputs_embeds=hidden[None], use_cache=False).logits.squeeze(0)

    @property
    def trainable(self) -> list[nn.Parameter]:
        return [parameter for parameter in self._module.parameters() if parameter.requires_grad]

    def chunks(self, count: int) -> list[slice]:
        """`count` positions in runs of at most `CHUNK_LOGITS` logits, of at least one position."""
        size = max(1, CHUNK_LOGITS // self.vocab_size)
        return [slice(start, start + size) for start in range(0, count, size)]


class DraftForward(nn.Module):
    """All work on a draft's weights as one forward pass, within which FSDP has them gathered."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._head = OutputHead(model)

    def forward(self, batch: PackedBatch, read: Callable[[Tensor, OutputHead], T]) -> T:
        """What `read` makes of the states [N, H] and the head."""
        return read(hidden_states(self.model, batch), self._head)


def disable_dropout(model: nn.Module) -> None:
    """A draft learns what it will say when served, where nothing is dropped; nor need a resumed run know of it."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if isinstance(value, float) and ("dropout" in name or name == "layerdrop"):
                setattr(module, name, 0.0)


class _NoLayers(nn.Module):
    def forward(self, *_: object, inputs_embeds: Tensor, **__: object) -> BaseModelOutputWithPastAndCrossAttentions:
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=inputs_embeds)

    @property
    def decoder(self) -> "_NoLayers":
        """OPT's forward pass reaches past its base model."""
        return self


def _causal_lm(model: nn.Module) -> PreTrainedModel:
    causal: Any = model.get_base_model() if isinstance(model, PeftModel) else model
    return causal
