"""A new draft that reads its target's hidden states, before it has learned anything."""

from collections.abc import Sequence

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from hotdraft.pipeline.config.learning import PredistillConfig
from hotdraft.pipeline.models.hidden_state_draft import HiddenStateConfig, HiddenStateDraft, are_layers
from hotdraft.pipeline.models.names import ModelError


def hidden_state_config(target: PreTrainedConfig, settings: PredistillConfig) -> HiddenStateConfig:
    """Of the draft that `predistill.hidden_states` asks for. Raises `ModelError` for layers that are not there."""
    layers, count = settings.hidden_states or [], target.get_text_config().num_hidden_layers
    if not are_layers(layers, count):
        raise ModelError(
            f"predistill.hidden_states must be distinct numbers of layers from 1 to {count} in ascending order, at "
            f"least one, not {layers}"
        )
    return HiddenStateConfig.beside(target, layers, settings.feed_forward)


def new_hidden_state_draft(target: PreTrainedModel, settings: PredistillConfig) -> PreTrainedModel:
    """With the target's embedding, head and last norm, on its device and in its dtype; the same for the same seed.

    Raises `ModelError` for a target whose head is no plain product of as wide states as its embedding has.
    """
    config = hidden_state_config(target.config, settings)
    embedding, head = target.get_input_embeddings(), target.get_output_embeddings()
    if getattr(embedding, "embedding_dim", None) != config.hidden_size or getattr(head, "bias", None) is not None:
        raise ModelError(
            f"a draft cannot read the hidden states of {type(target).__name__}: it would share its embedding and "
            "head, and these are of another form than Llama's"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        draft = HiddenStateDraft(config)
    parts: Sequence[tuple[torch.nn.Module, torch.nn.Module | None]] = [
        (draft.model.embed_tokens, embedding),
        (draft.lm_head, head),
        (draft.model.norm, getattr(target.base_model, "norm", None)),
    ]
    with torch.no_grad():
        for mine, its in parts:
            weight = getattr(its, "weight", None)
            if isinstance(weight, torch.Tensor) and weight.shape == mine.weight.shape:
                mine.weight.copy_(weight)  # type: ignore[operator]  # a Module's attribute
    draft.generation_config = target.generation_config
    return draft.to(target.device, target.dtype)  # type: ignore[arg-type]  # transformers' decorator hides `to`
