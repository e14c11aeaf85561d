"""llama.cpp through `xllamacpp`: its server in this process, with the draft as speculative model."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import xllamacpp

from hotdraft.pipeline.models.gguf_file import write_gguf
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
from hotdraft.serving.benchmark.engines.gguf_ids import ids_as_tokens


class LlamaCppEngine:
    """One server for plain decoding and one for each number of drafted tokens, as a server's is fixed when it
    starts. They map the same weights; those that have nothing to do sleep."""

    name = "llamacpp"

    def __init__(self, settings: EngineSettings) -> None:
        extensions = ("AVX512_BF16", "AVX512", "AVX2", "NEON")
        built_for = next((name for name in extensions if f"{name} = 1" in xllamacpp.get_system_info()), "no SIMD")
        self.version = f"{xllamacpp.__version__} ({settings.dtype} weights, float16 cache, built for {built_for})"
        as_gguf = partial(_as_gguf, settings)
        target = as_gguf(settings.target_folder)
        self._servers = {PLAIN: xllamacpp.Server(_parameters(settings, target))}
        if settings.draft_folder is not None:
            draft = as_gguf(settings.draft_folder)
            for k in DRAFTED_TOKENS:
                parameters = _parameters(settings, target)
                _speculate(parameters, draft, k)
                self._servers[Mode("speculative", k)] = xllamacpp.Server(parameters)

    def modes(self, concurrency: int) -> list[Mode]:
        return list(self._servers)

    def run(self, mode: Mode, prompts: list[list[int]], max_tokens: int, concurrency: int) -> RunResult:
        complete = partial(_complete, self._servers[mode].handle_completions, max_tokens)
        started = time.perf_counter()
        with ThreadPoolExecutor(concurrency) as clients:
            completions = list(clients.map(complete, prompts))
        seconds = time.perf_counter() - started
        speculation = None
        if mode != PLAIN:
            accepted = sum(completion.accepted for completion in completions)
            rounds = len(prompts) * (max_tokens - 1) - accepted  # the first token comes with the prompt
            speculation = Speculation(rounds, sum(completion.drafted for completion in completions), accepted)
        outputs = [completion.token_ids for completion in completions]
        return RunResult(seconds, outputs, [completion.token_times for completion in completions], speculation)


@dataclass(frozen=True)
class _Completion:
    token_ids: list[int]
    token_times: list[float]
    """Seconds since the request."""
    drafted: int
    accepted: int


def _complete(handle: Callable[..., Any], max_tokens: int, prompt: list[int]) -> _Completion:
    """One request to a server, streamed. Raises `RuntimeError` with the server's words if it refuses."""
    chunks: list[tuple[float, dict[str, Any]]] = []

    def receive(chunk: dict[str, Any]) -> bool:
        chunks.append((time.perf_counter() - started, chunk))
        return False  # go on

    request = {"prompt": prompt, "n_predict": max_tokens, "temperature": 0.0, "stream": True, "cache_prompt": False}
    started = time.perf_counter()
    handle(request, receive)
    if "choices" not in chunks[-1][1]:
        raise RuntimeError(f"llama.cpp refused a request: {chunks[-1][1]}")
    token_ids: list[int] = []
    token_times: list[float] = []
    for seconds, chunk in chunks:
        told = [int(token_id) for token_id in chunk["choices"][0]["text"].split()]  # see `ids_as_tokens`
        token_ids += told
        token_times += [seconds] * len(told)
    timings = chunks[-1][1]["timings"]
    return _Completion(token_ids, token_times, timings.get("draft_n", 0), timings.get("draft_n_accepted", 0))


def _as_gguf(settings: EngineSettings, folder: Path) -> Path:
    write = partial(write_gguf, dtype=settings.dtype, write_vocabulary=ids_as_tokens)
    try:
        return converted(folder, settings.cache_folder, f"{settings.dtype}.gguf", write)
    except ValueError as error:
        raise PeerUnavailable(f"llama.cpp cannot read this model: {error}") from error


def _parameters(settings: EngineSettings, target: Path) -> xllamacpp.CommonParams:
    """As many slots as requests at once, none of which remembers an earlier prompt."""
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(target)
    parameters.n_parallel = max(settings.concurrency)
    parameters.n_ctx = parameters.n_parallel * (settings.max_length + max(DRAFTED_TOKENS) + 1)
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = settings.threads
    parameters.cache_prompt = False
    parameters.cache_ram_mib = 0
    parameters.verbosity = 1  # errors
    return parameters


def _speculate(parameters: xllamacpp.CommonParams, draft: Path, k: int) -> None:
    """Draft always `k` tokens, however unsure the draft is."""
    parameters.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
    speculation = parameters.speculative.draft
    speculation.mparams.path = str(draft)
    speculation.n_max = k
    speculation.n_min = 0
    speculation.p_min = 0.0
    speculation.cpuparams.n_threads = speculation.cpuparams_batch.n_threads = parameters.cpuparams.n_threads
