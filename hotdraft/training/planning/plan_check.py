"""Whether a plan fits a machine, and if not, what to set so that it does."""

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.training.drafts.draft_init import check_draft
from hotdraft.training.drafts.model_size import Widths, meta_model
from hotdraft.training.planning.machine import Available
from hotdraft.training.planning.memory_plan import MemoryPlan, Moment, Run, plan_memory

USABLE = 0.95
"""Share of a device's memory that can be filled: an allocator leaves gaps."""
MIN_BATCH_TOKENS = 512
MIN_LENGTH = 512
MIN_TOP_K = 16
MAX_DEVICES = 8
BATCH = "predistill.batch_tokens"

Settings = dict[str, Any]
"""Values by their name in the configuration, sections before a dot."""


class PlanError(ValueError):
    """A run that does not fit; the message says what is missing and what to set instead."""


@dataclass(frozen=True)
class _Need:
    """One thing that must fit, of any plan."""

    moments: Callable[[MemoryPlan], Sequence[Moment]]
    alternatives: Callable[[Run], Iterable[Settings]]

    def peak(self, plan: MemoryPlan) -> Moment:
        return max(self.moments(plan), key=lambda moment: moment.total)


def check(plan: MemoryPlan, available: Available) -> None:
    """Raise `PlanError` if `plan` takes more than is `available`: how much, and the first alternative that fits."""
    memory = int(available.memory * USABLE)
    place = f"{_gb(memory)} that can be filled of {_gb(available.memory)} ({available.name})"
    problems = [_problem(need, plan, memory, place) for need in (RECORDING, TRAINING)]
    if available.disk is not None:
        problems.append(_problem(DISK, plan, available.disk, f"{_gb(available.disk)} that the disk has free"))
    problems.append(_retention(plan))
    if found := [problem for problem in problems if problem is not None]:
        raise PlanError("; ".join(found))


def _problem(need: _Need, plan: MemoryPlan, room: int, place: str) -> str | None:
    peak = need.peak(plan)
    if peak.total <= room:
        return None
    told = f"{peak.name} takes {_gb(peak.total)}, {_gb(peak.total - room)} more than the {place}: "
    least = plan
    for settings in need.alternatives(plan.run):
        other = plan_memory(changed(plan.run, settings))
        if need.peak(other).total <= room:
            return told + f"{_words(settings)} saves {_gb(peak.total - need.peak(other).total)} and fits"
        least = min(least, other, key=lambda candidate: need.peak(candidate).total)
    return told + f"nothing that can be set makes it fit; the least would take {_gb(need.peak(least).total)}"


def _retention(plan: MemoryPlan) -> str | None:
    recorded, limit = plan.disk.parts["recorded answers"], plan.run.config.replay.max_bytes
    if recorded <= limit:
        return None
    return (
        f"the recorded answers may take {_gb(recorded)}, and the replay buffer deletes the oldest above "
        f"{_gb(limit)}: replay.max_bytes: {math.ceil(recorded / 1e9) * 10**9} keeps them all"
    )


def changed(run: Run, settings: Settings) -> Run:
    """`run` with `settings`; a draft of other layers is cut anew."""
    config = run.config
    for name, value in settings.items():
        section, _, key = name.rpartition(".")
        new = {section: getattr(config, section).model_copy(update={key: value})} if section else {key: value}
        config = config.model_copy(update=new)
    more_prompts = config.predistill.builtin_prompts - run.settings.builtin_prompts
    return replace(
        run,
        config=config,
        draft=_draft(config) if "predistill.layers" in settings else run.draft,
        dtype=getattr(torch, config.dtype) if "dtype" in settings else run.dtype,
        prompts=run.prompts + more_prompts,
    )


def _draft(config: HotdraftConfig) -> Any:
    return meta_model(check_draft(config.target, config.predistill))


def _recording_alternatives(run: Run) -> Iterator[Settings]:
    """From what costs only time to what answers fewer prompts."""
    shortest = MIN_LENGTH + run.settings.max_tokens
    slots = _halved("predistill.num_slots", run.settings.num_slots, 1)
    lengths = _halved("engine.max_model_len", run.config.engine.max_model_len, shortest)
    yield from (*slots, *_wider(run), *lengths, *_both(lengths, slots), *_both(_wider(run), slots))


def _training_alternatives(run: Run) -> Iterator[Settings]:
    """From what costs only time, over what changes the draft, to more devices."""
    settings = run.settings
    checkpointing = [] if settings.activation_checkpointing else [{"predistill.activation_checkpointing": True}]
    batches = [
        batch | {"predistill.accumulate": settings.accumulate * (settings.batch_tokens // batch[BATCH])}
        for batch in _halved(BATCH, settings.batch_tokens, MIN_BATCH_TOKENS)
    ]
    slower = [*checkpointing, *batches, *_both(checkpointing, batches)]
    methods = ("full", "lora", "qlora")
    changes = _wider(run) + [{"predistill.method": name} for name in methods[methods.index(settings.method) + 1 :]]
    if settings.draft is None:
        changes += _halved("predistill.layers", Widths.of(run.draft.config).layers, 1)
    if run.device == "cuda" and settings.method != "qlora":  # FSDP cannot share out NF4 weights
        changes += [
            {"predistill.strategy": "fsdp", "predistill.devices": number}
            for number in range(2, MAX_DEVICES + 1, 2)
            if number > settings.devices
        ]
    yield from slower
    for change in changes:
        yield from (change, *_both([change], slower))


def _disk_alternatives(run: Run) -> Iterator[Settings]:
    kept = _halved("recorder.top_k", run.config.recorder.top_k, MIN_TOP_K)
    prompts = _halved("predistill.builtin_prompts", run.settings.builtin_prompts, 1)
    adapters: list[Settings] = [{"predistill.method": "lora"}] if run.settings.method == "full" else []
    yield from (*kept, *prompts, *adapters, *_both(adapters, prompts))


RECORDING = _Need(lambda plan: plan.recording, _recording_alternatives)
TRAINING = _Need(lambda plan: plan.training, _training_alternatives)
DISK = _Need(lambda plan: [plan.disk], _disk_alternatives)


def _wider(run: Run) -> list[Settings]:
    return [{"dtype": "bfloat16"}] if run.dtype == torch.float32 else []


def _halved(name: str, number: int, least: int) -> list[Settings]:
    """The setting `name` at number/2, number/4, … down to `least`."""
    halves = itertools.takewhile(lambda half: half >= least, (number >> times for times in itertools.count(1)))
    return [{name: half} for half in halves]


def _both(first: Iterable[Settings], second: Collection[Settings]) -> list[Settings]:
    return [one | other for one in first for other in second]


def _words(settings: Settings) -> str:
    return ", ".join(f"{name}: {str(value).lower()}" for name, value in settings.items())


def _gb(number: int) -> str:
    return f"{number / 1e9:.1f} GB"
