"""What a draft is pre-distilled on, brought into the replay buffer with the target's distributions.

Three kinds: the target's answers to prompts, texts as they are, and answers of the draft itself
(on-policy distillation: DistillSpec, Zhou et al., 2024), the latter two scored by the target. What the buffer
holds already, by id, is not made again.
"""

import gc
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from transformers import PreTrainedModel

from hotdraft.answering.batch import CollectError, _check_written, answer_all, generation_config, started
from hotdraft.answering.requests import answer_requests, on_policy_requests, text_pieces
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.loading import (
    choose_device,
    choose_dtype,
    fingerprint,
    load_causal_lm,
    load_config_of,
    load_tokenizer,
)
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.replay.sample import ReplaySample
from hotdraft.pipeline.traffic.prompts import Prompt
from hotdraft.pipeline.traffic.sources import Text
from hotdraft.serving.engine.aside import aside
from hotdraft.serving.engine.load import build_engine
from hotdraft.serving.messages.request import GenerationRequest
from hotdraft.training.scoring.target_scores import ScoredText, score

TEXTS_AT_ONCE = 64
ANSWERS_AT_ONCE = 16
"""Per slot: answers of the draft that are scored together. The last of them leave slots empty."""

Advance = Callable[[int, int], None]
"""Hears of finished items and their output tokens."""


def collect(
    config: HotdraftConfig,
    items: Sequence[Prompt | Text],
    buffer: ReplayBuffer,
    draft_folder: Path | None,
    weights: str | None = None,
) -> dict[str, Collection[str]]:
    """Bring `buffer` to hold all that is to be learned from `items`, in their order.

    That is the target's answer to every prompt, every piece of text scored, and for `on_policy_fraction` of
    the prompts an answer of the draft in `draft_folder`, scored; none of these without a folder. Gives the ids
    of each kind. Prompts too long for `engine.max_model_len`, and answers that failed, are counted in a line of
    output each and left out. `weights` are the target's fingerprint, for which all of it is read if it is not
    given. Raises `CollectError`.
    """
    tokenizer, weights = load_tokenizer(config.target), weights or fingerprint(config.target)
    requests = answer_requests(config, tokenizer, [item for item in items if isinstance(item, Prompt)], weights)
    pieces = text_pieces(config, tokenizer, [item for item in items if isinstance(item, Text)], weights)
    on_policy = {} if draft_folder is None else on_policy_requests(config, requests, fingerprint(str(draft_folder)))
    wanted = requests.keys() | pieces.keys() | on_policy.keys()
    if not wanted:
        raise CollectError("there is nothing to learn from: no prompt and no text is left")
    known = _known_ids(buffer)

    failed: set[str] = set()
    if missing := [request for name, request in requests.items() if name not in known]:
        failed |= _record_answers(config, missing, buffer, len(requests))
        gc.collect()  # the engine's threads refer to it in circles, and the next model needs the room
    if unscored := [piece for name, piece in pieces.items() if name not in known]:
        _score_texts(config, unscored, buffer, len(pieces))
    if missing := [request for name, request in on_policy.items() if name not in known]:
        failed |= _score_answers(config, missing, str(draft_folder), buffer, len(on_policy))
        gc.collect()

    if failed == wanted:
        raise CollectError("nothing could be answered; the log says why")
    if failed:
        print(f"{len(failed)} of {len(wanted)} samples are left out: answering failed, and the log says why")
    if lost := len(wanted - failed - _known_ids(buffer)):
        raise CollectError(
            f"the replay buffer has lost {lost} of {len(wanted)} samples: "
            f"it deletes the oldest above {config.replay.max_bytes / 1e9:.2f} GB (replay.max_bytes)"
        )
    kinds = {"answers of the target": [*requests], "text": [*pieces], "answers of the draft": [*on_policy]}
    return {kind: [name for name in names if name not in failed] for kind, names in kinds.items()}


