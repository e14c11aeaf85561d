"""What clients may send: OpenAI's chat completions and completions, with vLLM's sampling extras.

A field that is known to change the result and is not built is refused by name; any other unknown
field is ignored, as OpenAI-compatible servers do.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from serving.request import SamplingParams

_HARMLESS: Mapping[str, tuple[object, ...]] = {
    "allowed_token_ids": ([],),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template": (),
    "continue_final_message": (False,),
    "echo": (False,),
    "frequency_penalty": (0, 0.0),
    "function_call": ("none",),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "length_penalty": (1, 1.0),
    "logit_bias": ({},),
    "logprobs": (False,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "n": (1,),
    "presence_penalty": (0, 0.0),
    "prompt_logprobs": (),
    "repetition_penalty": (1, 1.0),
    "response_format": ({"type": "text"},),
    "stop_token_ids": ([],),
    "structured_outputs": (),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "web_search_options": (),
}
"""Fields that change the result and are not built, with the values that ask for nothing (null always does)."""


def _encodable(text: str) -> str:
    """JSON can spell half of a surrogate pair; no tokenizer and no store can hold it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("must be valid Unicode text, without lone surrogates") from None
    return text


Text = Annotated[str, AfterValidator(_encodable)]


def _text_parts(value: Any) -> Any:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


def _stop_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _only_prompt(value: Any) -> Any:
    """A text or token ids; the list of one prompt that some clients send is unwrapped."""
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        if len(value) > 1:
            raise ValueError("one prompt a request is supported; send the others separately")
        value = value[0]
    if isinstance(value, str) or (isinstance(value, list) and all(type(token) is int for token in value)):
        return value
    raise ValueError("must be a text or a list of token ids")


class RequestModel(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class TextPart(RequestModel):
    type: Literal["text"]
    text: Text


class ChatMessage(RequestModel):
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[list[TextPart], BeforeValidator(_text_parts, json_schema_input_type=str | list[TextPart])]

    def for_template(self) -> dict[str, str]:
        """The message as chat templates know it; `developer` is OpenAI's newer name for `system`."""
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": "\n".join(part.text for part in self.content)}


class StreamOptions(RequestModel):
    include_usage: bool | None = False


class GenerationOptions(RequestModel):
    """What both endpoints share."""

    model_config = ConfigDict(extra="allow")

    model: str
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1, description="newer name of max_tokens; wins over it")
    temperature: float | None = Field(1.0, ge=0, le=2)
    top_p: float | None = Field(1.0, gt=0, le=1)
    top_k: int | None = Field(0, ge=-1, description="0 or -1 keeps every token")
    min_p: float | None = Field(0.0, ge=0, lt=1)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: Annotated[
        list[Annotated[Text, Field(min_length=1)]] | None,
        BeforeValidator(_stop_list, json_schema_input_type=str | list[str] | None),
    ] = None
    ignore_eos: bool | None = False
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    store: bool | None = Field(None, description="false keeps the request out of the replay buffer")
    metadata: dict[str, Text] | None = Field(None, description='{"domain": name} tags the traffic')
    user: str | None = None

    @model_validator(mode="after")
    def _refuse_what_is_not_built(self) -> Self:
        for name, value in (self.model_extra or {}).items():
            harmless = _HARMLESS.get(name)
            if harmless is None or value is None:
                continue
            if not any(type(value) is type(allowed) and value == allowed for allowed in harmless):
                raise PydanticCustomError("unsupported", "{param} is not supported by this server", {"param": name})
        if self.stream_options is not None and not self.stream:
            raise PydanticCustomError(
                "stream_options", "{param} is only allowed with stream: true", {"param": "stream_options"}
            )
        return self

    @property
    def requested_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def domain(self) -> str | None:
        return (self.metadata or {}).get("domain")

    def sampling_params(self, max_tokens: int) -> SamplingParams:
        """Sampling as the engine takes it; a null field keeps the default. Raises ValueError."""
        names = ("temperature", "top_p", "min_p", "seed", "ignore_eos")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return SamplingParams(
            max_tokens=max_tokens, top_k=max(self.top_k or 0, 0), stop=tuple(self.stop or ()), **given
        )


class ChatCompletionRequest(GenerationOptions):
    messages: list[ChatMessage] = Field(min_length=1)


class CompletionRequest(GenerationOptions):
    prompt: Annotated[
        Text | list[int],
        BeforeValidator(_only_prompt, json_schema_input_type=str | list[int] | list[str] | list[list[int]]),
    ] = Field(description="text, or token ids; a list may hold one prompt")
