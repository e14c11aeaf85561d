"""The configuration itself: the file, and environment variables that are part of it."""

from pathlib import Path
from shlex import quote

from hotdraft.doctor.finding import Finding, ok, problem, warning
from hotdraft.pipeline.config.section import ConfigError
from hotdraft.pipeline.config.settings import HotdraftConfig, load_config


def read_settings(path: Path | None) -> tuple[HotdraftConfig | None, list[Finding]]:
    """The configuration at `path`, if it is one, and what is to say of it."""
    if path is None:
        says = "none was named: only the machine is looked at"
        return None, [warning("configuration", says, "`hotdraft doctor --config FILE`, or HOTDRAFT_CONFIG=FILE")]
    try:
        return load_config(path), [ok("configuration", str(path))]
    except ConfigError as error:
        mend = f"correct it; `hotdraft config show --config {quote(str(path))}` says when it is right"
        return None, [problem("configuration", line, mend) for line in str(error).splitlines()]
