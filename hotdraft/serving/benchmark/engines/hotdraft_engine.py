"""hotdraft itself, as `hotdraft serve` would build it, without the HTTP face."""

import threading
import time
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hotdraft.pipeline.config.settings import HotdraftConfig, load_config
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.serving.benchmark.engines.engine import PLAIN, EngineSettings, Mode, RunResult, Speculation
from hotdraft.serving.benchmark.figures.bandwidth import read_bandwidth
from hotdraft.serving.benchmark.swap_gap import measure_swaps
from hotdraft.serving.decoding.costs import profile_costs
from hotdraft.serving.engine.aside import aside
from hotdraft.serving.engine.engine import Engine
from hotdraft.serving.engine.load import build_engine
from hotdraft.serving.messages.events import EngineListener
from hotdraft.serving.messages.request import GenerationRequest, OutputDelta, RequestStats, SamplingParams
from hotdraft.serving.models.native_runner import NativeRunner


class HotdraftEngine:
    """The engine of the configuration `settings.config_file`, with as many slots as are asked for."""

    name = "hotdraft"

    def __init__(self, settings: EngineSettings) -> None:
        assert settings.config_file is not None
        self._scratch = TemporaryDirectory(prefix="hotdraft-bench-")
        engine = {"threads": settings.threads, "num_slots": max(settings.concurrency), "k": "auto"}
        engine["reuse_prefixes"] = False  # repeats would find their own prompts read
        overrides: dict[str, Any] = {
            "dtype": settings.dtype,
            "device": settings.device,
            "engine": engine,
        }
        self._config = load_config(settings.config_file, overrides).apart(Path(self._scratch.name))
        buffer = ReplayBuffer(self._config.replay_url) if settings.recording else None
        self._engine = build_engine(self._config, buffer)
        self._listeners = _serving_listeners(self._engine, self._config) if settings.recording else []
        self._recording = settings.recording
        computed = ", ".join(f"{model} by {how}" for model, how in self._engine.computations.items())
        self.version = f"{_version()} ({computed})"
        self._engine.start()

    def modes(self, concurrency: int) -> list[Mode]:
        if self._config.draft is None:
            return [PLAIN]
        fixed = [Mode("speculative", k) for k in range(1, self._config.engine.max_k + 1)]
        recorded = [Mode("speculative", "auto", recording=True)] if self._recording else []
        return [PLAIN, Mode("speculative", "auto"), *fixed, *recorded]

    def run(self, mode: Mode, prompts: list[list[int]], max_tokens: int, concurrency: int) -> RunResult:
        self._engine.k = 0 if mode.k is None else mode.k
        clients = [_Client() for _ in prompts]
        free = threading.Semaphore(concurrency)
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        if mode.recording:
            self._engine.listeners.extend(self._listeners)
        started = time.perf_counter()
        for number, (prompt, client) in enumerate(zip(prompts, clients, strict=True)):
            free.acquire()
            scope = f"{id(clients)}:{started}"  # what an earlier run of the same prompts was told helps none
            request = GenerationRequest(f"bench{number}", tuple(prompt), params, record=mode.recording, scope=scope)
            client.submit(self._engine, request, free)
        for _ in range(concurrency):
            free.acquire()
        seconds = time.perf_counter() - started
        for listener in self._listeners if mode.recording else []:
            self._engine.listeners.remove(listener)
        return RunResult(
            seconds,
            [client.token_ids for client in clients],
            [client.token_times for client in clients],
            None if mode == PLAIN else _sum([client.stats for client in clients if client.stats is not None]),
        )

    def measure(self, figure: str, rows: int) -> dict[str, float]:
        """`bandwidth`, `costs` of a round of `rows`, or the gaps around a `swap`."""
        if figure == "bandwidth":
            decoder = self._engine.decoder
            runner, best = decoder.target.runner, aside(partial(read_bandwidth, decoder.device))
            if isinstance(runner, NativeRunner):
                best = max(best, self._engine.between_rounds(runner.read_speed).result())
            return {"bytes_per_second": best}
        if figure == "swap":
            return measure_swaps(self._engine, self._config, Path(self._scratch.name))
        decoder, max_k = self._engine.decoder, self._config.engine.max_k
        costs = self._engine.between_rounds(lambda: profile_costs(decoder, [rows], max_k)).result()
        return {
            "draft_step_seconds": costs.draft_step_seconds(rows),
            **{f"round_seconds_k{k}": costs.round_seconds(rows, k) for k in range(max_k + 1)},
        }


class _Client:
    """Hears one request; called in the engine's thread."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.token_times: list[float] = []
        self.stats: RequestStats | None = None

    def submit(self, engine: Engine, request: GenerationRequest, free: threading.Semaphore) -> None:
        """Send `request`; `free` is released when it has ended."""
        started = time.perf_counter()

        def on_delta(delta: OutputDelta) -> None:
            self.token_ids += delta.token_ids
            self.token_times += [time.perf_counter() - started] * len(delta.token_ids)
            if delta.finish_reason is not None:
                self.stats = delta.stats
                free.release()

        engine.submit(request, on_delta)


def _sum(stats: list[RequestStats]) -> Speculation:
    return Speculation(
        rounds=sum(item.rounds for item in stats),
        drafted=sum(item.drafted_tokens + item.guessed_tokens for item in stats),
        accepted=sum(item.accepted_tokens + item.accepted_guesses for item in stats),
        guessed=sum(item.guessed_tokens for item in stats),
    )


def _version() -> str:
    try:
        return version("hotdraft")
    except PackageNotFoundError:
        return "source tree"


def _serving_listeners(engine: Engine, config: HotdraftConfig) -> list[EngineListener]:
    """What listens to the engine in `hotdraft serve`."""
    from hotdraft.pipeline.store.tracking import ServingTracker
    from hotdraft.serving.metrics.listener import ServingMetrics
    from hotdraft.serving.metrics.state_metrics import Sources
    from hotdraft.serving.metrics.tracking_listener import TrackingListener

    tracker = ServingTracker(config)
    tracker.start()
    sources = Sources(recorder=engine.recorder, curves=tracker.curves)
    return [ServingMetrics(engine, config.served_model_name, sources), TrackingListener(tracker.curves)]
