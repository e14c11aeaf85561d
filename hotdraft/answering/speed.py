"""Speeds that pre-distillation tells: of its stages before the run, of decoding with the draft after it."""

import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from hotdraft.answering.collect import model_names
from hotdraft.answering.requests import answer_requests
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.loading import (
    choose_device,
    choose_dtype,
    load_causal_lm,
    load_tokenizer,
    local_folder,
)
from hotdraft.pipeline.replay.buffer import ReplayBuffer, is_held_out, sample_from_row
from hotdraft.pipeline.store.connection import open_client
from hotdraft.pipeline.traffic.prompts import Prompt
from hotdraft.pipeline.traffic.sources import Text
from hotdraft.serving.engine.batch import answer_all, generation_config, started
from hotdraft.serving.engine.load import build_engine
from hotdraft.serving.messages.request import GenerationRequest
from hotdraft.training.drafts.draft_init import make_draft
from hotdraft.training.planning.plan_time import Speed
from hotdraft.training.predistill.finished_draft import PredistillResult
from hotdraft.training.predistill.step_speed import train_tokens_per_second

MEASURED_PROMPTS = 8
REPEATS = 3


def measure_speed(config: HotdraftConfig, items: Sequence[Prompt | Text]) -> Speed | None:
    """Of one batch of answers and a few training steps; None without weights at hand or prompts."""
    prompts = [item for item in items if isinstance(item, Prompt)][: config.predistill.num_slots]
    if not prompts or not all(any(local_folder(name).glob("*.safetensors")) for name in model_names(config)):
        return None
    requests = list(answer_requests(config, load_tokenizer(config.target), prompts).values())
    with tempfile.TemporaryDirectory(prefix="hotdraft-plan-") as folder:
        buffer = ReplayBuffer(folder)
        engine = build_engine(generation_config(config, requests), buffer)
        tokens: list[int] = []
        with started(engine):
            begun = time.perf_counter()
            answer_all(engine, requests, lambda _, token_ids: tokens.append(len(token_ids)))
            seconds = time.perf_counter() - begun
        samples = [sample_from_row(row) for row in buffer.load().with_format("numpy")]
    device = choose_device(config.device)
    target = load_causal_lm(config.target, dtype=choose_dtype(config.dtype, device), device=device)
    # which layers and channels makes no difference to the speed, and importance takes text
    settings = config.predistill.model_copy(update={"layer_choice": "even"})
    draft, _ = make_draft(target, settings)
    del target
    return Speed(sum(tokens) / seconds, train_tokens_per_second(draft, settings, samples))


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
    alone: dict[str, Any] = {"num_slots": 1, "k": "auto", "reuse_prefixes": False}
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
    Console().print(
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
