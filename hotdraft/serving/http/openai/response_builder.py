"""From what the engine says of a request's choices to the responses of the two endpoints."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hotdraft.serving.engine.detokenizer import Detokenizer
from hotdraft.serving.http.openai.logprobs import TextOffsets, TokenTexts, chat_logprobs, text_logprobs
from hotdraft.serving.http.openai.responses import (
    AssistantMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ClientFinishReason,
    Completion,
    Envelope,
    MessageDelta,
    TextChoice,
    speculation,
    usage,
)
from hotdraft.serving.messages.request import RequestStats, TokenLogprob


@dataclass
class ChoiceText:
    """What a choice has said so far, or, in a stream, since its last chunk."""

    text: str = ""
    finish_reason: ClientFinishReason | None = None
    stop_reason: str | int | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)


@dataclass(frozen=True)
class _Builder:
    request_id: str
    model: str
    created: int
    texts: TokenTexts
    logprobs: bool
    """Whether they were asked for."""

    @property
    def echoes(self) -> bool:
        """Whether choices begin with their prompts."""
        return False

    def _head(self, stats: RequestStats) -> dict[str, Any]:
        return {
            "id": self.request_id,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": f"hotdraft-draft-v{stats.draft_version}",
        }


class ChatBuilder(_Builder):
    def whole(self, choices: Sequence[ChoiceText], stats: RequestStats) -> ChatCompletion:
        return ChatCompletion(
            object="chat.completion",
            choices=[
                ChatChoice(
                    index=index,
                    message=AssistantMessage(role="assistant", content=choice.text),
                    logprobs=chat_logprobs(choice.logprobs, self.texts) if self.logprobs else None,
                    finish_reason=choice.finish_reason,
                    stop_reason=choice.stop_reason,
                )
                for index, choice in enumerate(choices)
            ],
            usage=usage(stats),
            hotdraft=speculation(stats),
            **self._head(stats),
        )

    def opening(
        self, index: int, prompt_logprobs: Sequence[TokenLogprob], stats: RequestStats, **extra: Any
    ) -> list[Envelope]:
        role = ChatChunkChoice(
            index=index, delta=MessageDelta(role="assistant", content=""), logprobs=None, finish_reason=None
        )
        return [self._chunk([role], stats, **extra)]

    def chunk(self, index: int, said: ChoiceText, stats: RequestStats, **extra: Any) -> ChatCompletionChunk:
        choice = ChatChunkChoice(
            index=index,
            delta=MessageDelta(content=said.text) if said.text else MessageDelta(),
            logprobs=chat_logprobs(said.logprobs, self.texts) if self.logprobs else None,
            finish_reason=said.finish_reason,
            stop_reason=said.stop_reason,
        )
        return self._chunk([choice], stats, **extra)

    def closing(self, stats: RequestStats, **extra: Any) -> ChatCompletionChunk:
        return self._chunk([], stats, **extra)

    def _chunk(self, choices: list[ChatChunkChoice], stats: RequestStats, **extra: Any) -> ChatCompletionChunk:
        return ChatCompletionChunk(object="chat.completion.chunk", choices=choices, **extra, **self._head(stats))


@dataclass(frozen=True)
class EchoedPrompt:
    """What a choice begins with."""

    text: str = ""
    offsets: Sequence[int] = ()
    """Characters at which its tokens begin, where log-probs are told."""


@dataclass(frozen=True)
class TextBuilder(_Builder):
    detokenizer: Callable[[int], Detokenizer]
    """Of a choice."""
    echoed: Sequence[EchoedPrompt] = ()
    """By choice; none without `echo`."""
    _offsets: dict[int, TextOffsets] = field(default_factory=dict)

    @property
    def echoes(self) -> bool:
        return bool(self.echoed)

    def whole(self, choices: Sequence[ChoiceText], stats: RequestStats) -> Completion:
        told = [self._choice(index, said, self._echo(index)) for index, said in enumerate(choices)]
        return self._completion(told, stats, usage=usage(stats), hotdraft=speculation(stats))

    def opening(
        self, index: int, prompt_logprobs: Sequence[TokenLogprob], stats: RequestStats, **extra: Any
    ) -> list[Envelope]:
        if not self.echoes:
            return []
        prompt = ChoiceText(prompt_logprobs=list(prompt_logprobs))
        return [self._completion([self._choice(index, prompt, self._echo(index))], stats, **extra)]

    def chunk(self, index: int, said: ChoiceText, stats: RequestStats, **extra: Any) -> Completion:
        return self._completion([self._choice(index, said, EchoedPrompt())], stats, **extra)

    def closing(self, stats: RequestStats, **extra: Any) -> Completion:
        return self._completion([], stats, **extra)

    def _echo(self, index: int) -> EchoedPrompt:
        return self.echoed[index] if self.echoed else EchoedPrompt()

    def _choice(self, index: int, said: ChoiceText, begins: EchoedPrompt) -> TextChoice:
        logprobs = None
        if self.logprobs:
            if index not in self._offsets:
                self._offsets[index] = TextOffsets(self.detokenizer(index), len(self._echo(index).text))
            following = self._offsets[index].following([token.token_id for token in said.logprobs])
            told = [*said.prompt_logprobs, *said.logprobs]
            logprobs = text_logprobs(told, self.texts, [*begins.offsets, *following])
        return TextChoice(
            index=index,
            text=begins.text + said.text,
            logprobs=logprobs,
            finish_reason=said.finish_reason,
            stop_reason=said.stop_reason,
        )

    def _completion(self, choices: list[TextChoice], stats: RequestStats, **extra: Any) -> Completion:
        return Completion(object="text_completion", choices=choices, **extra, **self._head(stats))


ResponseBuilder = ChatBuilder | TextBuilder
"""Turns choices into an endpoint's responses; `extra` is `usage` and `hotdraft`.

`opening` are chunks that come before a choice's first, `closing` is the one without choices that carries the usage.
"""
