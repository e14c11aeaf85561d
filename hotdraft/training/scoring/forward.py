"""A draft's forward pass in two parts: the states at supervised positions, and what makes logits of them.

Apart, the logits of a large vocabulary need never exist all at once.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from hotdraft.pipeline.models.hidden_state_draft import HiddenStateDraft
from hotdraft.pipeline.models.layer_stack import with_cache
from hotdraft.training.batches.packing import PackedBatch
from hotdraft.training.scoring.kept_prompts import KeptPrompts
from hotdraft.training.scoring.packed_attention import attend_within_requests

T = TypeVar("T")

CHUNK_LOGITS = 2**24
"""Logits alive at a time: 64 MB in float32. Fewer would make the matrix products of the head too small to
be efficient, more would only cost memory."""

STEPS = 3
"""Of a round that a draft learns to go by its own states in."""

NO_MASS = -1e4
"""A logit beside which every other has all the mass; not infinite, as its products with 0 must be 0."""


def hidden_states(model: nn.Module, batch: PackedBatch, prompts: KeptPrompts | None = None) -> Tensor:
    """States [N, H] after the last layer and its norm, at the supervised positions of `batch`.

    With `prompts`, what stands before these is taken from there, and no gradient goes through it.
    """
    causal = _causal_lm(model)
    attend_within_requests(causal)
    if prompts is not None:
        cache, before = prompts.before(causal, batch)
        answered = [length - read for length, read in zip(batch.lengths, before, strict=True)]
        output = causal.base_model(
            input_ids=batch.input_ids[:, batch.supervised],
            attention_mask=torch.tensor([before, answered])[None, None],
            position_ids=batch.position_ids[:, batch.supervised],
            **with_cache(causal.base_model, cache),
        )
        return output[0].squeeze(0)
    return _read_whole(causal, batch, use_cache=False)[0]


def states_by_step(model: nn.Module, batch: PackedBatch, prompts: KeptPrompts | None = None) -> Sequence[Tensor]:
    """`hidden_states` [N, H] of each step of a round that a draft differs in.

    One that reads the target's states has its own to go by after its first token, and learns to.
    """
    causal = _causal_lm(model)
    if isinstance(causal, HiddenStateDraft):
        return list(_read_whole(causal, batch, steps=STEPS))
    return [hidden_states(model, batch, prompts)]


def _read_whole(causal: PreTrainedModel, batch: PackedBatch, **options: object) -> Tensor:
    """[steps, N, H]."""
    output = causal.base_model(
        input_ids=batch.input_ids,
        attention_mask=torch.tensor([[[batch.lengths]]]),
        position_ids=batch.position_ids,
        **options,
    )
    return output[0].index_select(1, batch.supervised)


class OutputHead:
    """Logits [N, V] from states [N, H], as the model itself makes them: scaled or capped where it does so.

    It is the model's own forward pass over a copy whose layers give back what they get. Modules are shared.
    With a `vocabulary` (int64 [S]) it is a trimmed head as drafts are served with: logits [N, S + 1] of these
    tokens, in their order, and a last one that stands for every other token and never has any mass.
    """

    def __init__(self, model: nn.Module, vocabulary: Tensor | None = None) -> None:
        causal = _causal_lm(model)
        self._module = causal.get_output_embeddings()
        self._shell = copy.copy(causal)
        self._shell._modules = {**causal._modules, causal.base_model_prefix: _NoLayers()}
        self.vocab_size = self._width = int(causal.config.get_text_config().vocab_size)
        self._places: Tensor | None = None
        if vocabulary is not None:
            self._width = len(vocabulary) + 1
            self._places = torch.full((self.vocab_size,), len(vocabulary), device=vocabulary.device)
            self._places[vocabulary] = torch.arange(len(vocabulary), device=vocabulary.device)
            trimmed = _trimmed(self._module, vocabulary)
            names = [name for name, module in causal._modules.items() if module is self._module]
            self._shell._modules.update(dict.fromkeys(names, trimmed))
            self._module = trimmed

    def __call__(self, hidden: Tensor) -> Tensor:
        # Indexing the row, not squeezing it, would cost a zero-filled [1, N, V] in the backward pass.
        return self._shell.forward(inputs_embeds=hidden[None], use_cache=False).logits.squeeze(0)

    def places(self, token_ids: Tensor) -> Tensor:
        """Columns of the logits that stand for `token_ids`, in their shape."""
        if self._places is None:
            return token_ids
        self._places = self._places.to(token_ids.device)  # once: the model may have moved since
        return self._places[token_ids]

    @property
    def is_trimmed(self) -> bool:
        return self._places is not None

    def knows(self, token_ids: Tensor) -> Tensor:
        """bool: which of `token_ids` a trimmed head covers."""
        return self.places(token_ids) < self._width - 1

    @property
    def trainable(self) -> list[nn.Parameter]:
        return [parameter for parameter in self._module.parameters() if parameter.requires_grad]

    def chunks(self, count: int) -> list[slice]:
        """`count` positions in runs of at most `CHUNK_LOGITS` logits, of at least one position."""
        size = max(1, CHUNK_LOGITS // self._width)
        return [slice(start, start + size) for start in range(0, count, size)]


def _trimmed(head: nn.Linear, vocabulary: Tensor) -> nn.Linear:
    """The rows of `head` for `vocabulary`, not trained, and one of a logit so low that it has no mass."""
    rows = vocabulary.to(head.weight.device)
    trimmed = nn.Linear(head.in_features, len(rows) + 1, device=head.weight.device, dtype=head.weight.dtype)
    trimmed.requires_grad_(False)
    trimmed.weight[:-1] = head.weight.detach()[rows]
    trimmed.weight[-1] = 0
    trimmed.bias[:-1] = 0 if head.bias is None else head.bias.detach()[rows]
    trimmed.bias[-1] = NO_MASS
    return trimmed


class DraftForward(nn.Module):
    """All work on a draft's weights as one forward pass, within which FSDP has them gathered."""

    def __init__(
        self, model: nn.Module, vocabulary: Tensor | None = None, prompts: KeptPrompts | None = None
    ) -> None:
        """`vocabulary`: see `OutputHead`; `prompts`: see `hidden_states`."""
        super().__init__()
        self.model = model
        self._head = OutputHead(model, vocabulary)
        self._prompts = prompts

    def forward(self, batch: PackedBatch, read: Callable[[Tensor, OutputHead], T]) -> Sequence[T]:
        """What `read` makes of the states [N, H] and the head, for each of `states_by_step`."""
        return [read(states, self._head) for states in states_by_step(self.model, batch, self._prompts)]


def disable_dropout(model: nn.Module) -> None:
    """A draft learns what it will say when served, where nothing is dropped; nor need a resumed run know of it."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if isinstance(value, float) and ("dropout" in name or name == "layerdrop"):
                setattr(module, name, 0.0)


@dataclass
class _States(BaseModelOutputWithPastAndCrossAttentions):
    """Of no layers, in every form that a causal model reads."""

    router_logits: None = None
    """Of a mixture of experts, which asks for them even where none were to be kept."""


class _NoLayers(nn.Module):
    def forward(self, *_: object, inputs_embeds: Tensor, **__: object) -> _States:
        return _States(last_hidden_state=inputs_embeds)

    @property
    def decoder(self) -> "_NoLayers":
        """OPT's forward pass reaches past its base model."""
        return self


def _causal_lm(model: nn.Module) -> PreTrainedModel:
    causal: Any = model.get_base_model() if isinstance(model, PeftModel) else model
    return causal
