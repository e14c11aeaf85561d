"""What clients may send: OpenAI's chat completions and completions, with vLLM's sampling extras.

A field that is known to change the result and is not built is refused by name; any other unknown
field is ignored, as OpenAI-compatible servers do.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from hotdraft.serving.http.openai.chat_message import ChatMessage, RequestModel
from hotdraft.serving.http.openai.fields import (
    MAX_METADATA,
    MAX_TEMPLATE_KWARGS,
    Effort,
    Few,
    MetadataText,
    Stop,
    Stops,
    TemplateValue,
    TokenId,
    UnicodeText,
    few_entries,
    few_parts,
    prompt_list,
    stop_list,
)
from hotdraft.serving.http.openai.unbuilt import refuse_unbuilt
from hotdraft.serving.messages.request import MAX_BIASED, MAX_STOP_TOKENS, MODEL_TELLS, SamplingParams
from hotdraft.serving.messages.stop_strings import StopStrings

MAX_MESSAGES = 2048
"""OpenAI's bound."""


class StreamOptions(RequestModel):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = Field(
        False, description="with include_usage: in each chunk, that of its choice so far"
    )


def _tell_needs(schema: dict[str, Any], model: type["GenerationOptions"]) -> None:
    schema["allOf"] = [
        {
            "if": {"properties": {name: {"not": {"enum": [None, 0]}}}, "required": [name]},
            "then": {"properties": {needed: {"const": True}}, "required": [needed]},
        }
        for name, needed in model.needs.items()
    ]


class GenerationOptions(RequestModel):
    """What both endpoints share."""

    model_config = ConfigDict(extra="allow", json_schema_extra=_tell_needs)
    needs: ClassVar[dict[str, str]] = {"stream_options": "stream"}
    """Fields that go only with another one, which must be true, but where they ask for nothing."""

    model: UnicodeText
    max_tokens: int | None = Field(None, ge=1, lt=2**31)
    max_completion_tokens: int | None = Field(
        None, ge=1, lt=2**31, description="newer name of max_tokens; wins over it"
    )
    min_tokens: int | None = Field(0, ge=0, lt=2**31, description="before which nothing ends the answer")
    temperature: float | None = Field(None, ge=0, le=2, description="the model's own if absent, else 1")
    top_p: float | None = Field(None, gt=0, le=1, description="the model's own if absent, else 1")
    top_k: int | None = Field(
        None, ge=-1, lt=2**31, description="0 or -1 keeps every token; the model's own if absent, else 0"
    )
    min_p: float | None = Field(None, ge=0, lt=1, description="the model's own if absent, else 0")
    epsilon_cutoff: float | None = Field(None, ge=0, lt=1, description="the model's own if absent, else 0")
    eta_cutoff: float | None = Field(None, ge=0, lt=1, description="the model's own if absent, else 0")
    presence_penalty: float | None = Field(0.0, ge=-2, le=2)
    frequency_penalty: float | None = Field(0.0, ge=-2, le=2)
    repetition_penalty: float | None = Field(1.0, ge=0.01, le=100)
    logit_bias: Annotated[
        Annotated[dict[int, float], Field(max_length=MAX_BIASED)] | None, few_entries(MAX_BIASED)
    ] = Field(None, description="by token id, between -100 and 100: added to the token's logit")
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    n: int | None = Field(1, ge=1, le=128, description="answers to each prompt")
    best_of: int | None = Field(None, ge=1, le=128, description="must be n, if anything")
    stop: Annotated[Stops | None, BeforeValidator(stop_list, json_schema_input_type=Stop | Stops | None)] = Field(
        None, description="strings that end the answer, and are not part of it"
    )
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKENS)] | None = Field(
        None, description="tokens that end the answer, and are not part of its text"
    )
    ignore_eos: bool | None = False
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    store: bool | None = Field(
        None,
        description="false keeps the request out of the replay buffer, and its answer out of what others' are "
        "guessed from",
    )
    cache_salt: str | None = Field(
        None,
        max_length=256,
        description="answer and prompt speed up only requests with the same salt",
    )
    metadata: Annotated[
        Annotated[dict[UnicodeText, MetadataText], Field(max_length=MAX_METADATA)] | None,
        few_entries(MAX_METADATA),
    ] = Field(None, description='{"domain": name} tags the traffic')
    user: UnicodeText | None = None

    @model_validator(mode="after")
    def _refuse_what_is_not_built(self) -> Self:
        refuse_unbuilt(self.model_extra or {})
        if self.best_of not in (None, self.choices):
            says = "{param} is supported only where it is n: all answers are told"
            raise PydanticCustomError("best_of", says, {"param": "best_of"})
        for name, needed in self.needs.items():
            if getattr(self, name) not in (None, 0) and not getattr(self, needed):
                facts = {"param": name, "needed": needed}
                raise PydanticCustomError("alone", "{param} is only allowed with {needed}: true", facts)
        return self

    @property
    def requested_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def choices(self) -> int:
        """Answers to each prompt."""
        return self.n or 1

    @property
    @abstractmethod
    def wanted_logprobs(self) -> int | None:
        """Likeliest tokens to tell beside each token's own log-probability; None tells neither."""

    @property
    def tells_only_prompts(self) -> bool:
        return self.requested_tokens == 0

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.continuous_usage_stats)

    @property
    def domain(self) -> str | None:
        return (self.metadata or {}).get("domain")

    @cached_property
    def stop_strings(self) -> StopStrings:
        return StopStrings(self.stop or ())

    def sampling_params(
        self, max_tokens: int, choice: int = 0, defaults: Mapping[str, float] = MappingProxyType({})
    ) -> SamplingParams:
        """Sampling of a prompt's answer `choice` as the engine takes it; a null field keeps the default.

        `defaults` stand before those of `SamplingParams`. Answers differ in their seeds, the first of them has that
        of the request. Raises ValueError.
        """
        others = ("min_tokens", "ignore_eos", "presence_penalty", "frequency_penalty", "repetition_penalty")
        told = {name: value for name in (*MODEL_TELLS, *others) if (value := getattr(self, name)) is not None}
        given: dict[str, Any] = {**defaults, **told}
        return SamplingParams(
            max_tokens=max_tokens,
            stop=self.stop_strings,
            stop_token_ids=self.stop_token_ids,
            logit_bias=tuple((self.logit_bias or {}).items()),
            logprobs=self.wanted_logprobs,
            seed=None if self.seed is None else (self.seed + choice + 2**63) % 2**64 - 2**63,
            **given,
        )


