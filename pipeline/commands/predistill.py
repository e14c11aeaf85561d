"""`hotdraft predistill`: a draft from a target, before there is traffic."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pipeline.config import HotdraftConfig
    from pipeline.replay import ReplayBuffer
    from pipeline.traffic import Prompt


def predistill(
    config: Annotated[Path, typer.Option(help="YAML file with target, run_dir and a predistill section.")],
    out: Annotated[Path, typer.Option(help="Folder the draft is written to.")],
    prompts: Annotated[
        list[Path] | None, typer.Option(help="JSONL of prompts to learn from, beside the built-in ones.")
    ] = None,
) -> None:
    """Cut a draft from the target and distil it on the target's own answers.

    The answers are kept in the run folder, and training writes checkpoints: started again, the
    command goes on where it was stopped.
    """
    from pipeline.config import load_config
    from pipeline.generators.varied import varied
    from pipeline.replay import ReplayBuffer
    from pipeline.traffic import read_traffic

    settings = load_config(config)
    chosen = [prompt for path in prompts or [] for prompt in read_traffic(path)]
    chosen += varied(settings.predistill.builtin_prompts, settings.predistill.seed)
    random.Random(settings.predistill.seed).shuffle(chosen)  # whatever is answered so far is a fair mix
    buffer = ReplayBuffer(settings.replay_url, settings.replay.max_bytes)
    generate(settings, chosen, buffer)

    from training.predistill import predistill as train

    train(settings, buffer, out)


def generate(config: HotdraftConfig, prompts: list[Prompt], buffer: ReplayBuffer) -> None:
    """Let the target answer all `prompts` that the buffer does not hold yet."""
    from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from serving.app import build_engine
    from serving.offline import answer_all
    from serving.prompts import encode_chat
    from serving.request import GenerationRequest, SamplingParams

    known = set(buffer.load()["request_id"])
    plain = config.model_copy(
        update={
            "draft": None,
            "engine": config.engine.model_copy(
                update={"k": 0, "num_slots": config.predistill.num_slots, "max_queue": len(prompts) + 1}
            ),
        }
    )
    engine = build_engine(plain, buffer)
    temperatures = config.predistill.temperatures
    requests = []
    for index, prompt in enumerate(prompts):
        temperature = temperatures[index % len(temperatures)]
        request_id = hashlib.sha256(f"{temperature} {prompt.messages}".encode()).hexdigest()[:16]
        ids = encode_chat(engine.tokenizer, prompt.messages)
        if request_id in known or len(ids) + config.predistill.max_tokens > config.engine.max_model_len:
            continue
        params = SamplingParams(max_tokens=config.predistill.max_tokens, temperature=temperature, seed=index)
        requests.append(GenerationRequest(request_id, tuple(ids), params, prompt.domain))

    columns = [
        TextColumn("target answers"),
        *Progress.get_default_columns()[1:2],
        MofNCompleteColumn(),
        TextColumn("{task.fields[tokens]} tokens, {task.fields[rate]:.0f}/s"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    ]
    engine.start()
    try:
        with Progress(*columns) as progress:
            task = progress.add_task(
                "", total=len(prompts), completed=len(prompts) - len(requests), tokens=0, rate=0
            )
            done = 0

            def on_answer(tokens: int) -> None:
                nonlocal done
                done += tokens
                elapsed = progress.tasks[0].elapsed or 1.0
                progress.update(task, advance=1, tokens=done, rate=done / elapsed)

            answer_all(engine, requests, on_answer)
    finally:
        engine.stop()
        if engine.recorder is not None:
            engine.recorder.close()
