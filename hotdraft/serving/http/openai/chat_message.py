"""A message of a conversation, and what it shares with the requests: checks of numbers."""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from hotdraft.pipeline.config.section import no_truth_for_a_number
from hotdraft.serving.http.openai.fields import MAX_PARTS, UnicodeText, text_parts
from hotdraft.serving.http.openai.unbuilt import refuse_unbuilt_part


class RequestModel(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)

    _numbers = field_validator("*", mode="before")(no_truth_for_a_number)


class TextPart(RequestModel):
    type: Literal["text"]
    text: UnicodeText


Parts = Annotated[list[TextPart], Field(max_length=MAX_PARTS)]


class ChatMessage(RequestModel):
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[Parts, BeforeValidator(text_parts, json_schema_input_type=str | Parts)]

    _parts = model_validator(mode="before")(refuse_unbuilt_part)

    def for_template(self) -> dict[str, str]:
        """The message as chat templates know it; `developer` is OpenAI's newer name for `system`."""
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": "\n".join(part.text for part in self.content)}
