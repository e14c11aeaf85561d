"""The sections of what learns: replay buffer, distillation, gate, watchdog, experiments."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from hotdraft.pipeline.config.section import Section, Threads


def _can_be_written(url: str) -> str:
    if url.startswith(("http://", "https://")):
        raise ValueError("must be of a folder or a bucket, as s3://…: nothing can be written to a web address")
    return url


class ReplayConfig(Section):
    url: Annotated[str, AfterValidator(_can_be_written)] | None = None
    """Folder or fsspec URL of the replay buffer; ``<run_dir>/replay`` by default. `hotdraft predistill`,
    `experiment` and `bench` record elsewhere: what they ask is no traffic."""
    max_bytes: int = Field(2_000_000_000, ge=1, description="oldest shards are deleted above this size")
    max_age_days: Annotated[float, Field(gt=0)] | None = None
    """Shards that are older are deleted as well, whenever one is added; what the reservoir keeps stays. None: no
    limit."""
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
    rank: int = Field(32, ge=1, description="of the adapter's two factors")
    alpha: int = Field(64, ge=1, description="their product is scaled by alpha / rank")
    target_modules: str | list[str] = Field("all-linear", description="layers that are adapted, as peft names them")


class TriggerConfig(Section):
    min_new_rejected: int = Field(600, ge=1, description="tokens newly missed by the draft that start a job")
    min_new_requests: int = Field(24, ge=1, description="newly recorded requests a job needs at least")
    drift: Annotated[float, Field(gt=0, lt=1)] | None = 0.15
    """Fall of the newest requests' acceptance, under that of those before, that starts a job; None: none does."""
    drift_requests: int = Field(8, ge=4, le=1000, description="newest requests that show a drift")
    every_seconds: Annotated[float, Field(gt=0)] | None = None
    """Time after which a job is due whatever the draft missed, if there are `min_new_requests`."""
    drift_steps: Annotated[int, Field(ge=1)] | None = 24
    """Of the first burst that a drift calls for, on what is new; each next takes twice as many. None: no bursts."""
    cooldown_seconds: float = Field(0.0, ge=0, description="time between the end of a job and the next")
    poll_seconds: float = Field(1.0, ge=0.01, le=3600, description="time between two looks at the replay buffer")


LossName = Literal["forward_kl", "reverse_kl", "jsd", "total_variation", "negative_log_acceptance", "lk_hybrid"]


class TrainingSection(Section):
    """What every training run is told."""

    loss: LossName = Field("forward_kl", description="what a draft is distilled by, see `training.scoring.losses`")
    learning_rate: float = Field(1e-3, gt=0, description="of AdamW, at its highest")
    greedy_temperature: float = Field(
        1.0,
        gt=0,
        le=1,
        description="what the target is cooled to where the request was greedy, "
        "see training/scoring/position_scores.py",
    )
    max_steps: int = Field(480, ge=1, description="optimiser steps, at most")
    max_seconds: Annotated[float, Field(gt=0)] | None = Field(90.0, description="time for them; None: no limit")
    batch_tokens: int = Field(128, ge=16, description="packed tokens of one optimiser step, about")
    checkpoint_steps: int = Field(80, ge=1, description="optimiser steps between two checkpoints")
    seed: int = Field(0, description="of the order of samples, and of new weights")


class DistillConfig(TrainingSection):
    quantization: Literal["auto", "none", "nf4"] = Field(
        "auto",
        description="of the frozen base: NF4 (QLoRA) or none; `auto` is NF4 on a GPU from 0.5 B parameters on",
    )
    lora: LoraSection = LoraSection()
    learning_rate: float = Field(
        1e-3,
        gt=0,
        description="of AdamW, at its highest, in a job of `max_steps`; higher in a burst, by the root of how much "
        "shorter that is, fourfold at most",
    )
    greedy_temperature: float = Field(
        0.5, gt=0, le=1, description="what the target is cooled to where the request was greedy"
    )
    window_requests: int = Field(256, ge=1, description="newest requests a job learns from")
    mix_requests: int = Field(32, ge=1, description="newest requests whose domains are today's traffic")
    older_fraction: float = Field(
        0.2, ge=0, lt=1, description="share of batches from before the window and of other domains than today's"
    )
    older_directions: int = Field(
        128,
        ge=0,
        description="of the inputs of each adapted layer, those most used by older requests, that an adapter may "
        "not touch; a layer narrower than twice that has none, and half of the batches are older at least. None "
        "where `older_fraction` is 0",
    )
    older_targets: Literal["best", "target"] = Field(
        "best", description="whose distributions these teach, see `training.scoring.rehearsal`"
    )
    max_length: int = Field(
        1024, ge=16, description="tokens of a request: what is longer is cut, and left out if its prompt alone is"
    )
    prompt_steps: int = Field(
        60,
        ge=0,
        description="optimiser steps that what the draft makes of a prompt is kept for, without gradient; 0: each "
        "step reads its prompts, with gradient, and takes twice as long",
    )
    rejected_fraction: float = Field(
        0.0, ge=0, lt=1, description="share of batches drawn from the window by how many tokens the draft missed"
    )
    rejected_weight: float = Field(2.0, ge=1, description="loss weight of positions whose draft was rejected")
    undrafted_weight: float = Field(
        1.0, ge=0, le=1, description="loss weight of positions that no round asked the draft for"
    )
    continue_from_champion: bool = Field(True, description="a job goes on from the champion's adapter")
    blends: list[Annotated[float, Field(gt=0, le=1)]] = Field(
        [0.85, 0.5],
        min_length=1,
        description="shares of the way to a job's last step: the gate judges the largest, and the next where that "
        "does not pass",
    )
    device: str | None = None
    """Where a job trains, `cuda:1` for one; where the server decodes if unset."""
    memory_fraction: float | None = Field(
        None, gt=0, le=1, description="of a GPU's memory: what a process that trains may take, else the job fails"
    )
    threads: Threads = Field(
        None, description="CPU threads of the trainer; torch's default if unset, within what a container may use"
    )
    nice: int = Field(5, ge=0, le=19, description="how far the trainer yields the CPU to serving")
    share: float = Field(1.0, gt=0, le=1, description="of the time that a job's steps take; it sleeps for the rest")
    trigger: TriggerConfig = TriggerConfig()

    @model_validator(mode="after")
    def _shares(self) -> Self:
        if self.older_fraction + self.rejected_fraction >= 1:
            raise ValueError("older_fraction and rejected_fraction must leave a share for the window itself")
        return self

    def recipe(self) -> dict[str, Any]:
        """What decides what a job learns, as JSON: without what may change while one is unfinished."""
        return self.model_dump(mode="json", exclude={"trigger", "threads", "nice", "share"})


