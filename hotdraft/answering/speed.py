"""Speeds that pre-distillation tells: of its stages before the run, of decoding with the draft after it."""

import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from hotdraft.answering.batch import answer_all, generation_config, started
from hotdraft.answering.collect import model_names
from hotdraft.answering.requests import answer_requests, text_pieces
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.loading import load_tokenizer
from hotdraft.pipeline.models.names import local_folder
from hotdraft.pipeline.replay.buffer import ReplayBuffer, is_held_out
from hotdraft.pipeline.store.connection import open_client
from hotdraft.pipeline.traffic.prompts import Prompt
from hotdraft.pipeline.traffic.sources import Text
from hotdraft.serving.engine.load import build_engine
from hotdraft.serving.messages.request import GenerationRequest
from hotdraft.training.planning.machine import Available
from hotdraft.training.planning.memory_plan import MemoryPlan
from hotdraft.training.planning.plan_time import Step
from hotdraft.training.predistill.finished_draft import PredistillResult
from hotdraft.training.predistill.step_trial import try_step
from hotdraft.training.scoring.target_scores import ScoredText

MEASURED_PROMPTS = 8
REPEATS = 3
TRIED_ITEMS = 256
"""More than fill a batch."""


def weights_here(config: HotdraftConfig) -> bool:
    """Whether the models' weights are at hand, or have now been fetched from the hub."""
    return all(any(local_folder(name).glob("*.safetensors")) for name in model_names(config))


def answer_speed(config: HotdraftConfig, items: Sequence[Prompt | Text]) -> float | None:
    """Output tokens of the target a second, all slots together, over one batch of answers.

    None where no prompt is there, fits, or is answered.
    """
    prompts = [item for item in items if isinstance(item, Prompt)][: config.predistill.num_slots]
    requests = list(answer_requests(config, load_tokenizer(config.target), prompts).values())
    if not requests:
        return None
    with tempfile.TemporaryDirectory(prefix="hotdraft-plan-") as folder:
        engine = build_engine(generation_config(config, requests), ReplayBuffer(folder))
        tokens: list[int] = []
        with started(engine):
            begun = time.perf_counter()
            answer_all(engine, requests, lambda _, token_ids: tokens.append(len(token_ids)))
            return sum(tokens) / (time.perf_counter() - begun) if tokens else None


def try_training(plan: MemoryPlan, available: Available, items: Sequence[Prompt | Text]) -> Step | None:
    """A step of training on the first of `items`, answers as long as they may be; None if none can be trained on.

    Raises as `training.predistill.step_trial.try_step` does.
    """
    config, first = plan.run.config, items[:TRIED_ITEMS]
    tokenizer = load_tokenizer(config.target)
    requests = answer_requests(config, tokenizer, [item for item in first if isinstance(item, Prompt)])
    pieces = text_pieces(config, tokenizer, [item for item in first if isinstance(item, Text)])
    texts = [_answered(request) for request in requests.values()] + list(pieces.values())
    texts = [text for text in texts if len(text.prompt_ids) <= config.predistill.batch_tokens]
    return try_step(plan, available, texts) if texts else None


def _answered(request: GenerationRequest) -> ScoredText:
    """`request` with tokens of its prompt for an answer."""
    ids = np.asarray(request.prompt_ids, np.int32)
    return ScoredText(request.request_id, request.domain, 1.0, ids, np.resize(ids, request.params.max_tokens))


def show_speed_up(config: HotdraftConfig, out: Path, outcome: PredistillResult, prompts: Sequence[Prompt]) -> None:
    """Answer held-out `prompts` with and without the draft, one at a time; print ratio and prediction.

    It goes into the MLflow run as `measured_speed_up` and `predicted_speed_up`.
    """
    known = answer_requests(config, load_tokenizer(config.target), prompts).values()
    held_out = [request for request in known if is_held_out(request.prompt_ids, config.replay.held_out_fraction)]
    requests = [
        replace(request, params=replace(request.params, temperature=0.0)) for request in held_out[:MEASURED_PROMPTS]
    ]
    if not requests:
        return
    # text would guess what was answered a turn before
    alone: dict[str, Any] = {"num_slots": 1, "k": "auto", "reuse_prefixes": False, "proposers": ["draft"]}
    engine = build_engine(
        config.model_copy(update={"draft": str(out), "engine": config.engine.model_copy(update=alone)}), None
    )
    with started(engine):
        turns = [_seconds(engine, requests, 0) / _seconds(engine, requests, "auto") for _ in range(1 + REPEATS)]
    ratios = turns[1:]  # the first warms up
    measured = statistics.median(ratios)
    predicted = outcome.predicted_speed_up
    client = open_client(config)
    client.log_metric(outcome.run_id, "measured_speed_up", measured)
    client.log_metric(outcome.run_id, "predicted_speed_up", predicted)
    Console(markup=False).print(
        f"Speed-up over plain decoding, one greedy request at a time on this machine: measured {measured:.2f} "
        f"({min(ratios):.2f} to {max(ratios):.2f}), predicted for memory-bound decoding {predicted:.2f}.",
        highlight=False,
        soft_wrap=True,
    )


def _seconds(engine: Any, requests: Sequence[GenerationRequest], k: Any) -> float:
    engine.k = k
    begun = time.perf_counter()
    answer_all(engine, requests, lambda *_: None)
    return time.perf_counter() - begun
