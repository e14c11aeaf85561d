"""OpenVINO GenAI: its continuous batching pipeline on the CPU, without and with a draft model."""

import os
import subprocess
import sys
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai

from hotdraft.serving.benchmark.engines.conversion import converted
from hotdraft.serving.benchmark.engines.engine import (
    DRAFTED_TOKENS,
    PLAIN,
    EngineSettings,
    Mode,
    PeerUnavailable,
    RunResult,
    Speculation,
)

BLOCK = 32
"""Tokens in a block of the pipeline's cache on a CPU."""


class OpenVinoEngine:
    """One pipeline for plain decoding and one that speculates; both step only while a run asks them to."""

    name = "openvino"
    weights: str | None = None
    """As the exporter calls what they are brought to; None for what is nearest to the dtype that is measured."""

    def __init__(self, settings: EngineSettings) -> None:
        nearest, arithmetic = _precisions(settings.dtype)
        weights = self.weights or nearest
        self.version = f"{openvino_genai.__version__} ({weights} weights, {arithmetic} arithmetic and cache)"
        properties = {
            "INFERENCE_PRECISION_HINT": arithmetic,
            "KV_CACHE_PRECISION": arithmetic,  # 8 bits otherwise
            "INFERENCE_NUM_THREADS": settings.threads,
        }
        export = partial(_exported, settings.cache_folder, weights)
        load = partial(_load, export(settings.target_folder), _scheduler(settings), properties)
        self._pipelines = {"plain": load()}
        if settings.draft_folder is not None:
            draft = openvino_genai.draft_model(export(settings.draft_folder), "CPU", **properties)
            self._pipelines["speculative"] = load(draft_model=draft)

    def modes(self, concurrency: int) -> list[Mode]:
        drafted = DRAFTED_TOKENS if "speculative" in self._pipelines else ()
        return [PLAIN, *(Mode("speculative", k) for k in drafted)]

    def run(self, mode: Mode, prompts: list[list[int]], max_tokens: int, concurrency: int) -> RunResult:
        pipeline = self._pipelines[mode.kind]
        options = _greedy(max_tokens, mode.k)
        requests = [_Request(prompt) for prompt in prompts]
        waiting = requests[::-1]
        running: list[_Request] = []
        started = time.perf_counter()
        while waiting or running:
            while waiting and len(running) < concurrency:
                running.append(waiting.pop())
                running[-1].submit(pipeline, len(prompts) - len(waiting), options)
            if not pipeline.has_non_finished_requests():
                raise RuntimeError("openvino dropped a request before its last token")
            pipeline.step()
            for request in running:
                request.read()
            running = [request for request in running if len(request.token_ids) < max_tokens]
        seconds = time.perf_counter() - started
        speculation = _speculation(requests, max_tokens, mode.k) if isinstance(mode.k, int) else None
        outputs = [request.token_ids for request in requests]
        return RunResult(seconds, outputs, [request.token_times for request in requests], speculation)


class OpenVinoInt8Engine(OpenVinoEngine):
    """With weights of 8 bits in target and draft, and inputs too where OpenVINO chooses so."""

    name = "openvino-int8"
    weights = "int8"


class _Request:
    """A prompt under way and what came of it."""

    def __init__(self, prompt: list[int]) -> None:
        self.token_ids: list[int] = []
        self.token_times: list[float] = []
        """Seconds since `submit`."""
        self.steps: list[int] = []
        """Tokens that each step brought, the prompt's first."""
        self._prompt = openvino.Tensor(np.array([prompt], dtype=np.int64))

    def submit(self, pipeline: Any, request_id: int, options: Any) -> None:
        self._submitted = time.perf_counter()
        self._handle = pipeline.add_request(request_id, self._prompt, options)

    def read(self) -> None:
        """Take what the last step brought, if it brought anything."""
        if self._handle.can_read():
            (output,) = self._handle.read().values()
            self.token_ids += output.generated_ids
            self.token_times += [time.perf_counter() - self._submitted] * len(output.generated_ids)
            self.steps.append(len(output.generated_ids))


def _speculation(requests: list[_Request], max_tokens: int, k: int) -> Speculation:
    """Counted from the steps, as the pipeline does not tell. Drafted tokens are an upper bound: the last rounds
    of an output draft up to k(k - 1)/2 fewer than is assumed here."""
    rounds = drafted = 0
    for request in requests:
        left = max_tokens - request.steps[0]
        for tokens in request.steps[1:]:
            rounds += 1
            drafted += min(k, left - 1)
            left -= tokens
    after_prompt = sum(max_tokens - request.steps[0] for request in requests)
    return Speculation(rounds, drafted, after_prompt - rounds)


def _greedy(max_tokens: int, k: Any) -> Any:
    options = openvino_genai.GenerationConfig()
    options.max_new_tokens = max_tokens
    options.ignore_eos = True
    options.do_sample = False
    if k is not None:
        options.num_assistant_tokens = k
    return options


def _precisions(dtype: str) -> tuple[str, str]:
    """Names of the precisions of weights and arithmetic that are nearest to `dtype`.

    bfloat16 weights are stored as float16 by the exporter, which loses nothing that matters, and are
    computed with in bfloat16 where the CPU can.
    """
    capabilities = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    weights = "fp32" if dtype == "float32" else "fp16"
    return weights, "bf16" if dtype == "bfloat16" and "BF16" in capabilities else "f32"


def _scheduler(settings: EngineSettings) -> Any:
    """Room for all requests at once, and none of them remembers an earlier prompt."""
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.max_num_seqs = max(settings.concurrency)
    blocks = -(-(settings.max_length + max(DRAFTED_TOKENS) + 1) // BLOCK)
    scheduler.num_kv_blocks = scheduler.max_num_seqs * blocks
    scheduler.enable_prefix_caching = False
    return scheduler


def _load(model: Path, scheduler: Any, properties: dict[str, Any], **draft: Any) -> Any:
    tokenizer = openvino_genai.Tokenizer(model)
    return openvino_genai.ContinuousBatchingPipeline(model, tokenizer, scheduler, "CPU", **properties, **draft)


def _exported(cache_folder: Path, weights: str, folder: Path) -> Path:
    """The model folder in OpenVINO's format, exported by optimum-intel unless it is kept from an earlier run."""

    def export(source: Path, destination: Path) -> None:
        if find_spec("optimum") is None:
            raise PeerUnavailable(
                "the first run exports the models, which needs 'optimum-intel[openvino]' beside openvino-genai"
            )
        arguments = ["--task", "text-generation-with-past", "--weight-format", weights, str(destination)]
        command = [sys.executable, "-m", "optimum.commands.optimum_cli", "export", "openvino"]
        done = subprocess.run(
            [*command, "--model", str(source), *arguments],
            stdin=subprocess.DEVNULL,  # ours speaks the worker's protocol
            capture_output=True,
            text=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},  # it would ask the hub about local folders
        )
        if done.returncode != 0:
            raise PeerUnavailable(f"optimum-intel could not export {source}: {done.stderr.strip()[-500:]}")

    return converted(folder, cache_folder, f"{weights}-openvino", export)
