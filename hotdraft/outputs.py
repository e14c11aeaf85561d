"""What the library gives for a prompt, in vLLM's shape."""

import threading
from dataclasses import dataclass

from hotdraft.serving.messages.request import (
    FinishReason,
    GenerationRequest,
    OutputDelta,
    RequestStats,
    TokenLogprob,
)


@dataclass(frozen=True)
class CompletionOutput:
    """An answer."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None
    """The stop string or token that ended it; None for the end-of-sequence token, and where none did."""
    logprobs: tuple[TokenLogprob, ...] | None
    """One for each of `token_ids`; None if they were not asked for."""


@dataclass(frozen=True)
class RequestOutput:
    """A request with its answer."""

    request_id: str
    prompt: str | None
    """None if it was given as token ids or as a conversation."""
    prompt_token_ids: tuple[int, ...]
    prompt_logprobs: tuple[TokenLogprob, ...] | None
    """One for each of `prompt_token_ids`; None if they were not asked for."""
    outputs: list[CompletionOutput]
    """One."""
    stats: RequestStats

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over drafted tokens, those after a rejection counted as drafted; None if nothing was drafted."""
        return self.stats.accepted_tokens / self.stats.drafted_tokens if self.stats.drafted_tokens else None


class Answer:
    """Gathers what the engine says of one request."""

    def __init__(self, request: GenerationRequest, prompt: str | None) -> None:
        self.request = request
        self._prompt = prompt
        self._deltas: list[OutputDelta] = []
        self._done = threading.Event()

    def take(self, delta: OutputDelta) -> None:
        self._deltas.append(delta)
        if delta.finish_reason is not None:
            self._done.set()

    def result(self) -> RequestOutput:
        """Waits for the last. Raises RuntimeError if the engine failed."""
        self._done.wait()
        last = self._deltas[-1]
        assert last.finish_reason is not None
        check_finished(last.finish_reason)
        params = self.request.params
        token_ids = tuple(token for delta in self._deltas for token in delta.token_ids)
        logprobs = tuple(one for delta in self._deltas for one in delta.logprobs or ())
        prompt_logprobs = tuple(one for delta in self._deltas for one in delta.prompt_logprobs or ())
        text = "".join(delta.text for delta in self._deltas)
        wanted = None if params.logprobs is None else logprobs
        return RequestOutput(
            self.request.request_id,
            self._prompt,
            self.request.prompt_ids,
            None if params.prompt_logprobs is None else prompt_logprobs,
            [CompletionOutput(0, text, token_ids, last.finish_reason, last.stop_reason, wanted)],
            last.stats,
        )


def check_finished(reason: FinishReason) -> None:
    """Raises RuntimeError for an answer that is none."""
    if reason in ("error", "cancelled"):
        raise RuntimeError(f"the request ended as {reason!r}: the engine failed, as its log says, or was closed")
