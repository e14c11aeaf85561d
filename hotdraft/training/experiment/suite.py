"""Public protocols of experiments, a YAML file each: what is asked, of which policies, and of what ceilings."""

from pathlib import Path
from typing import Any

import yaml

from hotdraft.pipeline.config.section import ConfigError


def read_suite(name: str) -> dict[str, Any]:
    """Settings to lay over a configuration's. Raises `ConfigError` if there is no such suite."""
    known = {path.stem: path for path in Path(__file__).parent.glob("*.yaml")}
    if name not in known:
        raise ConfigError(f"there is no suite {name}: known are {', '.join(sorted(known))}")
    content: dict[str, Any] = yaml.safe_load(known[name].read_text())
    return content
