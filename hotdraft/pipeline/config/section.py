"""What every section of the configuration is."""

from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

Dtype = Literal["auto", "float32", "bfloat16", "float16"]

Threads = Annotated[int, Field(ge=1, le=1024)] | None
"""Some thousands more than a machine can have end the process without a word."""


def _not_empty(value: Any) -> Any:
    if isinstance(value, str) and not value.strip():
        raise ValueError("must be a path")
    return value


LocalPath = Annotated[Path, BeforeValidator(_not_empty)]
"""An empty text is a variable that nobody filled, and not the folder that one is in."""


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names the file, the key and what is allowed."""


def no_truth_for_a_number(cls: type[BaseModel], value: Any, info: ValidationInfo) -> Any:
    """A validator, before others, of all fields: pydantic takes true for 1."""
    if isinstance(value, bool) and info.field_name is not None:
        wanted = cls.model_fields[info.field_name].annotation
        if wanted is not bool and bool not in get_args(wanted):
            raise ValueError(f"must not be {str(value).lower()}: it is no switch")
    return value


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    _numbers = field_validator("*", mode="before")(no_truth_for_a_number)
