"""The library's face: a pair of models that generates, records and takes on adapters in this process.

Names and shapes are vLLM's where it has them. `hotdraft serve` does the same over HTTP and minds the loop itself.
"""

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from hotdraft.pipeline.config.serving import EngineConfig, RecorderConfig
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.loading import fingerprint
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.serving.engine.load import build_engine, draft_ranking
from hotdraft.serving.engine.recorder import Recorder
from hotdraft.serving.messages.events import SwapEvent
from hotdraft.serving.messages.prompt_encoder import encode_chat, encode_text
from hotdraft.serving.messages.request import (
    DEFAULT_DOMAIN,
    FinishReason,
    GenerationRequest,
    OutputDelta,
    RequestStats,
    SamplingParams,
    TokenLogprob,
)
from hotdraft.serving.updates.hot_swap import HotSwapper


@dataclass(frozen=True)
class CompletionOutput:
    """An answer."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprob, ...] | None
    """One for each of `token_ids`; None if they were not asked for."""


@dataclass(frozen=True)
class RequestOutput:
    """A request with its answer."""

    request_id: str
    prompt: str | None
    """None if it was given as token ids or as a conversation."""
    prompt_token_ids: tuple[int, ...]
    outputs: list[CompletionOutput]
    """One."""
    stats: RequestStats

    @property
    def acceptance_rate(self) -> float | None:
        """Share of the drafted tokens looked at that the target accepted; None if nothing was drafted."""
        return self.stats.accepted_tokens / self.stats.examined_tokens if self.stats.examined_tokens else None


class LLM:
    """A target, with a draft that proposes for it, in this process.

    `target` and `draft` are hub ids, local folders, or names known to `hotdraft models`; `engine` takes the keys of
    the configuration's section of that name, as in ``k=4`` or ``num_slots=16``. Generation runs in threads of its
    own until `close`, which the end of a ``with`` calls.

    >>> from hotdraft import LLM, SamplingParams
    >>> greedy = SamplingParams(temperature=0, max_tokens=16)
    >>> with LLM("smollm2", draft="smollm2-draft", k=2) as llm:
    ...     [answer] = llm.generate(["The capital of France is"], greedy)
    >>> "Paris" in answer.outputs[0].text
    True
    >>> 0 <= answer.acceptance_rate <= 1
    True
    """

    def __init__(
        self, target: str, draft: str | None = None, *, dtype: str = "auto", device: str = "auto", **engine: Any
    ) -> None:
        """Load the models. Raises `ModelError` if they are missing or do not fit, ValueError for a wrong option."""
        section = EngineConfig(**engine)
        self._config = HotdraftConfig(target=target, draft=draft, dtype=dtype, device=device, engine=section)
        self._engine = build_engine(self._config, None)
        self._swapper: HotSwapper | None = None
        self._engine.start()

    def generate(
        self,
        prompts: str | Sequence[str] | Sequence[list[int]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        domain: str = DEFAULT_DOMAIN,
    ) -> list[RequestOutput]:
        """Answer `prompts`, texts or lists of token ids, in batches; in their order.

        Recorded answers are kept under `domain`. Raises ValueError for what the models cannot take, and
        RuntimeError if the engine fails.
        """
        given: list[Any] = [prompts] if isinstance(prompts, str) else list(prompts)
        token_ids = [encode_text(self._engine.tokenizer, prompt) for prompt in given]
        texts = [prompt if isinstance(prompt, str) else None for prompt in given]
        return self._answer(texts, token_ids, sampling_params, domain)

    def chat(
        self,
        messages: Sequence[dict[str, str]] | Sequence[Sequence[dict[str, str]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        domain: str = DEFAULT_DOMAIN,
    ) -> list[RequestOutput]:
        """As `generate`, for one conversation or several, each a list of messages with `role` and `content`."""
        one = not messages or isinstance(messages[0], Mapping)
        conversations: Any = [messages] if one else messages
        token_ids = [encode_chat(self._engine.tokenizer, conversation) for conversation in conversations]
        return self._answer([None] * len(token_ids), token_ids, sampling_params, domain)

    def stream(
        self,
        prompt: str | list[int],
        sampling_params: SamplingParams | None = None,
        *,
        domain: str = DEFAULT_DOMAIN,
    ) -> Iterator[OutputDelta]:
        """The answer's text as it comes; the last delta has a `finish_reason`. Left early, it is cancelled."""
        prompt_ids = tuple(encode_text(self._engine.tokenizer, prompt))
        request = GenerationRequest(uuid4().hex, prompt_ids, sampling_params or SamplingParams(), domain)
        deltas: queue.SimpleQueue[OutputDelta] = queue.SimpleQueue()
        self._engine.submit(request, deltas.put)
        try:
            while True:
                delta = deltas.get()
                yield delta
                if delta.finish_reason is not None:
                    return
        finally:
            self._engine.cancel(request.request_id)

    def record_to(self, buffer: ReplayBuffer | None, *, flush_seconds: float = 5.0) -> None:
        """Keep what is answered from now on in `buffer`, with the target's distributions; None ends it.

        Shards appear every `flush_seconds`. What the recorder before had taken is written first.
        """
        recorder, self._engine.recorder = self._engine.recorder, None
        if recorder is not None:
            recorder.close()
        if buffer is not None:
            self._engine.recorder = Recorder(buffer, RecorderConfig(flush_seconds=flush_seconds))

    def swap(self, adapter: str | Path | None) -> SwapEvent:
        """Let the draft take on the adapter in a folder, between two rounds; None brings back the draft itself.

        Raises `AdapterError` if it does not fit the draft, and `SwapError` if the live draft then does not compute
        what its trainer did; in both cases what was served before goes on.
        """
        if self._config.draft is None:
            raise ValueError("there is no draft to swap: LLM was given a target alone")
        if self._swapper is None:
            ranking = draft_ranking(self._config, self._engine.decoder.vocab_size)
            self._swapper = HotSwapper(self._engine, fingerprint(self._config.draft), ranking)
        version = 0 if adapter is None else self._swapper.live_version + 1
        staged = self._swapper.stage(version, None if adapter is None else Path(adapter))
        return self._swapper.swap(staged, "promotion")

    def close(self) -> None:
        """End generation and write what was recorded."""
        self._engine.stop()
        self.record_to(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answer(
        self,
        prompts: Sequence[str | None],
        token_ids: Sequence[list[int]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        domain: str,
    ) -> list[RequestOutput]:
        if sampling_params is None or isinstance(sampling_params, SamplingParams):
            sampling_params = [sampling_params or SamplingParams()] * len(token_ids)
        room = threading.Semaphore(self._config.engine.max_queue)
        answers: list[_Answer] = []
        try:
            for prompt, prompt_ids, params in zip(prompts, token_ids, sampling_params, strict=True):
                request = GenerationRequest(uuid4().hex, tuple(prompt_ids), params, domain)
                answers.append(_Answer(request, prompt, room))
                room.acquire()
                self._engine.submit(request, answers[-1].take)
            return [answer.result() for answer in answers]
        except BaseException:
            for answer in answers:
                self._engine.cancel(answer.request.request_id)
            raise


class _Answer:
    """Gathers what the engine says of one request."""

    def __init__(self, request: GenerationRequest, prompt: str | None, room: threading.Semaphore) -> None:
        self.request = request
        self._prompt = prompt
        self._room = room
        self._deltas: list[OutputDelta] = []
        self._done = threading.Event()

    def take(self, delta: OutputDelta) -> None:
        self._deltas.append(delta)
        if delta.finish_reason is not None:
            self._room.release()
            self._done.set()

    def result(self) -> RequestOutput:
        self._done.wait()
        last = self._deltas[-1]
        if last.finish_reason in (None, "error", "cancelled"):
            raise RuntimeError(f"the engine ended a request with {last.finish_reason!r}; its log says why")
        token_ids = tuple(token for delta in self._deltas for token in delta.token_ids)
        wanted = self.request.params.logprobs is not None
        logprobs = tuple(one for delta in self._deltas for one in delta.logprobs or ())
        text = "".join(delta.text for delta in self._deltas)
        output = CompletionOutput(0, text, token_ids, last.finish_reason, logprobs if wanted else None)
        return RequestOutput(self.request.request_id, self._prompt, self.request.prompt_ids, [output], last.stats)
