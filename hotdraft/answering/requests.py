"""What pre-distillation asks of the models: items become requests and pieces of text, each under an id.

An id is a hash of what the item says and of who answers it at what length, the same in every run. So a run that was
stopped can go on, and none takes what another model said for its own, or this one before it was made anew:
`weights` are the target's fingerprint, and may be left out where nothing is kept.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
from rich.console import Console
from transformers import PreTrainedTokenizerBase

from hotdraft.answering.batch import CollectError
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.loading import load_tokenizer
from hotdraft.pipeline.replay.schema import is_held_out
from hotdraft.pipeline.traffic.prompts import Prompt
from hotdraft.pipeline.traffic.sources import Text
from hotdraft.serving.messages.prompt_encoder import PromptError, encode_chat
from hotdraft.serving.messages.request import GenerationRequest, SamplingParams
from hotdraft.training.scoring.target_scores import ScoredText

SPLIT_ITEMS = 256
"""Looked at together: most often these are enough."""
BYTES_PER_TOKEN = 3
"""Of text in UTF-8, rather too few than too many: English takes about 4, Chinese 3 to 4."""


def output_tokens(config: HotdraftConfig, items: Sequence[Prompt | Text]) -> int:
    """Output tokens that `collect` writes, about and at most; counts no token, so that it takes no time."""
    settings = config.predistill
    answers = sum(_max_tokens(config, item) for item in items if isinstance(item, Prompt))
    return int(answers * (1 + settings.on_policy_fraction)) + text_tokens(items)


def text_tokens(items: Sequence[Prompt | Text]) -> int:
    """Tokens of the texts among `items`, about and at most."""
    return sum(len(item.text.encode()) for item in items if isinstance(item, Text)) // BYTES_PER_TOKEN


def answer_requests(
    config: HotdraftConfig, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Prompt], weights: str = ""
) -> dict[str, GenerationRequest]:
    """What the target is asked, by id: each prompt at its own temperature or else at the next of the configured."""
    if prompts and not tokenizer.chat_template:
        raise CollectError(
            f"target {config.target!r} has no chat template, so that prompts cannot be put to it: "
            "give texts as predistill.sources, and 0 as predistill.builtin_prompts"
        )
    temperatures = config.predistill.temperatures
    requests = {}
    too_long = 0
    for index, prompt in enumerate(prompts):
        temperature = temperature_of(prompt, temperatures[index % len(temperatures)])
        try:
            ids = encode_chat(tokenizer, prompt.messages)
        except PromptError as error:
            raise CollectError(f"prompt {index} ({prompt.domain}): {error}") from error
        params = SamplingParams(max_tokens=_max_tokens(config, prompt), temperature=temperature, seed=index)
        if len(ids) + params.max_tokens > config.engine.max_model_len:
            too_long += 1
            continue
        name = request_id(config, prompt, temperature, weights)
        requests[name] = GenerationRequest(name, tuple(ids), params, prompt.domain)
    if too_long:
        Console(markup=False).print(
            f"{too_long} of {len(prompts)} prompts are left out: with their answers they are longer than "
            f"engine.max_model_len, {config.engine.max_model_len} tokens",
            highlight=False,
            soft_wrap=True,
        )
    return requests


def check_split(config: HotdraftConfig, items: Sequence[Prompt | Text]) -> None:
    """Raise `CollectError` unless some of `items` are to be trained on, and others held out."""
    tokenizer, fraction = load_tokenizer(config.target), config.replay.held_out_fraction
    sides: set[bool] = set()
    for start in range(0, len(items), SPLIT_ITEMS):
        part = items[start : start + SPLIT_ITEMS]
        requests = answer_requests(config, tokenizer, [item for item in part if isinstance(item, Prompt)])
        pieces = text_pieces(config, tokenizer, [item for item in part if isinstance(item, Text)])
        sides |= {is_held_out(request.prompt_ids, fraction) for request in requests.values()}
        wholes = (np.concatenate([piece.prompt_ids, piece.output_ids]) for piece in pieces.values())
        sides |= {is_held_out(whole, fraction) for whole in wholes}
        if len(sides) == 2:
            return
    raise CollectError(
        f"{len(items)} prompts and texts are too few: {fraction:g} of all (replay.held_out_fraction) are kept to "
        "judge the draft by, the others are trained on, and one of both would be none; give more by --prompts, or "
        "raise predistill.builtin_prompts"
    )


def request_id(config: HotdraftConfig, prompt: Prompt, temperature: float, weights: str) -> str:
    form = config.engine.target_weights
    return _id(config.target, weights, form, _max_tokens(config, prompt), temperature, prompt.messages)


def temperature_of(prompt: Prompt, default: float) -> float:
    return default if prompt.temperature is None else float(prompt.temperature)


def text_pieces(
    config: HotdraftConfig, tokenizer: PreTrainedTokenizerBase, texts: Sequence[Text], weights: str = ""
) -> dict[str, ScoredText]:
    """`texts` cut to pieces that training takes whole, by id. Each begins with the last token of the one before."""
    settings = config.predistill
    size = min(settings.text_tokens, settings.batch_tokens, config.engine.max_model_len)
    pieces = {}
    for text in texts:
        ids = np.asarray(tokenizer(text.text, verbose=False).input_ids, np.int32)
        for start in range(0, len(ids) - 1, size - 1):
            piece = ids[start : start + size]
            name = _id(config.target, weights, "text", piece.tolist())
            pieces[name] = ScoredText(name, text.domain, 1.0, piece[:1], piece[1:])
    return pieces


def on_policy_requests(
    config: HotdraftConfig, requests: dict[str, GenerationRequest], draft_fingerprint: str
) -> dict[str, GenerationRequest]:
    """Those of `requests` that the draft answers as well, under ids of their own."""
    chosen = {}
    for request in requests.values():
        if int(_id("on-policy", request.request_id), 16) / 16**16 < config.predistill.on_policy_fraction:
            name = _id("on-policy", draft_fingerprint, request.request_id)
            chosen[name] = GenerationRequest(name, request.prompt_ids, request.params, request.domain)
    return chosen


def _max_tokens(config: HotdraftConfig, prompt: Prompt) -> int:
    return min(config.predistill.max_tokens, prompt.max_tokens or config.predistill.max_tokens)


def _id(*parts: object) -> str:
    return hashlib.sha256(" ".join(map(str, parts)).encode()).hexdigest()[:16]
