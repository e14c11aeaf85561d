"""Answering a list of requests, as fast as the engine can, where nobody waits for one of them."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.serving.engine.engine import Engine, ShuttingDownError
from hotdraft.serving.messages.request import GenerationRequest, OutputDelta

PREFILL_TOKENS = 4096
"""Prompt tokens read between two rounds: enough to fill all free slots, as nobody waits for the next token."""
IN_FLIGHT = 3
"""Requests that the engine is given for each slot, so that none of them waits for the next."""
SHARD_REQUESTS = 256
SHARD_SECONDS = 30.0
"""Work that is lost, at most, to a run that is killed."""
MOST_FAILED = 0.05
"""Of the requests, and of few as many as a round has at once: what fails more often is not theirs."""


class CollectError(ValueError):
    """Data that cannot be made or kept; the message says why."""


def generation_config(
    config: HotdraftConfig, requests: Sequence[GenerationRequest], model: str | None = None
) -> HotdraftConfig:
    """`config` for answering `requests` by `model` (the target by default) alone, with nobody listening."""
    slots = min(config.predistill.num_slots, len(requests))
    engine = {
        "k": 0,
        "draft_vocab_size": None,
        "num_slots": slots,
        "max_model_len": max(len(request.prompt_ids) + request.params.max_tokens for request in requests),
        "max_queue": IN_FLIGHT * slots,
        "prefill_chunk": PREFILL_TOKENS,
        "threads": None,
    }
    recorder = {
        "enabled": True,
        "queue_size": max(config.recorder.queue_size, 4 * SHARD_REQUESTS),
        "shard_requests": SHARD_REQUESTS,
        "flush_seconds": SHARD_SECONDS,
    }
    return config.model_copy(
        update={
            "target": model or config.target,
            "draft": None,
            "engine": config.engine.model_copy(update=engine),
            "recorder": config.recorder.model_copy(update=recorder),
        }
    )


def answer_all(
    engine: Engine,
    requests: Sequence[GenerationRequest],
    on_answer: Callable[[GenerationRequest, list[int]], None],
) -> set[str]:
    """Run every request; `on_answer` hears the tokens of each as it ends, in the engine's output thread.

    Gives the ids of those that failed, as where the model's logits are no numbers: they are no others' affair.
    Raises `CollectError` if the engine, its recorder or too much fails under way; what was recorded before stays.
    """
    engine_failed = CollectError("the engine failed while answering; its log says why")
    room = threading.Semaphore(IN_FLIGHT * engine.num_slots)
    failed: set[str] = set()
    most_failed = max(engine.num_slots, MOST_FAILED * len(requests))

    def submit(request: GenerationRequest) -> None:
        token_ids: list[int] = []

        def on_delta(delta: OutputDelta) -> None:
            token_ids.extend(delta.token_ids)
            if delta.finish_reason is None:
                return
            if delta.finish_reason in ("stop", "length"):
                on_answer(request, token_ids)
            else:
                failed.add(request.request_id)
            room.release()

        try:
            engine.submit(request, on_delta)
        except ShuttingDownError:
            raise engine_failed from None

    def wait() -> None:
        room.acquire()
        if engine.fatal_error is not None or len(failed) > most_failed:
            raise engine_failed
        _check_written(engine)

    for request in requests:
        wait()
        submit(request)
    for _ in range(IN_FLIGHT * engine.num_slots):
        wait()
    return failed


def _check_written(engine: Engine) -> None:
    if engine.recorder is not None and engine.recorder.dropped:
        raise CollectError("answers cannot be written to the replay buffer; the log says why")


@contextmanager
def started(engine: Engine) -> Iterator[Engine]:
    """`engine` running; at the end it is stopped, and what it recorded is written."""
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()
        if engine.recorder is not None:
            engine.recorder.close()
