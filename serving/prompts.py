"""From what a client says to prompt token ids."""

from collections.abc import Sequence
from typing import Any

from jinja2 import TemplateError


class PromptError(ValueError):
    """A prompt that this model cannot take. `param` is the request's field."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


def encode_chat(tokenizer: Any, messages: Sequence[dict[str, str]]) -> list[int]:
    """Token ids of a conversation up to the assistant's turn. Raises `PromptError` if the template refuses it."""
    if not tokenizer.chat_template:
        raise PromptError("This model has no chat template; use /v1/completions.", "messages")
    try:
        # The template writes the special tokens itself, so the text must not get them a second time.
        return tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=False)
    except TemplateError as error:
        raise PromptError(f"The chat template refuses these messages: {error}", "messages") from error


def encode_text(tokenizer: Any, prompt: str | list[int]) -> list[int]:
    """Token ids of a text, or the given ids. Raises `PromptError` for an empty prompt or an unknown id."""
    prompt_ids = tokenizer(prompt).input_ids if isinstance(prompt, str) else prompt
    if not prompt_ids:
        raise PromptError("prompt: must hold at least one token", "prompt")
    vocabulary = len(tokenizer)
    unknown = next((token for token in prompt_ids if not 0 <= token < vocabulary), None)
    if unknown is not None:
        raise PromptError(f"prompt: token id {unknown} is not in 0..{vocabulary - 1}", "prompt")
    return prompt_ids


def decode(tokenizer: Any, token_ids: Sequence[int]) -> str:
    """The text of tokens, special ones included."""
    return tokenizer.backend_tokenizer.decode(list(token_ids), skip_special_tokens=False)
