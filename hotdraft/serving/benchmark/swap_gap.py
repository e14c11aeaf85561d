"""What a running stream notices of a swap: the gaps between its tokens."""

import statistics
import time
from functools import partial
from pathlib import Path
from threading import Event

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.loading import choose_device, choose_dtype, fingerprint
from hotdraft.serving.benchmark.random_adapter import write_random_adapter
from hotdraft.serving.engine.aside import aside
from hotdraft.serving.engine.engine import Engine
from hotdraft.serving.engine.load import draft_ranking
from hotdraft.serving.graphs.recurring import RECURS
from hotdraft.serving.messages.request import GenerationRequest, OutputDelta, SamplingParams
from hotdraft.serving.updates.hot_swap import HotSwapper

SWAPS = 5
TOKENS_PER_SWAP = 40
PROMPT = (1, 2, 3, 4)


class _Stream:
    """Arrival times of the rounds of a request that is asked again whenever it ends, until `stop`."""

    def __init__(self, engine: Engine) -> None:
        self.times: list[float] = []
        self.tokens = 0
        self._engine = engine
        self.length = min((SWAPS + 1) * TOKENS_PER_SWAP, engine.max_model_len - len(PROMPT))
        params = SamplingParams(max_tokens=self.length, temperature=0.0, ignore_eos=True)
        self._request = GenerationRequest("swaps", PROMPT, params, record=False)
        self._stopping = False
        self._ended = Event()
        engine.submit(self._request, self)

    def __call__(self, delta: OutputDelta) -> None:
        self.times.append(time.perf_counter())
        self.tokens += len(delta.token_ids)
        if delta.finish_reason is None:
            return
        if self._stopping or delta.finish_reason != "length":
            self._ended.set()
        else:
            self._engine.submit(self._request, self)

    def wait_for(self, tokens: int) -> None:
        while self.tokens < tokens and not self._ended.is_set():
            time.sleep(0.002)

    def stop(self) -> None:
        self._stopping = True
        self._ended.wait()


def measure_swaps(engine: Engine, config: HotdraftConfig, scratch: Path) -> dict[str, float]:
    """Swap two random adapters in turn, `SWAPS` times under one stream with adaptive k; end with the draft itself.

    Seconds: the median gap between rounds, the worst gap that held a swap, the worst while an
    adapter was staged beside the stream, and the longest time decoding stood still.
    """
    assert config.draft is not None, "there is no draft to swap"
    dtype, rank = choose_dtype(config.dtype, choose_device(config.device)), config.distill.lora.rank
    folders = [scratch / f"adapter{number}" for number in (1, 2)]
    for number, folder in enumerate(folders):
        if not folder.exists():
            aside(partial(write_random_adapter, folder, config.draft, rank, dtype, number))
    swapper = HotSwapper(engine, fingerprint(config.draft), draft_ranking(config))
    engine.k = "auto"
    stream = _Stream(engine)
    if engine.decoder.graphed:
        stream.wait_for(RECURS * stream.length)  # a shape that is recorded holds rounds up as well
    staging: list[tuple[float, float]] = []
    swaps: list[tuple[float, float]] = []
    for number in range(SWAPS):
        stream.wait_for(stream.tokens + TOKENS_PER_SWAP)  # or the last swap's gap would hold this one's staging
        began = time.perf_counter()
        staged = swapper.stage(number + 1, folders[number % 2])
        staging.append((began, time.perf_counter()))
        stall = swapper.swap(staged, "promotion").stall_seconds
        ended = time.perf_counter()
        swaps.append((ended - stall, ended))  # without the round that the swap waited for
    stream.stop()
    swapper.swap(swapper.stage(0, None), "rollback")
    gaps = list(zip(stream.times, stream.times[1:], strict=False))
    median = statistics.median(end - start for start, end in gaps)
    worst = worst_gap(gaps, swaps)
    return {
        "median_gap_seconds": median,
        "worst_gap_swapping_seconds": worst,
        "worst_gap_staging_seconds": worst_gap(gaps, staging),
        "worst_stall_seconds": max(end - start for start, end in swaps),
        "worst_over_median": worst / median,
    }


def worst_gap(gaps: list[tuple[float, float]], windows: list[tuple[float, float]]) -> float:
    """The longest of the gaps (start, end) that overlap any of the windows (start, end)."""
    return max(
        (end - start for start, end in gaps if any(start < until and end > since for since, until in windows)),
        default=0.0,
    )
