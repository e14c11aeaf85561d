"""The library's face: a pair of models that generates, records and takes on adapters in this process.

Names and shapes follow vLLM's. `hotdraft serve` does the same over HTTP, and minds the loop by itself.
"""

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from hotdraft.outputs import Answer, RequestOutput, check_finished
from hotdraft.pipeline.config.section import ConfigError
from hotdraft.pipeline.config.serving import RecorderConfig
from hotdraft.pipeline.config.settings import given, load_config
from hotdraft.pipeline.models.adapter_folder import AdapterError
from hotdraft.pipeline.models.loading import fingerprint
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.serving.engine.load import build_engine, draft_ranking
from hotdraft.serving.engine.recorder import Recorder, ServedModels
from hotdraft.serving.messages.events import SwapEvent
from hotdraft.serving.messages.prompt_encoder import encode_chat, encode_text
from hotdraft.serving.messages.request import (
    DEFAULT_DOMAIN,
    GenerationRequest,
    OutputDelta,
    SamplingParams,
)
from hotdraft.serving.updates.hot_swap import HotSwapper

logger = logging.getLogger(__name__)


class LLM:
    """A target, with a draft that proposes for it, in this process.

    `target` and `draft` are hub ids, local folders, or names known to `hotdraft models`; `engine` takes the keys of
    the configuration's section of that name, as in ``k=4`` or ``num_slots=16``; ``HOTDRAFT_*`` variables hold for
    what is not given. Generation runs in threads of its own until `close`, which the end of a ``with`` calls;
    without it what was last recorded is lost. Any thread may call any method.

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
        self,
        target: str,
        draft: str | None = None,
        *,
        dtype: str | None = None,
        device: str | None = None,
        **engine: Any,
    ) -> None:
        """Load the models. Raises `ModelError` if they are missing or do not fit, ValueError for a wrong option."""
        options = given({"draft": draft, "dtype": dtype, "device": device, "engine": engine})
        self._config = load_config(None, {"target": target, **options})
        if self._config.engine.kind != "hotdraft":
            raise ConfigError(
                f"engine.kind: hotdraft's own engine runs in this process, not {self._config.engine.kind}"
            )
        self._engine = build_engine(self._config, None)
        self._room = threading.Semaphore(self._config.engine.max_queue)
        self._changing = threading.Lock()
        self._swapper: HotSwapper | None = None
        self._newest_version = 0
        if self._engine.decoder.slots.device.type == "cpu" and self._config.engine.instructions != "none":
            for model, by in self._engine.computations.items():
                if by.why_not_native is not None:
                    logger.warning("the %s is computed by torch, which is slower: %s", model, by.why_not_native)
        try:
            self._engine.start()
        except BaseException:
            self._engine.stop()
            raise

    def generate(
        self,
        prompts: str | list[int] | Sequence[str | list[int]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        domain: str = DEFAULT_DOMAIN,
    ) -> list[RequestOutput]:
        """Answer `prompts`, one or several, texts or lists of token ids, in batches; in their order.

        Recorded answers are kept under `domain`. Raises ValueError for what the models cannot take, and
        RuntimeError if the engine fails.
        """
        several = _each_prompt(prompts)
        token_ids = [encode_text(self._engine.tokenizer, prompt) for prompt in several]
        texts = [prompt if isinstance(prompt, str) else None for prompt in several]
        return self._answer(texts, token_ids, sampling_params, domain)

    def chat(
        self,
        messages: Sequence[dict[str, str]] | Sequence[Sequence[dict[str, str]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        domain: str = DEFAULT_DOMAIN,
    ) -> list[RequestOutput]:
        """As `generate`, for one conversation or several, each a list of messages with `role` and `content`.

        The chat template is told `chat_template_kwargs`, such as ``{"enable_thinking": False}``.
        """
        one = not messages or isinstance(messages[0], Mapping)
        conversations: Any = [messages] if one else messages
        told = chat_template_kwargs or {}
        token_ids = [encode_chat(self._engine.tokenizer, conversation, told) for conversation in conversations]
        return self._answer([None] * len(token_ids), token_ids, sampling_params, domain)

    def stream(
        self,
        prompt: str | list[int],
        sampling_params: SamplingParams | None = None,
        *,
        domain: str = DEFAULT_DOMAIN,
    ) -> Iterator[OutputDelta]:
        """The answer's text as it comes; the last delta has a `finish_reason`. Left early, it is cancelled.

        Raises as `generate` does, once the first text is waited for: nothing is asked before.
        """
        prompt_ids = tuple(encode_text(self._engine.tokenizer, prompt))
        [params] = _for_each(1, sampling_params)
        request = GenerationRequest(uuid4().hex, prompt_ids, params, domain)
        deltas: queue.SimpleQueue[OutputDelta] = queue.SimpleQueue()
        self._submit(request, deltas.put)
        try:
            while True:
                delta = deltas.get()
                yield delta
                if delta.finish_reason is not None:
                    check_finished(delta.finish_reason)
                    return
        finally:
            self._engine.cancel(request.request_id)

    def record_to(self, buffer: ReplayBuffer | str | Path | None, *, flush_seconds: float = 2.0) -> None:
        """Keep what is answered from now on in `buffer`, with the target's distributions; None ends it.

        It may be a folder or URL, as of `ReplayBuffer`. Shards appear every `flush_seconds`. What the recorder
        before had taken is written first, for ten seconds at most; what is lost is logged, and what is answered
        meanwhile is not kept.
        """
        keys = self._config.recorder.model_dump() | {"flush_seconds": flush_seconds}
        config = RecorderConfig(**keys)
        if buffer is not None and not self._engine.is_alive:
            raise RuntimeError("there is nothing to record: the engine was closed, or failed as its log says")
        opened = None if buffer is None else ReplayBuffer.at(buffer)  # first: where it cannot be, nothing changes
        with self._changing:
            before = self._engine.record_with(None)
            if before is not None:
                before.close()
            if opened is not None:
                self._engine.record_with(Recorder(opened, config, models=ServedModels.of(self._config)))

    def swap(self, adapter: str | Path | None, *, version: int | None = None) -> SwapEvent:
        """Let the draft take on the adapter in a folder, between two rounds; None brings back the draft itself.

        What is recorded says by which `version` it was drafted: give the registry's, or there is a new number.

        Raises `AdapterError` if it does not fit the draft, and `SwapError` if the live draft then does not compute
        what its trainer did; in both cases what was served before goes on.
        """
        if self._config.draft is None:
            raise ValueError("there is no draft to swap: LLM was given a target alone")
        if not self._engine.is_alive:
            raise RuntimeError("there is no engine to swap a draft in: it was closed, or failed as its log says")
        if version is not None and (type(version) is not int or not 1 <= version < 2**31):
            raise ValueError(f"version must be a whole number from 1, below 2^31, not {version!r}")
        with self._changing:
            if self._swapper is None:
                ranking = draft_ranking(self._config)
                self._swapper = HotSwapper(self._engine, fingerprint(self._config.draft), ranking)
            if adapter is None:
                return self._swapper.swap(self._swapper.stage(0, None), "rollback")
            if not Path(adapter).is_dir():
                raise AdapterError(f"no adapter at {adapter}: there is no such folder")
            staged = self._swapper.stage(version or self._newest_version + 1, Path(adapter))
            event = self._swapper.swap(staged, "promotion")
            self._newest_version = max(self._newest_version, event.version)
            return event

    def close(self) -> None:
        """End generation and write what was recorded."""
        try:
            self._engine.stop()
        finally:
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
        each = _for_each(len(token_ids), sampling_params)
        answers: list[Answer] = []
        try:
            for prompt, prompt_ids, params in zip(prompts, token_ids, each, strict=True):
                request = GenerationRequest(uuid4().hex, tuple(prompt_ids), params, domain)
                answers.append(Answer(request, prompt))
                self._submit(request, answers[-1].take)
            return [answer.result() for answer in answers]
        except BaseException:
            for answer in answers:
                self._engine.cancel(answer.request.request_id)
            raise

    def _submit(self, request: GenerationRequest, on_delta: Callable[[OutputDelta], None]) -> None:
        """Submit as soon as the engine's queue has room."""

        def hear(delta: OutputDelta) -> None:
            if delta.finish_reason is not None:
                self._room.release()
            on_delta(delta)

        self._room.acquire()
        try:
            self._engine.submit(request, hear)
        except BaseException:
            self._room.release()
            raise


