"""Types and checks of single fields of a request."""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator

MAX_PROMPTS = 2048
MAX_PARTS = 64
"""Of a message."""
MAX_ALL_PARTS = 4096
"""Of all messages."""
MAX_STOP_STRINGS = 32
"""OpenAI takes 4, vLLM any number."""
MAX_STOP_LENGTH = 256
MAX_METADATA = 16
"""OpenAI's bound."""
MAX_METADATA_LENGTH = 512
"""Likewise."""
MAX_TEMPLATE_KWARGS = 16
MAX_TEMPLATE_TEXT = 2048
"""Characters of one of them."""


def _encodable(text: str) -> str:
    """JSON can spell half of a surrogate pair; no tokenizer and no store can hold it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("must be valid Unicode text, without lone surrogates") from None
    return text


UnicodeText = Annotated[str, AfterValidator(_encodable)]
MetadataText = Annotated[str, Field(max_length=MAX_METADATA_LENGTH), AfterValidator(_encodable)]

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""Of a model's reasoning."""

Item = TypeVar("Item")
Few = Annotated[list[Item], Field(max_length=MAX_PROMPTS)]
Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH), AfterValidator(_encodable)]
Stops = Annotated[list[Stop], Field(max_length=MAX_STOP_STRINGS)]
TokenId = Annotated[int, Field(strict=True, ge=0, lt=2**31)]


def _template_value(value: Any) -> Any:
    if isinstance(value, list | dict):
        raise ValueError(f"must be true or false, a number or a text, not {_in_json(value)}")
    if isinstance(value, str) and len(value) > MAX_TEMPLATE_TEXT:
        raise ValueError(f"must have at most {MAX_TEMPLATE_TEXT} characters, not {len(value)}")
    return _encodable(value) if isinstance(value, str) else value


_TemplateText = Annotated[str, Field(max_length=MAX_TEMPLATE_TEXT)]
TemplateValue = Annotated[
    Any, PlainValidator(_template_value, json_schema_input_type=bool | float | _TemplateText | None)
]


def text_parts(value: Any) -> Any:
    if not isinstance(value, str | list):
        raise ValueError(f"must be a text or a list of parts, not {_in_json(value)}")
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


def stop_list(value: Any) -> Any:
    if not isinstance(value, str | list | None):
        raise ValueError(f"must be a text or a list of texts, not {_in_json(value)}")
    return [value] if isinstance(value, str) else value


def _in_json(value: Any) -> str:
    names = {dict: "an object", list: "a list", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def few_entries(most: int) -> BeforeValidator:
    """Counted before each of them is looked at."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > most:
            raise ValueError(f"must have at most {most} entries, not {len(value)}")
        return value

    return BeforeValidator(check)


def few_parts(messages: Any) -> Any:
    """Likewise."""
    listed = messages if isinstance(messages, list) else []
    contents = [message.get("content") for message in listed if isinstance(message, dict)]
    parts = sum(len(content) for content in contents if isinstance(content, list))
    if parts > MAX_ALL_PARTS:
        raise ValueError(f"must have at most {MAX_ALL_PARTS} parts together, not {parts}")
    return messages


def prompt_list(value: Any) -> list[str] | list[list[int]]:
    """A list of prompts, each a text or token ids; one prompt may come without the list around it.

    Checked by hand: there may be a million ids, on the event loop.
    """
    prompts = value if isinstance(value, list) and value and not isinstance(value[0], int) else [value]
    if len(prompts) > MAX_PROMPTS:
        raise ValueError(f"must be at most {MAX_PROMPTS} prompts, not {len(prompts)}")
    if all(isinstance(prompt, str) for prompt in prompts):
        return [_encodable(prompt) for prompt in prompts]
    if all(_is_token_ids(prompt) for prompt in prompts):
        return prompts
    raise ValueError("must be a text, a list of token ids, or a list of either")


def _is_token_ids(value: Any) -> bool:
    return isinstance(value, list) and set(map(type, value)) <= {int}
