"""Configuration: one pydantic model, read as YAML file < environment < command-line flags.

An environment variable names its key with a double underscore between levels:
``HOTDRAFT_ENGINE__K=4``. Unknown keys are errors.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, YamlConfigSettingsSource

from hotdraft.pipeline.config.learning import (
    DistillConfig,
    ExperimentConfig,
    GateConfig,
    PredistillConfig,
    ReplayConfig,
    WatchdogConfig,
)
from hotdraft.pipeline.config.section import ConfigError, Dtype, Section
from hotdraft.pipeline.config.serving import EngineConfig, RecorderConfig, ServerConfig


class TrackingConfig(Section):
    uri: str | None = None
    """MLflow store; ``sqlite:///<run_dir>/mlflow.db`` by default."""
    interval_seconds: float = Field(5.0, gt=0, description="time between two points of the served curves")
    served_seconds: float = Field(
        30.0, gt=0, description="time between two updates of what an adapter version did in service"
    )
    registered_model: str = "hotdraft-draft"
    serving_experiment: str = "hotdraft-serving"
    training_experiment: str = "hotdraft-distillation"


class HotdraftConfig(BaseSettings):
    """Everything that `hotdraft` can be told, with defaults that hold for a small pair on a CPU."""

    model_config = SettingsConfigDict(
        env_prefix="HOTDRAFT_",
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )

    target: str
    """Hub id, local folder, or the name of a model that `hotdraft models fetch` obtained."""
    draft: str | None = None
    """Likewise, or the name of a draft that ships with hotdraft; none serves the target alone."""
    dtype: Dtype = "auto"
    device: str = "auto"
    run_dir: Path = Path("runs/default")

    server: ServerConfig = ServerConfig()
    engine: EngineConfig = EngineConfig()
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
        return str((self.run_dir / "mlartifacts").absolute())

    @property
    def served_model_name(self) -> str:
        return self.server.served_model_name or Path(self.target).name

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings, env_settings, YamlConfigSettingsSource(settings_cls))


def load_config(path: str | Path, overrides: dict[str, Any] | None = None) -> HotdraftConfig:
    """Read `path` and lay environment and `overrides` (nested, as in the file) over it.

    Raises `ConfigError` for a missing or broken file, an unknown key, or a value out of range.
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"no configuration file at {path}")

    class FileConfig(HotdraftConfig):
        model_config = SettingsConfigDict(yaml_file=path)

    try:
        return FileConfig(**(overrides or {}))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    except ValidationError as error:
        problems = "; ".join(f"{_key(item['loc'])}: {item['msg']}" for item in error.errors())
        raise ConfigError(f"{path}: {problems}") from error
    except (TypeError, ValueError) as error:  # a file that holds no mapping
        raise ConfigError(f"{path}: {error}") from error


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `values` that are not None: what somebody said, to lay over what others did."""
    return {key: value for key, value in values.items() if value is not None}


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings with those of `over` laid over them."""
    both = {**under, **over}
    for key in under.keys() & over.keys():
        if isinstance(under[key], Mapping) and isinstance(over[key], Mapping):
            both[key] = merged(under[key], over[key])
    return both


def _key(location: tuple[int | str, ...]) -> str:
    """The key as the file has it: pydantic adds which member of a union it tried."""
    return ".".join(str(part) for part in location if isinstance(part, int) or part.isidentifier())
