"""What an operator may change while server and trainer run: whether the loop is on, and k.

It stands in `<run_dir>/control.json`, which the command line and the server's API write and both
processes follow, so it outlives them.
"""

import logging
from pathlib import Path
from typing import Any

from filelock import FileLock
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hotdraft.pipeline.config.serving import MOST_DRAFTED, KSetting
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.system.json_file import BrokenFileError, read_json, write_json

logger = logging.getLogger(__name__)


class ControlError(ValueError):
    """A setting that this configuration does not allow."""


class Controls(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    loop_enabled: bool = Field(True, description="whether the trainer starts jobs by itself")
    k: KSetting | None = Field(None, description="drafted tokens a round; as configured if null")


def k_setting(value: object) -> KSetting | None:
    """`value` as k may be set. Raises `ControlError`."""
    if isinstance(value, float) and value.is_integer():  # the same to JSON, and to its schemas
        value = int(value)
    try:
        return Controls.model_validate({"k": value}).k
    except ValidationError:
        raise ControlError(f"k must be a whole number from 0 to {MOST_DRAFTED}, or auto, not {value!r}") from None


class ControlFile:
    """Any number of processes may read and write it at once. A missing file says the defaults.

    While it is broken what was read last holds; where nothing was, the loop rests, as it may have been told to.
    What is set next mends it.
    """

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / "control.json"
        self._last = Controls(loop_enabled=False)
        self._broken = ""
        """What was last complained of."""

    def read(self) -> Controls:
        try:
            self._last = read_json(self._path, Controls)
        except FileNotFoundError:
            self._last = Controls()
        except BrokenFileError as error:
            if str(error) != self._broken:
                logger.warning("%s; the settings stay: %s", error, self._last)
                self._broken = str(error)
            return self._last
        self._broken = ""
        return self._last

    def broken(self) -> str | None:
        """What is wrong with the file, if anything is."""
        try:
            read_json(self._path, Controls)
        except FileNotFoundError:
            pass
        except BrokenFileError as error:
            return str(error)
        return None

    def switch_loop(self, on: bool) -> Controls:
        """Let the trainer start jobs by itself, or not; one that runs is finished either way."""
        return self._update(loop_enabled=on)

    def override_k(self, k: KSetting | None, largest: int, configured: KSetting) -> Controls:
        """Have the server draft k tokens a round; None is back to its configuration.

        Raises `ControlError` for a k above `largest`, what the server allows beside what is `configured`.
        """
        if not largest and k and k != configured:
            raise ControlError(f"k cannot be {k}: there is no draft")
        if isinstance(k, int) and k > largest:
            raise ControlError(f"k cannot be {k}: the server's configuration allows {largest} at most")
        return self._update(k=k)

    def _update(self, **changes: Any) -> Controls:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self._path.with_name(".control.lock")):
            controls = Controls.model_validate({**self.read().model_dump(), **changes})
            write_json(self._path, controls.model_dump())
        return controls


def largest_k(config: HotdraftConfig) -> int:
    """What a server of `config` can be told to draft a round."""
    return 0 if config.draft is None else config.engine.largest_k
