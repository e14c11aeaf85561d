"""Configuration: one pydantic model, read as YAML file < environment < command-line flags.

An environment variable names its key with a double underscore between levels:
``HOTDRAFT_ENGINE__K=4``. Unknown keys are errors.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    YamlConfigSettingsSource,
)

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
KSetting = Annotated[int, Field(ge=0, le=8)] | Literal["auto"]
"""Drafted tokens a round, or what is fastest at the moment."""


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names the file, the key and what is allowed."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def _by_comma(value: Any) -> Any:
    """A list, or a text that has one by comma. An empty text is a mistake, and no way to ask for an empty list."""
    if isinstance(value, str):
        value = [item.strip() for item in value.split(",") if item.strip()] or [""]
    if not isinstance(value, list):
        return value
    items = [item.strip() if isinstance(item, str) else item for item in value]
    if "" in items:
        raise ValueError("holds an empty text; to have none, leave the key out")
    return items


Keys = Annotated[list[SecretStr], BeforeValidator(_by_comma), NoDecode]
Names = Annotated[list[str], BeforeValidator(_by_comma), NoDecode]


class ServerConfig(Section):
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)
    served_model_name: str | None = None
    """Name clients use for the model; the target's name by default."""
    api_keys: Keys = Field(
        [], description="any of which /v1 asks for; by comma in the environment; none: open to everybody"
    )
    api_key_file: Path | None = Field(None, description="file with more keys, one a line")
    admin_keys: Keys = Field(
        [], description="any of which /admin asks for, and which open /v1 too; none: the API keys open both"
    )
    admin_key_file: Path | None = Field(None, description="file with more of them, one a line")
    open_admin: bool = Field(
        False, description="serve /admin without an admin key though other machines can reach this server"
    )
    allowed_hosts: Names = Field(
        [],
        description="names that clients may call this server by, beside localhost, IP addresses, `host` and the "
        "machine's own; `*.example.com` is all below it, `*` every name",
    )
    max_connections: int = Field(
        2000, ge=1, description="open at once; fewer where the process may not open as many files"
    )
    header_seconds: float = Field(10.0, gt=0, description="that a client has to send the headers of a request in")
    body_seconds: float = Field(
        60.0, gt=0, description="that it has for the body, and to go on reading an answer once it stopped"
    )
    max_body_bytes: int = Field(2_000_000, ge=1, description="of a request's body, above which it is refused")
    drain_seconds: float = Field(
        25.0, ge=0, description="that accepted requests have to finish in after SIGTERM, before they are cancelled"
    )
    log_format: Literal["text", "json"] = "text"


class EngineConfig(Section):
    k: KSetting = Field(
        "auto", description="drafted tokens a round; 0 is plain decoding, auto what is fastest at the moment"
    )
    max_k: int = Field(4, ge=1, le=8, description="largest k that auto chooses")
    draft_vocab_size: int | None = Field(
        None, ge=16, description="most frequent tokens that the draft's output head covers; all if unset"
    )
    num_slots: int = Field(8, ge=1, description="requests decoded together")
    max_model_len: int = Field(1024, ge=8, description="prompt and output tokens of one request, at most")
    max_queue: int = Field(1024, ge=1, description="requests that may wait for a slot before 503")
    prefill_chunk: int = Field(256, ge=1, description="prompt tokens processed between two rounds, at most")
    reuse_prefixes: bool = Field(True, description="copy what another request has read of the same beginning")
    threads: int | None = Field(None, ge=1, description="CPU threads of the decoder; torch's default if unset")

    @property
    def largest_k(self) -> int:
        """What k may be set to while serving, at most."""
        return self.max_k if self.k == "auto" else self.k


class RecorderConfig(Section):
    enabled: bool = True
    top_k: int = Field(64, ge=1, description="target log-probs kept per output position")
    queue_size: int = Field(1024, ge=1, description="finished requests waiting to be written; more are dropped")
    shard_requests: int = Field(16, ge=1, description="requests in a shard, at most")
    flush_seconds: float = Field(5.0, gt=0, description="age at which an unfinished shard is written")


class ReplayConfig(Section):
    url: str | None = None
    """Folder or fsspec URL of the replay buffer; ``<run_dir>/replay`` by default."""
    max_bytes: int = Field(2_000_000_000, ge=1, description="oldest shards are deleted above this size")
    max_age_days: Annotated[float, Field(gt=0)] | None = None
    """Shards that are older are deleted as well; None keeps them."""
    reservoir_requests: int = Field(
        64,
        ge=0,
        description="of each domain, that stay when shards are deleted, drawn uniformly from all of them; "
        "fewer where they do not fit into a 32nd of max_bytes",
    )
    held_out_fraction: float = Field(
        0.15, gt=0, lt=1, description="of all prompts, kept for the gate: no answer to them is trained on"
    )


