"""What every section of the configuration is."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Dtype = Literal["auto", "float32", "bfloat16", "float16"]

Threads = Annotated[int, Field(ge=1, le=1024)] | None
"""Some thousands more than a machine can have end the process without a word."""


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names the file, the key and what is allowed."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)