def _each_prompt(prompts: Any) -> list[Any]:
    """One or several as a list. Raises ValueError for what is none."""
    is_several = isinstance(prompts, Sequence) and not isinstance(prompts, str)
    several = [prompts] if not is_several or (prompts and isinstance(prompts[0], int)) else list(prompts)
    if other := next((type(prompt) for prompt in several if not isinstance(prompt, str | list | tuple)), None):
        raise ValueError(f"prompts must be texts or lists of token ids, not {_name(other)}")
    return several


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__name__}"


def _for_each(
    prompts: int, sampling_params: SamplingParams | Sequence[SamplingParams] | None
) -> Sequence[SamplingParams]:
    """One for each of so many `prompts`. Raises ValueError."""
    if sampling_params is None or isinstance(sampling_params, SamplingParams):
        return [sampling_params or SamplingParams()] * prompts
    several: Sequence[Any] = sampling_params if isinstance(sampling_params, list | tuple) else [sampling_params]
    if other := next((type(params) for params in several if not isinstance(params, SamplingParams)), None):
        raise ValueError(f"sampling_params must be hotdraft's SamplingParams, one or a list, not {_name(other)}")
    if len(several) != prompts:
        raise ValueError(f"{prompts} prompts, {len(several)} sampling_params: give one, or one each")
    return several
