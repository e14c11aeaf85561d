"""`hotdraft predistill`: a draft from a target, before there is traffic."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from hotdraft.commands.options import ConfigOption, waiting


class Method(StrEnum):
    FULL = "full"
    LORA = "lora"
    QLORA = "qlora"


def predistill(
    config: ConfigOption,
    out: Annotated[
        Path | None, typer.Option(help="New or empty folder that the draft is written to; needed unless --plan.")
    ] = None,
    prompts: Annotated[
        list[str] | None,
        typer.Option(help="What to learn from: JSONL of prompts, a folder of text, a dataset. Repeatable."),
    ] = None,
    draft: Annotated[
        str | None, typer.Option(help="An existing smaller model to train, instead of a cut of the target.")
    ] = None,
    method: Annotated[Method | None, typer.Option(help="Which weights are trained.")] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Only say what it takes: memory, disk and hours.")] = False,
    memory_gb: Annotated[
        float | None,
        typer.Option(min=0.1, max=1e6, help="With --plan: for a device with so much memory, without weights."),
    ] = None,
    slim: Annotated[
        bool, typer.Option("--slim", help="Leave out of the folder what a cut has in common with its target.")
    ] = False,
) -> None:
    """Make a draft from a target: cut some of its layers, or take a smaller model, and distil it.

    It learns from the target's own answers, which are kept in the run folder,
    and training writes a checkpoint every `predistill.checkpoint_steps`: started
    again, the command goes on from there. What the draft is to be is said under
    `predistill:`.

    Examples:
    $ hotdraft predistill --config predistill-smollm2 --plan
    $ hotdraft predistill -c predistill-smollm2 --out runs/my-draft
    $ hotdraft predistill -c predistill-qwen2.5-7b \\
        --plan --memory-gb 80
    """
    import random

    from hotdraft.pipeline.config.settings import given, load_config
    from hotdraft.pipeline.traffic.generators.varied import varied
    from hotdraft.pipeline.traffic.sources import read_sources

    changed = {"sources": prompts or None, "draft": draft, "method": method and method.value}
    overrides: dict[str, Any] = given({"predistill": given(changed)})
    settings = load_config(config, overrides).recording_apart()
    chosen = settings.predistill
    if out is None and not plan:
        raise typer.BadParameter("--out is needed: the folder that the draft is written to")
    if slim and chosen.draft is not None:
        raise typer.BadParameter("--slim is for a draft cut from the target, not for an existing model")
    if memory_gb is not None and not plan:
        raise typer.BadParameter("--memory-gb is for --plan: it plans for another machine")

    items = [*read_sources(chosen.sources), *varied(chosen.builtin_prompts, chosen.seed)]
    random.Random(chosen.seed).shuffle(items)  # whatever is answered so far is a fair mix

    from rich.console import Console

    with waiting("importing torch"):
        from hotdraft.answering.requests import text_tokens
        from hotdraft.answering.speed import answer_speed, weights_here
        from hotdraft.pipeline.traffic.prompts import Prompt
        from hotdraft.training.drafts.draft_cost import predicted_cost, show_cost
        from hotdraft.training.planning.machine import available_for
        from hotdraft.training.planning.plan_check import check
        from hotdraft.training.planning.plan_table import plan_predistill, tables
        from hotdraft.training.planning.plan_time import describe_time

    planned = plan_predistill(
        settings,
        prompts=sum(isinstance(item, Prompt) for item in items),
        text_tokens=text_tokens(items),
        elsewhere=memory_gb is not None,
    )
    cost = predicted_cost(
        planned.run.target.config,
        planned.run.draft.config,
        head_size=settings.engine.draft_vocab_size,
        max_k=settings.engine.max_k,
        dtype=planned.run.dtype,
    )
    show_cost(cost)
    available = available_for(settings, memory_gb)
    console = Console(markup=False)
    console.print(tables(planned, available))
    check(planned, available, training=memory_gb is not None)
    if not plan and out is not None:
        _make_alone(planned, available, items, out, slim=slim)
        return
    step = speed = None
    if memory_gb is None and weights_here(settings):
        step = _try_step(planned, available, items)
        with waiting("measuring how fast the target answers"):
            speed = answer_speed(settings, items)
    else:
        check(planned, available)
    console.print(describe_time(planned, step, speed), highlight=False, soft_wrap=True)


def _try_step(planned: Any, available: Any, items: Any) -> Any:
    from hotdraft.answering.speed import try_training

    with waiting("trying a step of training"):
        return try_training(planned, available, items)


def _make_alone(planned: Any, available: Any, items: Any, out: Path, *, slim: bool) -> None:
    from hotdraft.pipeline.store.connection import STORE_ONLY_ERRORS, store_errors
    from hotdraft.pipeline.system.run_lock import RunInUseError, run_lock
    from hotdraft.training.fit.resume import JobInterruptedError

    settings = planned.run.config
    if (settings.run_dir / "server.lock").exists():
        raise RunInUseError(
            f"a server has recorded traffic in {settings.run_dir}: what a draft is made from would be taken for "
            "traffic there; give predistill a run_dir of its own, as by HOTDRAFT_RUN_DIR"
        )
    with run_lock(settings.run_dir, "trainer"), store_errors(settings, STORE_ONLY_ERRORS):
        try:
            _make(planned, available, items, out, slim=slim)
        except JobInterruptedError as interruption:
            typer.echo(f"hotdraft: {interruption}; the same command goes on from its last checkpoint", err=True)
            raise typer.Exit(1) from None


def _make(planned: Any, available: Any, items: Any, out: Path, *, slim: bool) -> None:
    from rich.console import Console

    from hotdraft.answering.collect import collect
    from hotdraft.answering.requests import check_split, output_tokens
    from hotdraft.answering.speed import show_speed_up
    from hotdraft.pipeline.models.draft_folder import check_out
    from hotdraft.pipeline.models.names import local_folder
    from hotdraft.pipeline.replay.buffer import ReplayBuffer
    from hotdraft.pipeline.system.disk import recorded_bytes, replay_bytes, require_disk
    from hotdraft.pipeline.traffic.prompts import Prompt
    from hotdraft.training.fit.progress_bar import quiet_trainer
    from hotdraft.training.planning.plan_time import describe_time
    from hotdraft.training.predistill import make
    from hotdraft.training.predistill.finished_draft import FinishedDraft
    from hotdraft.training.predistill.step_trial import clear_trials

    quiet_trainer()
    settings = planned.run.config
    clear_trials(settings.run_dir)
    prompts = [item for item in items if isinstance(item, Prompt)]
    finished = FinishedDraft(settings, out, slim=slim)
    outcome = finished.read()
    if outcome is not None:
        typer.echo(f"The draft in {out} is finished; going on from there.")
        make.conclude(settings, outcome)
    else:
        check_out(out)
        needed = replay_bytes(output_tokens(settings, items), settings.recorder.top_k)
        left = max(0, needed - recorded_bytes(settings))
        require_disk(settings.run_dir, left, "what the target has yet to say of the prompts")
        if not make.has_begun(settings):  # else its own steps have shown what they take
            check_split(settings, items)
            step = _try_step(planned, available, items)
            Console(markup=False).print(describe_time(planned, step), highlight=False, soft_wrap=True)
        chosen = settings.predistill
        buffer = ReplayBuffer.of(settings)
        on_policy = chosen.draft if chosen.on_policy_fraction else None
        kinds = collect(settings, items, buffer, None if on_policy is None else local_folder(on_policy))
        outcome = make.predistill(settings, buffer, out, kinds=kinds, slim=slim)
    typer.echo(f"The draft is in {out}: `hotdraft serve {settings.target} --draft {out}` serves it.")
    show_speed_up(settings, out, outcome, prompts)
    finished.forget()
