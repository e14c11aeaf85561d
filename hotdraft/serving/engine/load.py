"""Building a serving process from its configuration."""

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
    load_tokenizer,
)
from hotdraft.pipeline.models.names import local_folder
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.serving.decoding.build import build_decoder
from hotdraft.serving.engine.aside import aside
from hotdraft.serving.engine.engine import Engine
from hotdraft.serving.engine.recorder import Recorder
from hotdraft.serving.models.attention import ATTENTION, register_attention
from hotdraft.serving.models.context_length import check_context_length


def build_engine(config: HotdraftConfig, buffer: ReplayBuffer | None) -> Engine:
    """Load the models and make an engine, not yet started, that records to `buffer`.

    Raises `ModelError` for models that are missing or do not fit each other.
    """
    return aside(lambda: _build(config, buffer))


def _build(config: HotdraftConfig, buffer: ReplayBuffer | None) -> Engine:
    if config.engine.threads is not None:
        torch.set_num_threads(config.engine.threads)
    register_attention()
    device = choose_device(config.device)
    dtype = choose_dtype(config.dtype, device)
    tokenizer = load_tokenizer(config.target)
    if config.draft is not None:
        check_same_vocabulary(config.target, tokenizer, config.draft, load_tokenizer(config.draft))
    target = load_causal_lm(config.target, dtype=dtype, device=device, attn_implementation=ATTENTION)
    draft = None
    if config.draft is not None:
        draft = load_causal_lm(config.draft, dtype=dtype, device=device, attn_implementation=ATTENTION)
    check_context_length(
        (config.target, target.config),
        None if draft is None or config.draft is None else (config.draft, draft.config),
        max_model_len=config.engine.max_model_len,
        max_k=config.engine.largest_k,
    )
    eos_ids = _eos_ids(target, tokenizer.eos_token_id)
    vocab_size = target.config.get_text_config().vocab_size
    vocabulary = None
    if config.engine.draft_vocab_size is not None:
        vocabulary = choose_vocabulary(
            [draft_ranking(config, vocab_size)], config.engine.draft_vocab_size, vocab_size
        )
    decoder = build_decoder(
        target,
        draft,
        num_slots=config.engine.num_slots,
        max_model_len=config.engine.max_model_len,
        max_k=config.engine.largest_k,
        log_top_k=config.recorder.top_k,
        draft_vocabulary=vocabulary,
        reuse_prefixes=config.engine.reuse_prefixes,
    )
    del target, draft  # what the runners do not keep is freed
    return Engine(
        decoder,
        tokenizer,
        k=config.engine.k,
        max_queue=config.engine.max_queue,
        prefill_chunk=config.engine.prefill_chunk,
        eos_ids=eos_ids,
        recorder=Recorder(buffer, config.recorder) if buffer is not None and config.recorder.enabled else None,
    )


def draft_ranking(config: HotdraftConfig, vocab_size: int) -> Tensor | None:
    """The ranking of tokens in the draft's folder, if there is one and the draft's head is to be trimmed."""
    if config.draft is None or config.engine.draft_vocab_size is None:
        return None
    return read_vocabulary(local_folder(config.draft), vocab_size)


def _eos_ids(model: PreTrainedModel, tokenizer_eos: int | None) -> frozenset[int]:
    configured = model.generation_config.eos_token_id if model.generation_config is not None else None
    ids = configured if isinstance(configured, list) else [configured]
    return frozenset(int(token) for token in [*ids, tokenizer_eos] if token is not None)
