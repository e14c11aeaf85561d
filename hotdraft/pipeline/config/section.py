"""What every section of the configuration is."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

Dtype = Literal["auto", "float32", "bfloat16", "float16"]


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names the file, the key and what is allowed."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
