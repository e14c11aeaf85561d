"""From what a client says to prompt token ids."""

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

T = TypeVar("T")

AT_ONCE_CHARACTERS = 1000
"""Up to here a thread costs more than it saves."""
SHORT_CHARACTERS = 20_000
"""Up to here a prompt waits for no longer one."""
PART_CHARACTERS = 64
"""What a prompt or a message takes, however short it is, is the time of so many."""
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_NOT_TOLD = {
    "messages",
    "conversations",
    *inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters,
}
"""What the template or its renderer has from us: the conversation, and how its text becomes tokens."""


class PromptError(ValueError):
    """A prompt that this model cannot take. `param` is the request's field, `code` OpenAI's for such errors."""

    def __init__(self, message: str, param: str, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


def encode_chat(
    tokenizer: Any, messages: Sequence[dict[str, str]], told: Mapping[str, Any] = _NOTHING
) -> list[int]:
    """Token ids of a conversation up to the assistant's turn, by a template that is `told` what else it asks for.

    Raises `PromptError` if the template refuses it, and for what is not to be told this way.
    """
    if not tokenizer.chat_template:
        raise PromptError("This model has no chat template; use /v1/completions.", "messages")
    if name := next((name for name in told if name in _NOT_TOLD), None):
        says = f"chat_template_kwargs must not have {name}: that is the server's to say"
        raise PromptError(says, "chat_template_kwargs")
    try:
        # The template writes the special tokens itself, so the text must not get them a second time.
        return tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=False, **told)
    except (TemplateError, TypeError, ValueError, ArithmeticError) as error:
        raise PromptError(f"The chat template refuses these messages: {error}", "messages") from error


def encode_text(tokenizer: Any, prompt: str | list[int], add_special_tokens: bool = True) -> list[int]:
    """Token ids of a text, or the given ids. Raises `PromptError` for an empty prompt or an unknown id."""
    if isinstance(prompt, str):  # by what transformers' own call ends in, of which the rest holds Python's lock
        prompt_ids = tokenizer.backend_tokenizer.encode(prompt, add_special_tokens=add_special_tokens).ids
    else:
        prompt_ids = prompt
    if not prompt_ids:
        raise PromptError("prompt: must hold at least one token", "prompt")
    vocabulary = len(tokenizer)
    unknown = next((token for token in prompt_ids if not 0 <= token < vocabulary), None)
    if unknown is not None:
        raise PromptError(f"prompt: token id {unknown} is not in 0..{vocabulary - 1}", "prompt")
    return prompt_ids


class PromptModel(Protocol):
    """What a prompt is for: an engine."""

    @property
    def tokenizer(self) -> Any: ...
    @property
    def max_model_len(self) -> int: ...


class PromptEncoder:
    """Encodes prompts beside the event loop, which serves others meanwhile; what cannot fit is refused unread.

    The tokenizer works without Python's lock. Short prompts have a thread of their own. A call that is cancelled
    before its turn does no work.
    """

    def __init__(self, model: PromptModel) -> None:
        self._model = model
        longest = max(map(len, model.tokenizer.get_vocab()))
        self._max_characters = longest * model.max_model_len
        self._short = ThreadPoolExecutor(1, "tokenize-short")
        self._long = ThreadPoolExecutor(1, "tokenize-long")

    async def chat(self, messages: Sequence[dict[str, str]], told: Mapping[str, Any] = _NOTHING) -> list[int]:
        """As `encode_chat`; raises `PromptError` also for one that is too long."""
        characters = sum(len(message["content"]) for message in messages)
        self._check(characters, "messages")
        tokenizer = self._model.tokenizer
        characters += sum(len(value) for value in told.values() if isinstance(value, str))
        return await self._beside(characters, len(messages), lambda: encode_chat(tokenizer, messages, told))

    async def texts(self, prompts: Sequence[str | list[int]], add_special_tokens: bool = True) -> list[list[int]]:
        """Each as by `encode_text`; raises `PromptError` also for one that is too long."""
        for prompt in prompts:
            if isinstance(prompt, str):
                self._check(len(prompt), "prompt")
            elif len(prompt) > self._model.max_model_len:
                raise self._too_long(f"{len(prompt)} token ids", "prompt")
        tokenizer = self._model.tokenizer
        return await self._beside(
            sum(map(len, prompts)),
            len(prompts),
            lambda: [encode_text(tokenizer, prompt, add_special_tokens) for prompt in prompts],
        )

    async def _beside(self, characters: int, parts: int, work: Callable[[], T]) -> T:
        size = characters + PART_CHARACTERS * parts
        if size <= AT_ONCE_CHARACTERS:
            return work()
        pool = self._short if size <= SHORT_CHARACTERS else self._long
        return await asyncio.get_running_loop().run_in_executor(pool, work)

    def _check(self, characters: int, param: str) -> None:
        if characters > self._max_characters:
            raise self._too_long(
                f"{characters} characters, of which it takes {self._max_characters} at most", param
            )

    def _too_long(self, has: str, param: str) -> PromptError:
        limit = self._model.max_model_len
        message = f"This model's maximum context length is {limit} tokens. However, your {param} has {has}."
        return PromptError(message, param, "context_length_exceeded")


def decode(tokenizer: Any, token_ids: Sequence[int]) -> str:
    """The text of tokens, special ones included."""
    return tokenizer.backend_tokenizer.decode(list(token_ids), skip_special_tokens=False)
