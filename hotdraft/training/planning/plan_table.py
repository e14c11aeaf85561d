"""The plan of a pre-distillation for people: tables for the terminal."""

import itertools
from collections.abc import Mapping
from pathlib import Path

import torch
from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.loading import choose_device, choose_dtype, load_config_of
from hotdraft.pipeline.models.names import ModelError, read_cut, resolve
from hotdraft.training.drafts.draft_init import check_draft, freeze_shared
from hotdraft.training.drafts.model_size import Widths, meta_model
from hotdraft.training.planning.machine import Available
from hotdraft.training.planning.memory_plan import MemoryPlan, Run, plan_memory
from hotdraft.training.planning.plan_time import millions


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
        draft = meta_model(load_config_of(settings.draft))
    else:
        draft = meta_model(check_draft(config.target, settings))
    if settings.draft is None or read_cut(Path(resolve(settings.draft))) is not None:
        freeze_shared(draft)
    prompts = settings.builtin_prompts if prompts is None else prompts
    target = meta_model(load_config_of(config.target))
    return plan_memory(Run(config, target, draft, device, dtype, prompts, text_tokens))


def _place(config: HotdraftConfig, elsewhere: bool) -> tuple[str, torch.dtype]:
    if not elsewhere or config.device == "auto":
        try:
            device = choose_device(config.device)
        except ModelError as error:
            raise ModelError(f"{error}; with its memory given, a plan can be made for another machine") from error
        return device.type, choose_dtype(config.dtype, device)
    kind = torch.device(config.device).type
    return kind, torch.bfloat16 if config.dtype == "auto" else getattr(torch, config.dtype)


def tables(plan: MemoryPlan, available: Available) -> Group:
    """What is made; memory by moment and disk, as predicted."""
    memory = f"Predicted memory of a device in GB, of {_gb(available.memory)} ({available.name})"
    disk = "Disk in GB" if available.disk is None else f"Disk in GB, of {_gb(available.disk)} free or its own"
    device = _table(memory, {"recording": plan.recording, "training": plan.training})
    return Group(Text(_title(plan)), Text(), device, Text(), _table(disk, {"disk": plan.disk}))


def _title(plan: MemoryPlan) -> str:
    run, widths = plan.run, Widths.of(plan.run.draft.config)
    origin = run.settings.draft or f"{widths.layers} layers of {run.config.target}"
    if run.settings.hidden_states is not None:
        origin = f"one layer on states of {run.config.target}"
    return (
        f"draft: {millions(run.draft.num_parameters())} parameters ({origin}, feed-forward {widths.feed_forward}), "
        f"of which {millions(run.trainable)} train (method {run.settings.method})\n"
        f"target: {millions(run.target.num_parameters())} parameters; {str(run.dtype).removeprefix('torch.')} "
        f"on {run.settings.devices} {run.device}"
    )


def _table(title: str, needs: Mapping[str, dict[str, int]]) -> Table:
    table = Table(Column(no_wrap=True), title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name in needs:
        table.add_column(name, justify="right")
    for part in dict.fromkeys(itertools.chain(*needs.values())):
        table.add_row(part, *(_gb(parts[part]) if part in parts else "" for parts in needs.values()))
    table.add_section()
    table.add_row("together", *(_gb(sum(parts.values())) for parts in needs.values()), style="bold")
    return table


def _gb(number: int) -> str:
    return f"{number / 1e9:.2f}"