def _record_answers(
    config: HotdraftConfig, requests: Sequence[GenerationRequest], buffer: ReplayBuffer, total: int
) -> set[str]:
    """Gives the ids of those that failed."""
    # slots attend as far as the longest of them does: neighbours of one length waste least
    requests = sorted(requests, key=lambda request: len(request.prompt_ids), reverse=True)
    engine = build_engine(generation_config(config, requests), buffer)
    engine.decoder.vocab_size = _vocab_size(config)
    with _stage("target answers", total, len(requests)) as advance, started(engine):
        failed = answer_all(engine, requests, lambda request, token_ids: advance(1, len(token_ids)))
    _check_written(engine)
    return failed


def _score_texts(config: HotdraftConfig, texts: Sequence[ScoredText], buffer: ReplayBuffer, total: int) -> None:
    target = _load_target(config)
    with _stage("texts scored", total, len(texts)) as advance:
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            _append_scores(config, target, texts[start : start + TEXTS_AT_ONCE], buffer, advance)


def _score_answers(
    config: HotdraftConfig, requests: Sequence[GenerationRequest], draft: str, buffer: ReplayBuffer, total: int
) -> set[str]:
    """Gives the ids of those that failed."""
    target = _load_target(config)
    engine = build_engine(generation_config(config, requests, draft), None)
    at_once = ANSWERS_AT_ONCE * engine.num_slots
    failed: set[str] = set()
    with _stage("draft answers scored", total, len(requests)) as advance, started(engine):
        for start in range(0, len(requests), at_once):
            answers: list[tuple[GenerationRequest, list[int]]] = []
            batch = requests[start : start + at_once]
            failed |= answer_all(engine, batch, lambda *answer, to=answers: to.append(answer))
            if answers:
                _append_scores(config, target, [_scored_text(*answer) for answer in answers], buffer, advance)
    return failed


def _scored_text(request: GenerationRequest, token_ids: list[int]) -> ScoredText:
    return ScoredText(
        request_id=request.request_id,
        domain=request.domain,
        temperature=request.params.temperature,
        prompt_ids=np.asarray(request.prompt_ids, np.int32),
        output_ids=np.asarray(token_ids, np.int32),
    )


def _append_scores(
    config: HotdraftConfig,
    target: PreTrainedModel,
    texts: Sequence[ScoredText],
    buffer: ReplayBuffer,
    advance: Advance,
) -> None:
    def scored() -> list[ReplaySample]:
        samples = []
        settings = config.predistill
        for sample in score(target, texts, config.recorder.top_k, settings.batch_tokens, _vocab_size(config)):
            samples.append(sample)
            advance(1, len(sample.output_ids))
        return samples

    buffer.append(aside(scored))


def model_names(config: HotdraftConfig) -> list[str]:
    """The target, and the existing draft if there is one."""
    return [config.target, *([config.predistill.draft] if config.predistill.draft else [])]


def _vocab_size(config: HotdraftConfig) -> int:
    """Rows that both models have: one of them may be padded with more rows than there are tokens."""
    return min(load_config_of(name).get_text_config().vocab_size for name in model_names(config))


def _load_target(config: HotdraftConfig) -> PreTrainedModel:
    device = choose_device(config.device)
    return load_causal_lm(config.target, dtype=choose_dtype(config.dtype, device), device=device)


@contextmanager
def _stage(name: str, total: int, missing: int) -> Iterator[Advance]:
    columns = (
        TextColumn(name),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[tokens]} tokens, {task.fields[rate]:.0f}/s"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, speed_estimate_period=600) as progress:
        task = progress.add_task(name, total=total, completed=total - missing, tokens=0, rate=0.0)
        told = 0

        def advance(items: int, tokens: int) -> None:
            nonlocal told
            told += tokens
            progress.update(task, advance=items, tokens=told, rate=told / (progress.tasks[0].elapsed or 1.0))

        yield advance


def _known_ids(buffer: ReplayBuffer) -> set[str]:
    return set(buffer.rows()["request_id"])