class LoraSection(Section):
    rank: int = Field(32, ge=1)
    alpha: int = Field(64, ge=1)
    target_modules: str | list[str] = "all-linear"


class TriggerConfig(Section):
    min_new_rejected: int = Field(600, ge=1, description="tokens newly missed by the draft that start a job")
    min_new_requests: int = Field(24, ge=1, description="newly recorded requests a job needs at least")
    drift: Annotated[float, Field(gt=0, lt=1)] | None = 0.15
    """Fall of the newest requests' acceptance, under that of those before, that starts a job; None: none does."""
    drift_requests: int = Field(8, ge=4, description="newest requests that show a drift")
    every_seconds: Annotated[float, Field(gt=0)] | None = None
    """Time after which a job is due whatever the draft missed, if there are `min_new_requests`."""
    cooldown_seconds: float = Field(0.0, ge=0, description="time between the end of a job and the next")
    poll_seconds: float = Field(2.0, gt=0)


LossName = Literal["forward_kl", "reverse_kl", "jsd", "total_variation", "negative_log_acceptance", "lk_hybrid"]


class TrainingSection(Section):
    """What every training run is told."""

    loss: LossName = Field("forward_kl", description="what a draft is distilled by, see `training.losses`")
    learning_rate: float = Field(1e-3, gt=0)
    greedy_temperature: float = Field(
        1.0,
        gt=0,
        le=1,
        description="what the target is cooled to where the request was greedy, see `training.position_scores`",
    )
    max_steps: int = Field(120, ge=1)
    max_seconds: Annotated[float, Field(gt=0)] | None = 90.0
    batch_tokens: int = Field(512, ge=16, description="packed tokens of one optimiser step, about")
    checkpoint_steps: int = Field(20, ge=1)
    seed: int = 0


class DistillConfig(TrainingSection):
    quantization: Literal["auto", "none", "nf4"] = Field(
        "auto",
        description="of the frozen base: NF4 (QLoRA) or none; `auto` is NF4 on a GPU from 0.5 B parameters on",
    )
    lora: LoraSection = LoraSection()
    learning_rate: float = Field(2e-3, gt=0)
    greedy_temperature: float = Field(0.5, gt=0, le=1)
    window_requests: int = Field(256, ge=1, description="newest requests a job learns from")
    mix_requests: int = Field(32, ge=1, description="newest requests whose domains are today's traffic")
    older_fraction: float = Field(
        0.3, ge=0, lt=1, description="share of batches from before the window and of other domains than today's"
    )
    older_targets: Literal["champion", "target"] = Field(
        "champion", description="whose distributions these teach, see `training.rehearsal`"
    )
    max_length: int = Field(
        1024, ge=16, description="tokens of a request: what is longer is cut, and left out if its prompt alone is"
    )
    rejected_fraction: float = Field(
        0.0, ge=0, lt=1, description="share of batches drawn from the window by how many tokens the draft missed"
    )
    rejected_weight: float = Field(2.0, ge=1, description="loss weight of positions whose draft was rejected")
    undrafted_weight: float = Field(
        1.0, ge=0, le=1, description="loss weight of positions that no round asked the draft for"
    )
    continue_from_champion: bool = True
    blends: list[Annotated[float, Field(gt=0, le=1)]] = Field(
        [1.0, 0.5], min_length=1, description="shares of the way to a job's last step, all judged by the gate"
    )
    device: str | None = None
    """Where a job trains, `cuda:1` for one; where the server decodes if unset."""
    threads: int | None = Field(None, ge=1, description="CPU threads of the trainer; torch's default if unset")
    nice: int = Field(5, ge=0, le=19, description="how far the trainer yields the CPU to serving")
    trigger: TriggerConfig = TriggerConfig()

    @model_validator(mode="after")
    def _shares(self) -> Self:
        if self.older_fraction + self.rejected_fraction >= 1:
            raise ValueError("older_fraction and rejected_fraction must leave a share for the window itself")
        return self


