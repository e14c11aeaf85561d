"""One benchmark: all engines loaded up front, then measured turn by turn while the others sit idle."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from hotdraft.serving.benchmark.engines.client import Memory, Worker, WorkerError
from hotdraft.serving.benchmark.engines.engine import PLAIN, EngineSettings, Mode, PeerUnavailable
from hotdraft.serving.benchmark.figures.summary import Measurement
from hotdraft.serving.benchmark.plan import ASSISTED, OURS, BenchPlan

WARM_UP_TOKENS = 16


@dataclass
class Measured:
    """All that was measured. Figures of hotdraft's own are lists with a value for each repeat."""

    measurements: list[Measurement] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    """Peer → why it is missing."""
    bandwidths: dict[int, list[float]] = field(default_factory=dict)
    """Concurrency → bytes a second that memory reads before or after plain decoding: others on it come and go."""
    costs: dict[int, list[dict[str, float]]] = field(default_factory=dict)
    """Concurrency → seconds of a draft step and of rounds."""
    swap: dict[str, float] | None = None
    imported_mb: float = 0.0
    memory: Memory | None = None
    """hotdraft's worker once its imports were done, and after its last run."""


def run(plan: BenchPlan, log_folder: Path, tell: Callable[[str], None]) -> Measured:
    """Measure; `tell` hears what comes next. Raises `WorkerError` if hotdraft's own worker fails."""
    measured = Measured()
    with ExitStack() as stack:
        tell("loading")
        workers = {}
        for name in dict.fromkeys([OURS, *("transformers" if peer == ASSISTED else peer for peer in plan.against)]):
            worker = Worker(name, _settings_of(name, plan), log_folder / f"{name}.log", os.environ)
            workers[name] = stack.enter_context(worker)
        for name in list(workers):
            with _leaving(name, workers, measured):
                workers[name].wait_ready()
                measured.versions[name] = workers[name].version
        for concurrency in plan.settings.concurrency:
            for name, mode in _turns(plan, workers, concurrency):
                if name not in workers:
                    continue
                tell(f"warming up: {name}, {describe(mode)}, {concurrency} at once")
                with _leaving(name, workers, measured):
                    warm_up = min(WARM_UP_TOKENS, plan.max_tokens)
                    workers[name].run(mode, plan.prompts[:concurrency], warm_up, concurrency)
        for repeat in range(plan.repeats):
            _repeat(plan, workers, repeat, measured, tell)
        ours = workers[OURS]
        measured.imported_mb, measured.memory = ours.rss_imported_mb, ours.memory
        if plan.swap:
            tell("swapping under a running stream")
            measured.swap = ours.measure("swap", 1)
    return measured


def describe(mode: Mode) -> str:
    """A mode in words."""
    words = "plain" if mode == PLAIN else f"speculative k={mode.k}"
    return f"{words}, recording" if mode.recording else words


def _repeat(
    plan: BenchPlan, workers: dict[str, Worker], repeat: int, measured: Measured, tell: Callable[[str], None]
) -> None:
    """One interleaved repeat; every other one goes backwards, so that no engine always follows the same."""
    ours = workers[OURS]
    for concurrency in plan.settings.concurrency:
        if plan.settings.draft_folder is not None:
            measured.costs.setdefault(concurrency, []).append(ours.measure("costs", concurrency))
        turns = _turns(plan, workers, concurrency)
        for name, mode in reversed(turns) if repeat % 2 else turns:
            if name not in workers:
                continue
            tell(f"repeat {repeat + 1} of {plan.repeats}: {name}, {describe(mode)}, {concurrency} at once")
            with _leaving(name, workers, measured):
                is_limited = (name, mode) == (OURS, PLAIN)
                before = _bandwidth(ours) if is_limited else 0.0
                result = workers[name].run(mode, plan.prompts, plan.max_tokens, concurrency)
                if is_limited:
                    measured.bandwidths.setdefault(concurrency, []).append(max(before, _bandwidth(ours)))
                if any(len(output) != plan.max_tokens for output in result.outputs):
                    raise WorkerError(f"{name} gave outputs that are not of {plan.max_tokens} tokens")
                measured.measurements.append(Measurement(name, mode, concurrency, repeat, result))


def _bandwidth(ours: Worker) -> float:
    return ours.measure("bandwidth", 1)["bytes_per_second"]


def _settings_of(name: str, plan: BenchPlan) -> EngineSettings:
    if name == "transformers" and ASSISTED not in plan.against:
        return replace(plan.settings, draft_folder=None)
    return plan.settings


def _turns(plan: BenchPlan, workers: Mapping[str, Worker], concurrency: int) -> list[tuple[str, Mode]]:
    """Engines and modes to run at a concurrency."""

    def wanted(name: str, mode: Mode) -> bool:
        return name != OURS or plan.fixed_k or not isinstance(mode.k, int)

    return [(name, mode) for name in workers for mode in workers[name].modes(concurrency) if wanted(name, mode)]


@contextmanager
def _leaving(name: str, workers: dict[str, Worker], measured: Measured) -> Iterator[None]:
    """A peer that cannot go on leaves the benchmark and takes its measurements along; hotdraft must not."""
    try:
        yield
    except (PeerUnavailable, WorkerError) as error:
        if name == OURS:
            raise
        workers.pop(name, None)
        measured.left_out[name] = str(error)
        measured.measurements[:] = [item for item in measured.measurements if item.engine != name]
