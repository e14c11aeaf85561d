"""The plan of a pre-distillation for people: tables for the terminal."""

from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console, Group
from rich.table import Column, Table
from rich.text import Text

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.loading import ModelError, choose_device, choose_dtype, read_cut, resolve
from hotdraft.training.drafts.draft_init import check_draft
from hotdraft.training.drafts.model_size import Widths, meta_model, read_config
from hotdraft.training.planning.machine import Available, this_machine
from hotdraft.training.planning.memory_plan import MemoryPlan, Moment, Run, plan_memory
from hotdraft.training.planning.plan_check import check
from hotdraft.training.planning.plan_time import Speed, hours


def print_plan(
    plan: MemoryPlan, memory_gb: float | None = None, *, speed: Speed | None = None, console: Console | None = None
) -> None:
    """Print `plan`, and raise `PlanError` if it does not fit.

    `memory_gb` is what the device of another machine has; otherwise this machine is asked.
    """
    config = plan.run.config
    if memory_gb is None:
        available = this_machine(choose_device(config.device), config.run_dir)
    else:
        available = Available(int(memory_gb * 1e9), None, "as given")
    console = console or Console()
    console.print(tables(plan, available, speed))
    check(plan, available)


def plan_predistill(
    config: HotdraftConfig, *, prompts: int | None = None, text_tokens: int = 0, elsewhere: bool = False
) -> MemoryPlan:
    """The plan for this machine or, `elsewhere`, for one that has the device that the configuration names.

    Nothing but the models' configurations is read and, unless `elsewhere`, the vocabularies of an existing draft
    and its target. `prompts` is how many there are, the built-in ones by default, beside texts of `text_tokens`.
    Raises `ModelError` for models or devices that are not there, and as `check_draft` and `plan_memory` do.
    """
    device, dtype = _place(config, elsewhere)
    settings = config.predistill
    if settings.draft is not None and elsewhere:
        draft_config = read_config(settings.draft)
    else:
        draft_config = check_draft(config.target, settings)
    freeze_shared = settings.draft is None or read_cut(Path(resolve(settings.draft))) is not None
    target, draft = meta_model(read_config(config.target)), meta_model(draft_config)
    prompts = settings.builtin_prompts if prompts is None else prompts
    return plan_memory(Run(config, target, draft, freeze_shared, device, dtype, prompts, text_tokens))


def tables(plan: MemoryPlan, available: Available, speed: Speed | None) -> Group:
    """What is made, memory by moment, disk, time."""
    memory = _memory(plan, available)
    return Group(Text(_title(plan)), Text(), memory, Text(), _disk(plan, available), Text(_time(plan, speed)))


def _place(config: HotdraftConfig, elsewhere: bool) -> tuple[str, torch.dtype]:
    if not elsewhere or config.device == "auto":
        try:
            device = choose_device(config.device)
        except ModelError as error:
            raise ModelError(f"{error}; with its memory given, a plan can be made for another machine") from error
        return device.type, choose_dtype(config.dtype, device)
    kind = torch.device(config.device).type
    return kind, torch.bfloat16 if config.dtype == "auto" else getattr(torch, config.dtype)


def _title(plan: MemoryPlan) -> str:
    run, parameters = plan.run, plan.run.parameters
    widths = Widths.of(run.draft.config)
    origin = run.settings.draft or f"{widths.layers} layers of {run.config.target}"
    return (
        f"draft: {_millions(parameters.total)} parameters ({origin}, feed-forward {widths.feed_forward}), of which "
        f"{_millions(parameters.trainable)} train (method {run.settings.method})\n"
        f"target: {_millions(run.target.num_parameters())} parameters; {str(run.dtype).removeprefix('torch.')} "
        f"on {run.settings.devices} {run.device}"
    )


def _memory(plan: MemoryPlan, available: Available) -> Table:
    moments = [*plan.recording, *plan.training]
    table = _table(f"Memory of a device in GB, of {available.memory / 1e9:.1f} ({available.name})", moments)
    for part in dict.fromkeys(part for moment in moments for part in moment.parts):
        table.add_row(part, *(_gb(moment.parts.get(part)) for moment in moments))
    table.add_section()
    table.add_row("together", *(_gb(moment.total) for moment in moments), style="bold")
    return table


def _disk(plan: MemoryPlan, available: Available) -> Table:
    free = "" if available.disk is None else f", of {available.disk / 1e9:.1f} free"
    table = _table(f"Disk in GB{free}", [plan.disk])
    for part, number in plan.disk.parts.items():
        table.add_row(part, _gb(number))
    table.add_section()
    table.add_row("together", _gb(plan.disk.total), style="bold")
    return table


def _table(title: str, moments: Sequence[Moment]) -> Table:
    table = Table(Column(no_wrap=True), title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for moment in moments:
        table.add_column(moment.name, justify="right")
    return table


def _time(plan: MemoryPlan, speed: Speed | None) -> str:
    run = plan.run
    tokens = f"{_millions(run.recorded_tokens)} tokens to record at most, {_millions(run.train_tokens)} to train on"
    if speed is None:
        return f"Time: not measured, which takes --plan and the weights; {tokens}"
    needed = hours(plan, speed)
    return (
        f"Time: {needed.total:.1f} h: {needed.answering:.1f} h for the answers at "
        f"{speed.answer_tokens_per_second:,.0f} tokens/s, {needed.training:.1f} h for training at "
        f"{speed.train_tokens_per_second:,.0f} tokens/s; {tokens}"
    )


def _millions(number: int) -> str:
    return f"{number / 1e9:.2f} B" if number >= 1e9 else f"{number / 1e6:.1f} M"


def _gb(number: int | None) -> str:
    return "" if number is None else f"{number / 1e9:.2f}"