class PredistillConfig(TrainingSection):
    draft: str | None = None
    """An existing model to go on from, of the target's vocabulary; the draft is cut from the target if unset."""
    layers: list[int] | Annotated[int, Field(ge=1)] = Field(
        4, description="of a cut draft: the target's layers in order, or how many of them"
    )
    layer_choice: Literal["even", "importance"] = Field(
        "even", description="how that many are chosen: evenly spread, or those that change hidden states most"
    )
    feed_forward: int | None = Field(
        None, ge=8, description="of a cut draft: intermediate channels kept in each layer; all if unset"
    )
    sources: list[str] = Field(
        [], description="prompts or text: JSONL files, folders of text, or datasets as `path[:name[:split]]`"
    )
    builtin_prompts: int = Field(3000, ge=0, description="prompts made by the built-in generators")
    max_tokens: int = Field(96, ge=1, description="tokens the target answers a prompt with, at most")
    text_tokens: int = Field(512, ge=8, description="tokens of a piece of text that the target scores as it is")
    temperatures: list[Annotated[float, Field(ge=0, le=2)]] = Field(
        [0.0, 0.7], min_length=1, description="taken in turn, prompt by prompt"
    )
    on_policy_fraction: float = Field(
        0.0, ge=0, le=1, description="share of the prompts that the draft answers and the target scores"
    )
    num_slots: int = Field(32, ge=1, description="prompts answered together")

    method: Literal["full", "lora", "qlora"] = "full"
    lora: LoraSection = LoraSection()
    max_steps: int = Field(2000, ge=1)
    max_seconds: Annotated[float, Field(gt=0)] | None = None
    """Unset, only steps count: a run that was interrupted then ends as it would have without."""
    batch_tokens: int = Field(2048, ge=16, description="packed tokens of one forward pass")
    accumulate: int = Field(1, ge=1, description="forward passes of one optimiser step")
    warmup_steps: int = Field(50, ge=0)
    activation_checkpointing: bool = False
    validation_steps: int = Field(200, ge=1, description="optimiser steps between two looks at held-out prompts")
    validation_requests: int = Field(64, ge=1, description="held-out prompts looked at")
    patience: int | None = Field(None, ge=1, description="looks without a better overlap after which training ends")
    devices: int = Field(1, ge=1, description="processes, one to a GPU")
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    checkpoint_steps: int = Field(100, ge=1)

    @model_validator(mode="after")
    def _on_policy_needs_a_draft(self) -> Self:
        if self.on_policy_fraction and self.draft is None:
            raise ValueError(
                "on_policy_fraction needs predistill.draft: a fresh cut has nothing to say. Make one without "
                "first, then train it further"
            )
        return self


class GateConfig(Section):
    max_requests: int = Field(
        48,
        ge=1,
        description="newest held-out prompts of today's domains, and of those that came during a job, to judge by",
    )
    older_requests: int = Field(
        96, ge=0, description="held-out prompts of other domains, each alike, that guard what the draft knew"
    )
    min_requests: int = Field(8, ge=1, description="held-out prompts without which there is no verdict")
    min_prompts: int = Field(5, ge=1, description="unseen prompts of today's traffic that a gain must rest on")
    wait_seconds: float = Field(
        30.0, ge=0, description="how long a job waits after training for twice `min_prompts`, at most"
    )
    min_gain: float = Field(0.0, description="expected acceptance the candidate must gain over the champion")
    max_domain_loss: float = Field(
        0.05, ge=0, description="expected acceptance any domain may lose against the best it ever had"
    )
    confidence: float = Field(
        0.995, gt=0, lt=1, description="of a job's interval on the gain: of 20 jobs that gain nothing 5 % pass one"
    )


class WatchdogConfig(Section):
    min_requests: int = Field(8, ge=2, description="requests of all servers on a new version before it is judged")
    max_requests: int = Field(60, ge=2, description="requests of all servers after which a new version is trusted")
    max_fall: float = Field(0.03, ge=0, description="fall of the served acceptance rate that is tolerated")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.max_requests < self.min_requests:
            raise ValueError("max_requests must be at least min_requests")
        return self


class ExperimentConfig(Section):
    k: int = Field(3, ge=1, le=8, description="drafted tokens a round, fixed")
    max_tokens: int = Field(64, ge=1, description="tokens the target answers a prompt with, at most")
    temperature: float = Field(0.0, ge=0, le=2)
    seeds: list[int] = Field([0, 1, 2], min_length=1, description="of the order of requests, and of training")
    probes: int = Field(30, ge=1, description="requests of each domain that are never learned from")
    requests_per_step: float = Field(0.5, ge=0, description="requests served while a job takes one step")
    policies: dict[str, dict[str, Any]] = Field(
        {}, description="by name: what to set otherwise than in the rest of the configuration"
    )
    baseline: str | None = Field(None, description="policy that the others' acceptance is divided by")


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
