"""What the admin routes take and give, beside `AdapterVersion` and `Job`."""

from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Path
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from starlette.convertors import IntegerConvertor

from hotdraft.pipeline.config.serving import KSetting
from hotdraft.pipeline.loop.controls import k_setting
from hotdraft.pipeline.loop.job_record import Job
from hotdraft.pipeline.processes.trainer import TrainerState
from hotdraft.pipeline.store.adapter_version import AdapterVersion
from hotdraft.pipeline.store.pin import MAX_REASON
from hotdraft.serving.http.openai.fields import UnicodeText

Version = Annotated[int, Path(ge=1, le=2**31 - 1, description="adapter version")]
JobId = Annotated[str, Path(description="as `GET /admin/jobs` lists it")]

InForce = int | Literal["auto"]
"""k as it is: what vLLM was started with may be more than can be set here."""


class VersionConvertor(IntegerConvertor):
    """A path's part that may be a version: no word, such as `rollback`, and no number without end."""

    regex = "[0-9]{1,10}"


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("must not have a NUL character in it: not every database can keep one")
    return text


class ChampionChange(Body):
    reason: Annotated[UnicodeText, Field(max_length=MAX_REASON), AfterValidator(_without_nul)] = Field(
        "", description="kept with the version"
    )


class LoopSwitch(Body):
    enabled: bool = Field(description="whether the trainer begins jobs by itself; one that runs is finished")


class KChange(Body):
    k: Annotated[KSetting | None, BeforeValidator(k_setting)] = Field(
        description="drafted tokens a round; null is back to the configuration"
    )


class Status(BaseModel):
    version: str
    """Of the program."""
    model: str
    """Its name for clients."""
    target: str
    draft: str | None
    draft_version: int
    """The adapter version served; 0 is none."""
    k: InForce
    k_override: KSetting | None
    loop_enabled: bool
    trainer: TrainerState
    next_job: str | None
    """What the trainer waits for, or why a job is due; None where there is none."""
    num_running: int
    num_waiting: int
    num_slots: int
    uptime_seconds: float


class Adapters(BaseModel):
    adapters: list[AdapterVersion]
    champion: int
    """0 is none."""
    pinned: bool
    """Whether the champion, or that there is none, was chosen by hand and stays until it is unpinned."""


@dataclass(frozen=True)
class AdapterDetail(AdapterVersion):
    training_metrics: dict[str, float]


class Champion(BaseModel):
    champion: int
    """0 is none."""
    pinned: bool
    """As in `Adapters`."""


class Jobs(BaseModel):
    jobs: list[Job]


@dataclass(frozen=True)
class JobDetail(Job):
    log_tail: str = ""


class Loop(BaseModel):
    enabled: bool
    trainer: TrainerState


class K(BaseModel):
    k: InForce
    """In force. An override to auto waits for a moment without requests, where round costs are not known yet."""
    k_override: KSetting | None
    configured_k: InForce
    max_k: int
    """What it can be set to."""
