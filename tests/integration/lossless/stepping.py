"""Drives an engine by hand, turn by turn, so that a swap falls where the test wants it."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from hotdraft.serving.engine.engine import Engine
from hotdraft.serving.messages.events import SwapEvent
from hotdraft.serving.messages.request import GenerationRequest, OutputDelta
from hotdraft.serving.updates.hot_swap import HotSwapper, StagedDraft

T = TypeVar("T")


class Heard:
    """Collects the output ids of a request."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    def __call__(self, delta: OutputDelta) -> None:
        self.ids += delta.token_ids


def run(
    engine: Engine, requests: Iterable[GenerationRequest], after_step: Callable[[int], None] = lambda step: None
) -> list[list[int]]:
    """Output ids of each request; `after_step` is called with the number of turns so far."""
    heard = []
    for request in requests:
        heard.append(Heard())
        engine.submit(request, heard[-1])
    step = 0
    while engine.num_running or engine.num_waiting:
        engine.step()
        step += 1
        after_step(step)
    return [client.ids for client in heard]


def swap(engine: Engine, swapper: HotSwapper, staged: StagedDraft) -> SwapEvent:
    return _beside(engine, lambda: swapper.swap(staged, "promotion"))


def stage(engine: Engine, swapper: HotSwapper, adapters: Iterable[Path | None]) -> list[StagedDraft]:
    """As versions from 0 on."""
    return [_beside(engine, partial(swapper.stage, version, folder)) for version, folder in enumerate(adapters)]


def _beside(engine: Engine, work: Callable[[], T]) -> T:
    """As the server does it, from another thread, while this one takes the engine's turns."""
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(work)
        while not result.done():
            engine.step()
    return result.result()
