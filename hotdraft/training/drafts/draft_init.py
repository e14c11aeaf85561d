"""Where a draft comes from: some of its target's layers, a layer that reads their states, or a model that exists.

The first two keep the target's embedding and output head and leave them as they are; only layers and the
norm after them are trained.
"""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from hotdraft.pipeline.config.learning import PredistillConfig
from hotdraft.pipeline.models.layer_stack import layer_stack
from hotdraft.pipeline.models.loading import (
    check_same_vocabulary,
    from_state,
    load_causal_lm,
    load_config_of,
    load_tokenizer,
    shared_modules,
)
from hotdraft.pipeline.models.names import ModelError
from hotdraft.training.drafts.feed_forward import check_narrowable, choose_channels, narrowed
from hotdraft.training.drafts.hidden_state_init import hidden_state_config, new_hidden_state_draft
from hotdraft.training.drafts.layer_choice import check_layers, choose_layers, even_layers
from hotdraft.training.drafts.model_size import meta_model

BY_LAYER = ("layer_types", "mlp_layer_types", "no_rope_layers")
"""Lists in a config that have an entry for each layer."""


def check_draft(target: str, settings: PredistillConfig) -> PreTrainedConfig:
    """The config of the draft that `settings` ask for, found out without reading weights.

    Layers to be chosen by importance are not known yet: as many evenly spread ones stand for them.
    Raises `ModelError` for layers or channels that the target has not, layers that cannot be narrowed,
    and an existing model of another vocabulary.
    """
    if settings.draft is not None:
        return _check_existing(settings.draft, target)
    config = load_config_of(target)
    count = getattr(config, "num_hidden_layers", None)
    if count is None:
        raise ModelError(f"{target!r} ({type(config).__name__}) is no plain language model that can be cut")
    model = meta_model(config)
    layer_stack(model)
    if settings.hidden_states is not None:
        return hidden_state_config(config, settings)
    check_layers(settings, count)
    if settings.feed_forward is not None:
        check_narrowable(model, settings.feed_forward)
    layers = settings.layers if isinstance(settings.layers, list) else even_layers(count, settings.layers)
    return _cut_config(config, layers, settings.feed_forward)


def make_draft(
    target: PreTrainedModel, settings: PredistillConfig, batches: Sequence[Tensor] = ()
) -> tuple[PreTrainedModel, list[int] | None]:
    """The draft to train, on the target's device and in its dtype, and the layers it was cut from.

    An existing model was cut from none: None; what reads hidden states is new: []. `batches` are ids of text
    without padding, int64 [B, T], on which importance is measured; equal batches give equal drafts. `check_draft`
    comes first: here an existing model's vocabulary is not looked at again. Raises `ModelError` as that does.
    """
    if settings.draft is not None:
        return load_existing(settings.draft, target), None
    if settings.hidden_states is not None:
        draft = new_hidden_state_draft(target, settings)
        freeze_shared(draft)
        return draft, []
    layers = choose_layers(target, settings, batches)
    channels = None
    if settings.feed_forward is not None:
        check_narrowable(target, settings.feed_forward)
        channels = choose_channels(target, layers, settings.feed_forward, batches)
    draft = cut_layers(target, layers, channels)
    freeze_shared(draft)
    return draft, layers


def load_existing(name: str, target: PreTrainedModel) -> PreTrainedModel:
    """The model `name`; if its embedding and head are the target's they are frozen, as those of a cut are."""
    draft = load_causal_lm(name, dtype=target.dtype, device=target.device)
    pairs = zip(shared_modules(draft), shared_modules(target), strict=True)
    if all(torch.equal(mine.weight, its.weight) for mine, its in pairs):  # type: ignore[arg-type]  # a Module's attribute
        freeze_shared(draft)
    return draft


def cut_layers(
    target: PreTrainedModel, layers: Sequence[int], channels: Sequence[Tensor] | None = None
) -> PreTrainedModel:
    """A model of the target's architecture with copies of `layers` only; the target is left as it is.

    Of each layer's feed-forward only `channels` (int64 [m], ascending, one tensor a layer) are kept, if
    they are given. Raises `ModelError` for an empty list or an index the target does not have.
    """
    count = target.config.num_hidden_layers
    if not layers or not all(0 <= layer < count for layer in layers):
        raise ModelError(f"layers must be one or more indices from 0 to {count - 1}, not {list(layers)}")
    config = _cut_config(target.config, layers, None if channels is None else len(channels[0]))
    stack, _ = layer_stack(target)
    state = {}
    for name, tensor in target.state_dict().items():
        if not name.startswith(f"{stack}."):
            state[name] = tensor.clone()
            continue
        layer, _, rest = name.removeprefix(f"{stack}.").partition(".")
        for new, old in enumerate(layers):
            if old == int(layer):
                kept = tensor if channels is None else narrowed(rest, tensor, channels[new])
                state[f"{stack}.{new}.{rest}"] = kept.clone()
    draft = from_state(config, state, dtype=target.dtype)
    draft.generation_config = copy.deepcopy(target.generation_config)
    return draft.to(target.device)  # type: ignore[arg-type]  # transformers' decorator hides `to`


def freeze_shared(draft: PreTrainedModel) -> None:
    """Leave embedding and head as the target's: they stay out of training and out of the draft's file."""
    for module in shared_modules(draft):
        module.requires_grad_(False)


def _cut_config(config: PreTrainedConfig, layers: Sequence[int], feed_forward: int | None) -> PreTrainedConfig:
    count = config.num_hidden_layers
    cut = copy.deepcopy(config)
    cut.num_hidden_layers = len(layers)
    for name in BY_LAYER:
        values = getattr(config, name, None)
        if values is not None and len(values) == count:
            setattr(cut, name, [values[layer] for layer in layers])
    if feed_forward is not None:
        cut.intermediate_size = feed_forward
    return cut


def _check_existing(name: str, target: str) -> PreTrainedConfig:
    tokenizer = load_tokenizer(name)
    check_same_vocabulary(target, load_tokenizer(target), name, tokenizer)
    config = load_config_of(name)
    rows = config.get_text_config().vocab_size
    highest = max(tokenizer.get_vocab().values())
    if rows <= highest:
        raise ModelError(f"draft {name!r} has {rows} embeddings, and its tokenizer's ids go up to {highest}")
    return config
