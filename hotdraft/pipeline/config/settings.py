"""Configuration: one pydantic model, read as YAML file < environment < command-line flags.

An environment variable names its key with a double underscore between levels:
``HOTDRAFT_ENGINE__K=4``. Unknown keys are errors.
"""

import re
from collections.abc import Mapping
from os.path import abspath  # `..` has a name too, and a link keeps its own
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, StringConstraints, ValidationError
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from hotdraft.pipeline.config.errors import check_variables, problems
from hotdraft.pipeline.config.learning import (
    DistillConfig,
    ExperimentConfig,
    GateConfig,
    PredistillConfig,
    ReplayConfig,
    WatchdogConfig,
)
from hotdraft.pipeline.config.run_folder import RunFolder
from hotdraft.pipeline.config.section import ConfigError, Dtype, Section
from hotdraft.pipeline.config.serving import EngineConfig, RecorderConfig, ServerConfig, VllmConfig
from hotdraft.pipeline.config.sources import Sources

ARTIFACTS = "mlartifacts"
"""Folder of a run in which MLflow keeps the files of runs and versions, beside its store."""
Name = Annotated[str, StringConstraints(min_length=1)]


def _has_a_registry(uri: str) -> str:
    if not re.match(r"(https?|sqlite|(postgresql|mysql|mssql)(\+\w+)?|databricks|uc)\b", uri):
        raise ValueError("must be of a database (sqlite:///…, postgresql://…) or of an MLflow server (http://…)")
    return uri


def _fits_a_filter(name: str) -> str:
    if found := re.search("['/:]", name):
        raise ValueError(f"must not have {found[0]!r} in it: MLflow could not make it, or find it again")
    return name


class TrackingConfig(Section):
    uri: Annotated[str, AfterValidator(_has_a_registry)] | None = None
    """MLflow store; ``sqlite:///<run_dir>/mlflow.db`` by default."""
    interval_seconds: float = Field(5.0, gt=0, le=3600, description="time between two points of the served curves")
    served_seconds: float = Field(
        30.0, gt=0, le=3600, description="time between two updates of what an adapter version did in service"
    )
    registered_model: Annotated[Name, AfterValidator(_fits_a_filter)] = "hotdraft-draft"
    """Name of the adapter versions in MLflow's registry; servers that share it share a champion."""
    keep_refused: int | None = Field(
        50,
        ge=0,
        description="adapters of refused versions that stay in the store, the newest; null keeps all. A refused "
        "version is listed for ever, and cannot be promoted once its adapter is deleted",
    )
    serving_experiment: Name = "hotdraft-serving"
    """MLflow experiment of the serving runs."""
    training_experiment: Name = "hotdraft-distillation"
    """MLflow experiment of the distillation jobs."""


class HotdraftConfig(BaseSettings):
    """Everything that `hotdraft` can be told, with defaults that hold for a small pair on a CPU."""

    model_config = SettingsConfigDict(
        env_prefix="HOTDRAFT_",
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )

    target: Name
    """Hub id, local folder, or the name of a model that `hotdraft models fetch` obtained."""
    draft: Name | None = None
    """Likewise, or the name of a draft that ships with hotdraft; without one tokens are guessed from text alone."""
    dtype: Dtype = "auto"
    """Of the weights; auto is bfloat16 where the hardware computes with it, else float32, on a GPU float16."""
    device: str = "auto"
    """Where the server decodes: cpu, cuda or cuda:N; auto is a GPU if there is one."""
    run_dir: RunFolder = Field(
        default_factory=lambda told: Path("runs") / Path(abspath(told.get("target", "default"))).name,
        validate_default=True,
        description="folder of what is recorded and learned; runs/TARGET by default",
    )

    server: ServerConfig = ServerConfig()
    engine: EngineConfig = EngineConfig()
    vllm: VllmConfig = VllmConfig()
    recorder: RecorderConfig = RecorderConfig()
    replay: ReplayConfig = ReplayConfig()
    distill: DistillConfig = DistillConfig()
    predistill: PredistillConfig = PredistillConfig()
    gate: GateConfig = GateConfig()
    watchdog: WatchdogConfig = WatchdogConfig()
    tracking: TrackingConfig = TrackingConfig()
    experiment: ExperimentConfig = ExperimentConfig()

    @property
    def replay_url(self) -> str:
        return self.replay.url or str(self.run_dir / "replay")

    @property
    def tracking_uri(self) -> str:
        return self.tracking.uri or f"sqlite:///{(self.run_dir / 'mlflow.db').absolute()}"

    @property
    def has_remote_store(self) -> bool:
        """Whether an MLflow server keeps runs, versions and their files."""
        return self.tracking_uri.startswith(("http://", "https://"))

    @property
    def artifact_root(self) -> str:
        return str((self.run_dir / ARTIFACTS).absolute())

    @property
    def served_model_name(self) -> str:
        return self.server.served_model_name or Path(self.target).name

    def recording_apart(self) -> Self:
        """The same with the replay buffer in `run_dir`: what is recorded there is no server's traffic."""
        return self.model_copy(update={"replay": self.replay.model_copy(update={"url": None})})

    def apart(self, run_dir: Path) -> Self:
        """The same with all stores in `run_dir`: what is done there is no server's traffic, nor its version."""
        tracking = self.tracking.model_copy(update={"uri": None})
        return self.recording_apart().model_copy(update={"run_dir": run_dir, "tracking": tracking})


def load_config(path: str | Path | None, overrides: Mapping[str, Any] | None = None) -> HotdraftConfig:
    """Read `path`, if there is a file, and lay environment and `overrides` (nested, as in the file) over it.

    Raises `ConfigError` for a missing or broken file, an unknown key or `HOTDRAFT_` variable, or a value out of
    range, a line a problem, each with its origin.
    """
    return read(path, overrides)[0]


def read(path: str | Path | None, overrides: Mapping[str, Any] | None = None) -> tuple[HotdraftConfig, Sources]:
    """`load_config`, and the places that the values came from."""
    check_variables(HotdraftConfig)
    flags = dict(overrides or {})
    sources = Sources(HotdraftConfig, None if path is None else Path(path), flags)

    class FileConfig(HotdraftConfig):
        """pydantic-settings takes what a file says by its class alone."""

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            file = InitSettingsSource(settings_cls, init_kwargs={})
            file.init_kwargs = sources.file  # as written: given above, `Engine` would be taken for `engine`
            return (init_settings, env_settings, file)

    try:
        return FileConfig(**flags), sources
    except ValidationError as error:
        raise ConfigError(problems(error, HotdraftConfig, sources)) from error
    except (SettingsError, RecursionError) as error:
        says = "holds no JSON, as a section or list has to"
        raise ConfigError("\n".join(f"{name}: {says}: {why}" for name, why in sources.without_json())) from error


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `values` that are neither None nor an empty section: what was said, to lay over what others say."""
    return {key: value for key, value in values.items() if value is not None and value != {}}


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings with those of `over` laid over them."""
    both = {**under, **over}
    for key in under.keys() & over.keys():
        if isinstance(under[key], Mapping) and isinstance(over[key], Mapping):
            both[key] = merged(under[key], over[key])
    return both
