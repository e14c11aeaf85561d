"""Answers a list of prompts with the engine and records them: the traffic of pre-distillation."""

import threading
from collections.abc import Callable, Sequence

from serving.engine import Engine
from serving.request import GenerationRequest, OutputDelta


def answer_all(engine: Engine, requests: Sequence[GenerationRequest], on_answer: Callable[[int], None]) -> None:
    """Run every request; `on_answer` hears the tokens of each as it ends, in the engine's thread.

    Raises RuntimeError if the engine fails under way; what was answered before is recorded.
    """
    left = threading.Semaphore(0)
    failed = threading.Event()

    def on_delta(delta: OutputDelta) -> None:
        if delta.finish_reason is None:
            return
        if delta.finish_reason == "error":
            failed.set()
        on_answer(delta.stats.completion_tokens)
        left.release()

    for request in requests:
        engine.submit(request, on_delta)
    for _ in requests:
        left.acquire()
        if failed.is_set():
            raise RuntimeError("the engine failed while answering; its log says why")
