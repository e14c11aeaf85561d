"""What an engine must do to be measured beside the others.

This module is read by every worker, and a worker may run under a Python that has no torch: standard
library only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

ENGINES = {
    "hotdraft": "hotdraft.serving.benchmark.engines.hotdraft_engine:HotdraftEngine",
    "transformers": "hotdraft.serving.benchmark.engines.transformers_engine:TransformersEngine",
    "openvino": "hotdraft.serving.benchmark.engines.peers_openvino:OpenVinoEngine",
    "openvino-int8": "hotdraft.serving.benchmark.engines.peers_openvino:OpenVinoInt8Engine",
    "llamacpp": "hotdraft.serving.benchmark.engines.peers_llamacpp:LlamaCppEngine",
}
DRAFTED_TOKENS = (1, 2, 3, 4, 6, 8)
"""Tokens a round that peers without a choice of their own are tried with; the best is reported."""


class PeerUnavailable(RuntimeError):  # noqa: N818 -- the state of a machine, not a fault
    """An engine that cannot run here; the message says why and what would install it."""


@dataclass(frozen=True)
class EngineSettings:
    """What a worker is told once. Both folders are complete Hugging Face models with a tokenizer."""

    target_folder: Path
    draft_folder: Path | None
    """None asks for plain decoding only."""
    dtype: str
    """`bfloat16`, `float16` or `float32`; an engine without it takes its nearest class and says so in `version`."""
    threads: int
    """CPU threads to compute with. OMP_NUM_THREADS is set to it before the worker starts."""
    cache_folder: Path
    """Kept between runs: for models converted to an engine's own format."""
    concurrency: tuple[int, ...] = (1,)
    """Numbers of requests at once that will be asked for."""
    max_length: int = 1024
    """Prompt and output tokens of the longest request."""
    config_file: Path | None = None
    """hotdraft's own configuration."""
    recording: bool = False
    """hotdraft's recorder and metrics may be asked for."""
    device: str = "cpu"
    """Or a GPU, as torch names it."""


@dataclass(frozen=True)
class Mode:
    """How to decode. `k` is the drafted tokens a round: None in plain mode, "auto" if the engine chooses."""

    kind: Literal["plain", "speculative"]
    k: int | Literal["auto"] | None = None
    recording: bool = False
    """With recorder and metrics on; only hotdraft has them."""


PLAIN = Mode("plain")


@dataclass(frozen=True)
class Speculation:
    """Sums over a run's requests."""

    rounds: int
    """Target forwards after the prompt, one counted for each request that takes part."""
    drafted: int
    """All that was proposed."""
    accepted: int
    guessed: int = 0
    """Of the drafted those that cost no model's pass."""


@dataclass(frozen=True)
class RunResult:
    """What one run of N prompts did, in the order of the prompts."""

    seconds: float
    """Wall clock from the first submission to the last token."""
    outputs: list[list[int]]
    """Output token ids, `max_tokens` of each."""
    token_times: list[list[float]]
    """Seconds from each request's submission to each of its output tokens; tokens that arrive together share
    their time. Empty if the engine does not tell."""
    speculation: Speculation | None = None
    """None in plain mode or if the engine does not tell."""


class BenchEngine(Protocol):
    """An engine in its worker. Constructed as `Engine(settings)`, which loads and compiles everything.

    The constructor raises `PeerUnavailable` if the engine's package is missing or does not work here.
    """

    name: str
    version: str
    """Package version, with the precision of weights and arithmetic where it is not `settings.dtype`."""

    def modes(self, concurrency: int) -> Sequence[Mode]:
        """What it can run with `concurrency` requests at once; `PLAIN` first, if at all."""
        ...

    def run(self, mode: Mode, prompts: list[list[int]], max_tokens: int, concurrency: int) -> RunResult:
        """Decode greedily, exactly `max_tokens` a prompt whatever the end-of-text token, with `concurrency`
        requests under way at any time (the last ones excepted)."""
        ...


@runtime_checkable
class Measurable(Protocol):
    """An engine that can be asked for figures of its own beyond runs."""

    def measure(self, figure: str, rows: int) -> dict[str, float]:
        """Named numbers for a batch of `rows`; no run may be under way."""
        ...


def find_engine(name: str) -> Callable[[EngineSettings], BenchEngine]:
    """The class of the engine `name`, one of `ENGINES`, imported. Raises `PeerUnavailable`."""
    module, _, attribute = ENGINES[name].partition(":")
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise PeerUnavailable(f"needs the package {error.name!r}, see docs/benchmarks.md") from error
