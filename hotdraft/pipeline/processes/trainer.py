"""What a server knows of the trainer, also of one that is a service of its own in the same run directory."""

from pathlib import Path
from typing import Literal, Protocol

from hotdraft.pipeline.system.run_lock import is_held

TrainerState = Literal["running", "waiting", "stopped", "absent"]
"""`waiting` and `stopped` are of one that the server keeps: between two lives, and after the last."""


class Trainer(Protocol):
    @property
    def state(self) -> TrainerState: ...

    @property
    def restarts(self) -> int:
        """By the server."""
        ...


class TrainerElsewhere:
    """None that the server started."""

    restarts = 0

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir

    @property
    def state(self) -> TrainerState:
        return "running" if is_held(self._run_dir, "trainer") else "absent"
