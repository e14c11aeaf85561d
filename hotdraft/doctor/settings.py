"""The configuration itself: the file, and environment variables that look as if they were part of it."""

import difflib
import os
from collections.abc import Iterator
from pathlib import Path

from hotdraft.doctor.finding import Finding, ok, problem, warning
from hotdraft.pipeline.config.section import ConfigError
from hotdraft.pipeline.config.settings import HotdraftConfig, load_config

PREFIX = "HOTDRAFT_"
OTHERS = ("HOTDRAFT_CACHE", "HOTDRAFT_CONFIG", "HOTDRAFT_BIN", "HOTDRAFT_FOLDER", "HOTDRAFT_BENCH_PYTHON_")
"""How variables begin that are no keys of the configuration."""


def read_settings(path: Path | None) -> tuple[HotdraftConfig | None, list[Finding]]:
    """The configuration at `path`, if it is one, and what is to say of it."""
    ignored = list(_ignored_variables())
    if path is None:
        says = "none was named: only the machine is looked at"
        mend = "`hotdraft doctor --config FILE`, or HOTDRAFT_CONFIG=FILE"
        return None, [warning("configuration", says, mend), *ignored]
    try:
        config = load_config(path)
    except ConfigError as error:
        mend = f"correct it; `hotdraft config show --config {path}` says when it is right"
        return None, [problem("configuration", str(error), mend), *ignored]
    return config, [ok("configuration", str(path)), *ignored]


def _ignored_variables() -> Iterator[Finding]:
    """pydantic-settings refuses an unknown key inside a section, and passes over one outside."""
    keys = {f"{PREFIX}{name.upper()}" for name in HotdraftConfig.model_fields}
    for name in sorted(os.environ):
        first = name.upper().partition("__")[0]
        if first.startswith(PREFIX) and first not in keys and not first.startswith(OTHERS):
            close = difflib.get_close_matches(first, keys, n=1)
            mend = f"did you mean {close[0]}?" if close else f"`unset {name}`, or see `hotdraft config show`"
            yield warning("environment", f"{name} is no key of the configuration and is ignored", mend)