class ChatCompletionRequest(GenerationOptions):
    needs: ClassVar[dict[str, str]] = {**GenerationOptions.needs, "top_logprobs": "logprobs"}

    messages: Annotated[list[ChatMessage], BeforeValidator(few_parts)] = Field(
        min_length=1, max_length=MAX_MESSAGES, fail_fast=True
    )
    logprobs: bool | None = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
    reasoning_effort: Effort | None = Field(None, description="told to the chat template")
    chat_template_kwargs: Annotated[
        Annotated[dict[str, TemplateValue], Field(max_length=MAX_TEMPLATE_KWARGS)] | None,
        few_entries(MAX_TEMPLATE_KWARGS),
    ] = Field(None, description='told to it as well, such as {"enable_thinking": false}')

    @property
    def told_to_template(self) -> dict[str, Any]:
        """As vLLM does: Qwen3's template goes by `enable_thinking`, others by the effort itself."""
        effort, told = self.reasoning_effort, self.chat_template_kwargs or {}
        return {"enable_thinking": effort != "none", **told, "reasoning_effort": effort} if effort else told

    @property
    def wanted_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(GenerationOptions):
    prompt: Annotated[
        list[str | list[int]],
        PlainValidator(prompt_list, json_schema_input_type=str | list[int] | Few[str] | Few[list[int]]),
    ] = Field(description="text or token ids, or a list of either: each prompt is answered")
    max_tokens: int | None = Field(
        None, ge=0, lt=2**31, description="0 only with echo: nothing but the prompt is told"
    )
    logprobs: int | None = Field(None, ge=0, le=20)
    echo: bool | None = Field(False, description="answers begin with their prompts, logprobs too")
    add_special_tokens: bool | None = Field(True, description="those that the tokenizer puts around a text")

    @property
    def has_special_tokens(self) -> bool:
        """Whether the tokenizer puts its own around a text."""
        return self.add_special_tokens is not False

    @model_validator(mode="after")
    def _something_to_tell(self) -> Self:
        if self.requested_tokens == 0 and not self.echo:
            raise PydanticCustomError("nothing", "{param} may be 0 only with echo: true", {"param": "max_tokens"})
        return self

    @property
    def wanted_logprobs(self) -> int | None:
        return self.logprobs

    def sampling_params(
        self, max_tokens: int, choice: int = 0, defaults: Mapping[str, float] = MappingProxyType({})
    ) -> SamplingParams:
        params = super().sampling_params(max_tokens, choice, defaults)
        return replace(params, prompt_logprobs=params.logprobs) if self.echo else params
