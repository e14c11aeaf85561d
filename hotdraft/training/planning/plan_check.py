"""Whether a plan fits a machine, and if not, what to set so that it does."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import torch

from hotdraft.training.planning.machine import Available
from hotdraft.training.planning.memory_plan import MemoryPlan, Run, plan_memory

USABLE = 0.95
"""Share of a device's memory that can be filled: an allocator leaves gaps."""
LEAST = {"predistill.batch_tokens": 512, "recorder.top_k": 16}
"""Below which nothing is advised; other numbers go down to 1."""

Need = Literal["recording", "training", "disk"]
Settings = dict[str, Any]
"""Values by their name in the configuration, sections before a dot."""


class PlanError(ValueError):
    """A run that does not fit; the message says what is missing and what to set instead."""


def check(plan: MemoryPlan, available: Available, *, training: bool = True) -> None:
    """Raise `PlanError` if `plan` takes more than is `available`; `training` is left out where it is measured."""
    memory = int(USABLE * available.memory)
    needs: list[tuple[Need, int | None, str]] = [("recording", memory, available.name)]
    if training:
        needs.append(("training", memory, available.name))
    needs.append(("disk", available.disk, "the disk"))
    problems = [
        f"{need} takes {_gb(taken)} of {_gb(room)} that can be filled ({name}): {_advice(plan, need, taken - room)}"
        for need, room, name in needs
        if room is not None and (taken := sum(getattr(plan, need).values())) > room
    ]
    recorded, limit = plan.disk["recorded answers"], plan.run.config.replay.max_bytes
    if recorded > limit:
        problems.append(
            f"the recorded answers may take {_gb(recorded)}, and the replay buffer deletes the oldest above "
            f"{_gb(limit)}: replay.max_bytes: {math.ceil(recorded / 1e9) * 10**9} keeps them all"
        )
    if problems:
        raise PlanError("; ".join(problems))


def check_step(plan: MemoryPlan, available: Available, peak: int | None) -> None:
    """Raise `PlanError` if a step of training was too large.

    `peak` are the bytes that a process was measured to hold; None if memory ran out. What to set is predicted.
    """
    room = int(USABLE * available.memory)
    taken, told = max(sum(plan.training.values()), available.memory), "more than there is"
    if peak is not None:
        taken = peak
        if plan.run.device == "cpu":  # whose memory all processes share, and the answers to come
            taken = peak * plan.run.settings.devices + plan.training["recorded answers"]
        told = _gb(taken)
    if taken > room:
        place = f"{_gb(room)} that can be filled ({available.name})"
        advice = _advice(plan, "training", taken - room)
        raise PlanError(f"a step of training was tried and took {told}, of {place}: {advice}")


def _advice(plan: MemoryPlan, need: Need, missing: int) -> str:
    """The first change that saves `missing` bytes."""
    most = 0
    for settings in _ordered(*_changes(plan.run, need)):
        other = plan_memory(changed(plan.run, settings))
        saved = sum(getattr(plan, need).values()) - sum(getattr(other, need).values())
        if saved >= missing:
            words = ", ".join(f"{name}: {str(value).lower()}" for name, value in settings.items())
            return f"{words} saves {_gb(saved)}"
        most = max(most, saved)
    return f"nothing that can be set makes it fit; at most {_gb(most)} can be saved"


def changed(run: Run, settings: Settings) -> Run:
    """`run` with `settings`."""
    config = run.config
    for name, value in settings.items():
        section, _, key = name.rpartition(".")
        new = {section: getattr(config, section).model_copy(update={key: value})} if section else {key: value}
        config = config.model_copy(update=new)
    dtype = getattr(torch, config.dtype) if "dtype" in settings else run.dtype
    fewer = run.settings.builtin_prompts - config.predistill.builtin_prompts
    return replace(run, config=config, dtype=dtype, prompts=run.prompts - fewer)


def _changes(run: Run, need: Need) -> tuple[list[Settings], list[Settings]]:
    """Those that cost only time or data; those that change the draft or ask for more devices."""
    settings = run.settings
    narrower: list[Settings] = [{"dtype": "bfloat16"}] if run.dtype == torch.float32 else []
    adapter: list[Settings] = [{"predistill.method": "lora"}] if settings.method == "full" else []
    if need == "recording":
        return [*_halved("predistill.num_slots", settings.num_slots)], narrower
    if need == "disk":
        top_k = _halved("recorder.top_k", run.config.recorder.top_k)
        return [*top_k, *_halved("predistill.builtin_prompts", settings.builtin_prompts)], adapter
    is_open = not settings.activation_checkpointing and settings.hidden_states is None
    slower: list[Settings] = [{"predistill.activation_checkpointing": True}] if is_open else []
    for halved in _halved("predistill.batch_tokens", settings.batch_tokens):
        times = settings.batch_tokens // halved["predistill.batch_tokens"]
        slower.append(halved | {"predistill.accumulate": settings.accumulate * times})
    others = narrower + adapter  # NF4 weights are held beside those that they are made of, and save nothing here
    if settings.method != "qlora" and run.device == "cuda":  # FSDP cannot share out NF4 weights
        numbers = [number for number in (2, 4, 8) if number >= settings.devices]
        others += [{"predistill.strategy": "fsdp", "predistill.devices": number} for number in numbers]
    return slower, others


def _ordered(first: list[Settings], others: list[Settings]) -> Iterator[Settings]:
    """Each of `first`, more and more of them together, then each of `others`, alone and with all of `first`."""
    yield from first
    together: Settings = {}
    for settings in first:
        together = together | settings
        yield together
    for settings in others:
        yield from (settings, together | settings)


def _halved(name: str, number: int) -> Iterator[Settings]:
    """The setting `name` at number/2, number/4, … down to the least."""
    while (number := number // 2) >= LEAST.get(name, 1):
        yield {name: number}


def _gb(number: int) -> str:
    return f"{number / 1e9:.1f} GB"