class PredistillConfig(TrainingSection):
    draft: str | None = None
    """An existing model to go on from, of the target's vocabulary; the draft is cut from the target if unset."""
    layers: list[int] | Annotated[int, Field(ge=1)] = Field(
        4, description="of a cut draft: the target's layers in order, or how many of them"
    )
    layer_choice: Literal["even", "importance"] = Field(
        "even", description="how that many are chosen: evenly spread, or those that change hidden states most"
    )
    hidden_states: list[int] | None = Field(
        None,
        description="after which of the target's layers the draft, one new layer then, reads its states: "
        "`[8, 20, 30]` of 30 for example; it is cut from none",
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

    method: Literal["full", "lora", "qlora"] = Field("full", description="which weights are trained")
    lora: LoraSection = LoraSection()
    max_steps: int = Field(2000, ge=1, description="optimiser steps, at most")
    max_seconds: Annotated[float, Field(gt=0)] | None = None
    """Unset, only steps count: a run that was interrupted then ends as it would have without."""
    batch_tokens: int = Field(2048, ge=16, description="packed tokens of one forward pass")
    accumulate: int = Field(1, ge=1, description="forward passes of one optimiser step")
    warmup_steps: int = Field(50, ge=0, description="optimiser steps in which the learning rate rises")
    activation_checkpointing: bool = Field(False, description="compute activations twice, to hold fewer of them")
    validation_steps: int = Field(200, ge=1, description="optimiser steps between two looks at held-out prompts")
    validation_requests: int = Field(64, ge=1, description="held-out prompts looked at")
    mixture_requests: int = Field(
        128,
        ge=0,
        description="prompts with their answers that go with the draft, to be rehearsed; 0 keeps them private",
    )
    patience: int | None = Field(None, ge=1, description="looks without a better overlap after which training ends")
    devices: int = Field(1, ge=1, description="processes, one to a GPU")
    strategy: Literal["auto", "ddp", "fsdp"] = Field("auto", description="of Lightning, with several devices")
    checkpoint_steps: int = Field(100, ge=1, description="optimiser steps between two checkpoints")

    @model_validator(mode="after")
    def _on_policy_needs_a_draft(self) -> Self:
        if self.on_policy_fraction and self.draft is None:
            raise ValueError(
                "on_policy_fraction needs predistill.draft: a fresh cut has nothing to say. Make one without "
                "first, then train it further"
            )
        return self

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if self.draft is not None and self.hidden_states is not None:
            raise ValueError("hidden_states is of a new draft, and predistill.draft names an existing one")
        if self.hidden_states is not None and "layers" in self.model_fields_set:
            raise ValueError("layers are of a draft cut from the target, and hidden_states makes another")
        if self.hidden_states is not None and self.activation_checkpointing:
            raise ValueError("activation_checkpointing is between layers, and hidden_states makes a draft of one")
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


class PhaseConfig(Section):
    requests: int = Field(ge=1, description="how many, from the first on")
    of: dict[str, Annotated[float, Field(gt=0)]] = Field(
        min_length=1, description="how often each source is asked: built-in generators, or JSONL files of prompts"
    )


SHIFT = [PhaseConfig(requests=60, of={"arithmetic": 1}), PhaseConfig(requests=300, of={"text_to_sql": 1})]


class ExperimentConfig(Section):
    k: int = Field(3, ge=1, le=8, description="drafted tokens a round, fixed")
    max_tokens: int = Field(64, ge=1, description="tokens the target answers a prompt with, at most")
    temperature: float = Field(0.0, ge=0, le=2, description="that prompts are answered at; 0 is greedy")
    seeds: list[int] = Field([0, 1, 2], min_length=1, description="of the order of requests, and of training")
    probes: int = Field(30, ge=1, description="requests of each domain that are never learned from")
    streams: dict[str, list[PhaseConfig]] = Field(
        {"shift": SHIFT}, min_length=1, description="by name: what is asked, phase by phase"
    )
    requests_per_step: float = Field(0.25, ge=0, description="requests served while a job takes one step")
    policies: dict[str, dict[str, Any]] = Field(
        {}, description="by name: what to set otherwise than in the rest of the configuration"
    )
    ceilings: dict[str, dict[str, Any]] = Field(
        {},
        description="by name, of long jobs on the whole stream: what to set otherwise than in the rest; gains are "
        "told as shares of the best",
    )
    ceiling_requests: int = Field(
        0,
        ge=0,
        description="of each source, that ceilings learn from beside the stream; of a file what is left of it",
    )
    baseline: str | None = Field(None, description="policy that the others' acceptance is divided by")
