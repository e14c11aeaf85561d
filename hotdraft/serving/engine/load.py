"""Building a serving process from its configuration."""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.draft_vocabulary import choose_vocabulary, read_vocabulary
from hotdraft.pipeline.models.loading import (
    check_same_vocabulary,
    choose_device,
    choose_dtype,
    load_causal_lm,
    load_config_of,
    load_tokenizer,
)
from hotdraft.pipeline.models.names import ModelError, local_folder
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.system.array_ring import served_states
from hotdraft.pipeline.system.freed_memory import give_back
from hotdraft.pipeline.system.resources import usable_cores
from hotdraft.serving.decoding.build import build_decoder
from hotdraft.serving.decoding.guessing import Guessing
from hotdraft.serving.engine.aside import aside
from hotdraft.serving.engine.engine import Engine
from hotdraft.serving.engine.recorder import Recorder, ServedModels
from hotdraft.serving.graphs.graphs import CudaGraphs
from hotdraft.serving.messages.request import MODEL_TELLS
from hotdraft.serving.models.attention import ATTENTION, register_attention
from hotdraft.serving.models.context_length import check_servable

logger = logging.getLogger(__name__)


def build_engine(
    config: HotdraftConfig, buffer: ReplayBuffer | None, on_step: Callable[[str], object] = lambda step: None
) -> Engine:
    """Load the models and make an engine, not yet started, that records to `buffer`.

    `on_step` is told what is being done. Raises `ModelError` for models that are missing or do not fit each other
    or the configuration.
    """
    return aside(lambda: _build(config, buffer, on_step), yields=False)


def _build(config: HotdraftConfig, buffer: ReplayBuffer | None, on_step: Callable[[str], object]) -> Engine:
    if config.draft is not None and "draft" not in config.engine.proposers:
        raise ModelError("engine.proposers leaves the draft out: set draft to null as well")
    torch.set_num_threads(config.engine.threads or min(torch.get_num_threads(), usable_cores()))
    register_attention()
    device = choose_device(config.device)
    dtype = choose_dtype(config.dtype, device)
    on_step(f"reading the tokenizer of {config.target}")
    tokenizer = load_tokenizer(config.target)
    check_servable(
        (config.target, load_config_of(config.target)),
        None if config.draft is None else (config.draft, load_config_of(config.draft)),
        config.engine,
    )
    if config.draft is not None:
        check_same_vocabulary(config.target, tokenizer, config.draft, load_tokenizer(config.draft))
    on_step(f"loading {config.target}")
    target = load_causal_lm(config.target, dtype=dtype, device=device, attn_implementation=ATTENTION)
    draft = None
    if config.draft is not None:
        on_step(f"loading {config.draft}")
        draft = load_causal_lm(config.draft, dtype=dtype, device=device, attn_implementation=ATTENTION)
    models = [target] if draft is None else [target, draft]  # of which either may be padded further
    vocab_size = min(model.config.get_text_config().vocab_size for model in models)
    eos_ids = _eos_ids(target, tokenizer.eos_token_id, vocab_size)
    sampling_defaults, vocabulary = _sampling_defaults(target), draft_vocabulary(config, vocab_size)
    try:
        decoder = build_decoder(
            target,
            draft,
            num_slots=config.engine.num_slots,
            max_model_len=config.engine.max_model_len,
            max_k=config.engine.largest_k,
            log_top_k=config.recorder.top_k,
            max_proposed=config.engine.most_proposed,
            max_alternatives=config.engine.max_alternatives if config.engine.k == "auto" else 0,
            draft_vocabulary=vocabulary,
            draft_window=config.engine.draft_window,
            reuse_prefixes=config.engine.reuse_prefixes,
            instructions=config.engine.instructions,
            target_int8=config.engine.target_weights == "int8",
            draft_int8={"auto": None, "dtype": False, "int8": True}[config.engine.draft_weights],
            graphs=CudaGraphs(device) if device.type == "cuda" and not config.engine.enforce_eager else None,
        )
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):  # on a CPU torch has no kind of its own
            raise
        raise ModelError(
            f"no memory for engine.num_slots {config.engine.num_slots} of engine.max_model_len "
            f"{config.engine.max_model_len} tokens: set one of them lower"
        ) from error
    del target, draft, models  # what the runners do not keep is freed
    give_back()
    return Engine(
        decoder,
        tokenizer,
        k=config.engine.k,
        guessing=Guessing.of(config.engine) if config.engine.guesses else None,
        max_queue=config.engine.max_queue,
        prefill_chunk=config.engine.prefill_chunk,
        eos_ids=eos_ids,
        sampling_defaults=sampling_defaults,
        recorder=_recorder(config, buffer, keeps_states=decoder.keeps_states),
    )


def _recorder(config: HotdraftConfig, buffer: ReplayBuffer | None, *, keeps_states: bool) -> Recorder | None:
    if buffer is None or not config.recorder.enabled:
        return None
    states = served_states(config) if keeps_states else None
    return Recorder(buffer, config.recorder, states, models=ServedModels.of(config))


def draft_vocabulary(config: HotdraftConfig, vocab_size: int) -> Tensor | None:
    """The tokens [N] of the draft's head, if that is to be trimmed, of the `vocab_size` that both models have."""
    if config.engine.draft_vocab_size is None:
        return None
    return choose_vocabulary([draft_ranking(config)], config.engine.draft_vocab_size, vocab_size)


def draft_ranking(config: HotdraftConfig) -> Tensor | None:
    """The ranking of tokens in the draft's folder, if there is one and the draft's head is to be trimmed."""
    if config.draft is None or config.engine.draft_vocab_size is None:
        return None
    own = load_config_of(config.draft).get_text_config().vocab_size
    return read_vocabulary(local_folder(config.draft), own)


def _eos_ids(model: PreTrainedModel, tokenizer_eos: int | None, vocab_size: int) -> frozenset[int]:
    """Those that can come: a configuration may name others."""
    configured = model.generation_config.eos_token_id if model.generation_config is not None else None
    ids = configured if isinstance(configured, list) else [configured]
    return frozenset(token for token in [*ids, tokenizer_eos] if token is not None and 0 <= token < vocab_size)


def _sampling_defaults(model: PreTrainedModel) -> dict[str, float]:
    """What `generation_config.json` says, as far as there is such a thing here; vLLM's `auto` does the same."""
    told: Any = model.generation_config or object()
    penalty = getattr(told, "repetition_penalty", None)
    if penalty not in (None, 1.0):
        says = (
            "generation_config.json asks for a repetition_penalty of %s: only requests that ask for it get it, as"
        )
        logger.warning("%s from penalised answers nothing is learned", says % penalty)
    return {field: value for field in MODEL_TELLS if (value := getattr(told, field, None)) is not None}
