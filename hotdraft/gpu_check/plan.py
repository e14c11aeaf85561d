"""What a check is to do, as its steps are told, and what each of them says."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import torch

DRAFTED = 4
"""Drafted tokens of a round."""
PLAN_FILE = "plan.json"
PAIR_FILE = "models.json"


class CheckError(RuntimeError):
    """Why a step could not be done."""


@dataclass(frozen=True)
class CheckPlan:
    """Written once; every step reads it."""

    work: str
    """Folder of whatever is made on the way."""
    device: str
    random: bool
    """Models are made of nothing, also where real ones are to be had."""
    parameters: int | None
    """That the target is inflated to; None leaves it as it is."""

    @classmethod
    def read(cls, work: Path) -> Self:
        return cls(**json.loads((work / PLAN_FILE).read_text()))

    def write(self) -> None:
        (self.folder / PLAN_FILE).write_text(json.dumps(asdict(self)))

    @property
    def folder(self) -> Path:
        return Path(self.work)

    @property
    def place(self) -> torch.device:
        return torch.device(self.device)

    @property
    def rows(self) -> tuple[int, ...]:
        """Requests at once that speed is measured with."""
        return (1, 8, 32) if self.on_gpu else (1, 8)

    @property
    def on_gpu(self) -> bool:
        return self.place.type != "cpu"


@dataclass(frozen=True)
class Pair:
    """The models of a check, by name or folder."""

    small: str
    """A target that can be computed in float32 anywhere."""
    target: str
    """What speed is measured with: the same, or what was inflated from it."""
    draft: str
    source: str
    """Where they come from, for people."""

    @classmethod
    def read(cls, plan: CheckPlan) -> Self:
        """Raises `CheckError` if the step that makes it failed."""
        path = plan.folder / PAIR_FILE
        if not path.is_file():
            raise CheckError("there are no models: see the step `pair`")
        return cls(**json.loads(path.read_text()))

    def write(self, plan: CheckPlan) -> None:
        (plan.folder / PAIR_FILE).write_text(json.dumps(asdict(self)))


@dataclass
class Found:
    """What a step says."""

    figures: dict[str, Any] = field(default_factory=dict)
    """By name, with the unit in it; ready for JSON."""
    wrong: list[str] = field(default_factory=list)
    """What does not hold that has to."""
