"""One distillation job as a function call."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotdraft.pipeline.config.settings import given, load_config
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.training.online.job import run_job


@dataclass(frozen=True)
class Distilled:
    """What a job came to."""

    accepted: bool
    """Whether the adapter was promoted: it passed the gate, and no other is pinned."""
    reason: str
    version: int | None
    """In the registry of the run directory; None if there was nothing fit to publish."""
    adapter: Path | None
    """Its folder, for `LLM.swap`."""
    metrics: dict[str, float]


def distill(
    target: str,
    draft: str,
    buffer: ReplayBuffer | str | Path,
    *,
    run_dir: str | Path,
    dtype: str | None = None,
    device: str | None = None,
    **options: Any,
) -> Distilled:
    """Teach `draft` by QLoRA and forward KL what `target` answered in `buffer`, and judge it against the champion.

    `options` are the keys of the configuration's section `distill`, as in ``max_steps=40``; ``HOTDRAFT_*``
    variables hold for what is not given. Versions, runs and their curves go to the MLflow store in `run_dir`,
    which belongs to this pair alone. Raises `JobError` if there is too little in `buffer`, and
    what else `training.online.job.run_job` raises.

    >>> from hotdraft import LLM, ReplayBuffer, SamplingParams, distill
    >>> buffer = ReplayBuffer("my-traffic")
    >>> with LLM("smollm2", draft="smollm2-draft", k=2) as llm:
    ...     llm.record_to(buffer)
    ...     _ = llm.generate([f"The number after {n} is" for n in range(80)], SamplingParams(temperature=0))
    ...     llm.record_to(None)
    ...     result = distill("smollm2", "smollm2-draft", buffer, run_dir="my-run", max_steps=10)
    ...     if result.accepted:
    ...         swap = llm.swap(result.adapter, version=result.version)
    >>> result.version
    1
    """
    settings = given({"dtype": dtype, "device": device, "distill": options})
    config = load_config(None, {"target": target, "draft": draft, "run_dir": Path(run_dir), **settings})
    registry = AdapterRegistry(config)
    result = run_job(config, buffer=ReplayBuffer.at(buffer), registry=registry)
    adapter = None if result.version is None else registry.download(result.version)
    return Distilled(result.promoted, result.verdict.reason, result.version, adapter, result.metrics)
