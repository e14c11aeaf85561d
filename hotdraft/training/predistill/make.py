"""Pre-distillation: a draft learns what its target said, as the replay buffer holds it."""

import shutil
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import lightning
import numpy as np
import torch
from datasets import Dataset
from mlflow import MlflowClient
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import PreTrainedModel

from hotdraft.pipeline.config.learning import PredistillConfig
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.draft_folder import new_folder, save_draft
from hotdraft.pipeline.models.draft_vocabulary import (
    count_answers,
    count_prompts,
    merge_rankings,
    rank_tokens,
    save_vocabulary,
)
from hotdraft.pipeline.models.loading import choose_device, choose_dtype, load_causal_lm, load_tokenizer
from hotdraft.pipeline.models.names import Cut
from hotdraft.pipeline.replay.buffer import ReplayBuffer, sample_from_row
from hotdraft.pipeline.replay.rows import ReplayRows
from hotdraft.pipeline.replay.sample import ReplaySample
from hotdraft.pipeline.store.connection import create_run, experiment_id, open_client
from hotdraft.pipeline.store.domains import name_part
from hotdraft.training.batches.mixture import save_mixture
from hotdraft.training.batches.replay_data import ReplayDataModule
from hotdraft.training.drafts.draft_cost import predicted_cost
from hotdraft.training.drafts.draft_init import make_draft
from hotdraft.training.fit.run import RunPlace
from hotdraft.training.planning.machine import checkpoints_of
from hotdraft.training.predistill.draft_card import (
    CardFacts,
    Figures,
    figures_by_position,
    table_rows,
    write_draft_card,
)
from hotdraft.training.predistill.finished_draft import FinishedDraft, PredistillResult, recipe
from hotdraft.training.predistill.run_record import begin_or_resume, run_of
from hotdraft.training.predistill.train_draft import train_draft
from hotdraft.training.scoring.evaluate import expected_acceptance_by_position
from hotdraft.training.scoring.target_reader import give_target

EXPERIMENT = "hotdraft-predistillation"
MAX_EVALUATED = 400
TEXTS_MEASURED = 32
"""Requests on which the importance of layers and channels is measured: some thousands of tokens."""


def predistill(
    config: HotdraftConfig,
    buffer: ReplayBuffer,
    out: Path,
    *,
    kinds: Mapping[str, Collection[str]],
    slim: bool = False,
) -> PredistillResult:
    """Make the draft that `config.predistill` asks for, train it, and write it to `out`.

    It learns from the requests of the ids in `kinds`, by where they come from: what else the buffer holds may be of
    other prompts, or what the target said before it was made anew.

    With it goes the ranking of the tokens that its head may be cut to: those of the answers, then those
    of the prompts. A run that was stopped goes on from its last checkpoint in the run folder, or, where that
    has a `FinishedDraft` for `out`, needs no more than `conclude`. Raises `ModelError`, `DataError`, and
    `RunRecordError` if the run folder holds the checkpoints of another run.
    """
    settings = config.predistill
    lightning.seed_everything(settings.seed, verbose=False)
    device = choose_device(config.device)
    target = load_causal_lm(config.target, dtype=choose_dtype(config.dtype, device), device=device)
    tokenizer = load_tokenizer(config.target)
    kind_of = {request_id: kind for kind, ids in kinds.items() for request_id in ids}
    rows = buffer.load(kind_of)
    data = ReplayDataModule.for_predistill(rows, settings, config.replay.held_out_fraction)
    draft, layers = make_draft(target, settings, _texts(data.train_rows) if _measures(settings) else ())
    cost = predicted_cost(
        target.config,
        draft.config,
        head_size=config.engine.draft_vocab_size,
        max_k=config.engine.max_k,
        dtype=draft.dtype,
    )
    del target
    give_target(draft, config.target)

    checkpoints = checkpoints_of(config)
    made_by = recipe(config)
    run_id = begin_or_resume(checkpoints, made_by, lambda: _new_run(config, out.name))
    place = RunPlace(config.tracking_uri, run_id, checkpoints, progress=True)
    draft, reached = train_draft(draft, data, settings, tokenizer, place)

    samples = data.held_out_samples(MAX_EVALUATED)
    figures, by_position = evaluate(draft, samples, settings.batch_tokens)
    cut = (
        None
        if layers is None
        else Cut(config.target, made_by["target"], layers, settings.feed_forward, settings.hidden_states)
    )
    facts = CardFacts(
        target=config.target,
        target_fingerprint=made_by["target"],
        origin=cut or str(settings.draft),
        settings=settings,
        steps=int(reached["best_step"]),
        seconds=reached["train_seconds"],
        requests=Counter(rows["domain"]),
        tokens_by_kind=_tokens_by_kind(rows, kind_of),
        figures=figures,
        by_position=by_position,
        cost=cost,
        rounded_target=config.engine.target_weights == "int8",
    )
    predicted = cost.speed_up(figures["all"]["greedy_agreement"])
    outcome = PredistillResult(figures, by_position, predicted, run_id)
    with new_folder(out) as folder:
        save_draft(folder, draft, tokenizer, cut, slim=slim)
        vocab_size = draft.config.get_text_config().vocab_size
        counts = (count_answers(rows, vocab_size), count_prompts(rows, vocab_size))
        save_vocabulary(folder, merge_rankings([rank_tokens(count) for count in counts]))
        kept = save_mixture(folder, data.train_rows, data.held_out_rows, settings.mixture_requests, settings.seed)
        write_draft_card(folder, replace(facts, mixture=kept))
        FinishedDraft(config, out, slim=slim).write(outcome)
    conclude(config, outcome)
    return outcome


def conclude(config: HotdraftConfig, outcome: PredistillResult) -> None:
    """Tell MLflow, once, and print what the written draft reached; its checkpoints are needed no more."""
    checkpoints = checkpoints_of(config)
    if checkpoints.exists():
        client = open_client(config)
        _log_figures(client, outcome)
        client.set_terminated(outcome.run_id)
        shutil.rmtree(checkpoints)
    show(outcome.figures, outcome.by_position)


def evaluate(draft: PreTrainedModel, samples: Sequence[ReplaySample], batch_tokens: int) -> tuple[Figures, Figures]:
    """Greedy agreement and overlap with the target by domain and over `all`, and by position."""
    scores = {
        name: expected_acceptance_by_position(
            draft,
            [replace(sample, temperature=temperature, top_p=1.0, top_k=0, min_p=0.0) for sample in samples],
            batch_tokens=batch_tokens,
        )
        for name, temperature in (("greedy_agreement", 0.0), ("overlap", 1.0))
    }
    domains = np.array([sample.domain for sample in samples])
    groups = {"all": np.full(len(samples), True)} | {d: domains == d for d in sorted(set(domains))}
    figures = {
        domain: {
            "prompts": int(group.sum()),
            **{
                name: float(np.mean([values[index].mean() for index in np.flatnonzero(group)]))
                for name, values in scores.items()
            },
        }
        for domain, group in groups.items()
    }
    return figures, figures_by_position(scores)


def show(figures: Figures, by_position: Figures) -> None:
    """Print both tables."""
    console = Console(markup=False)
    for title, found, where, counted in (
        ("On prompts never trained on", figures, "domain", "prompts"),
        ("By position", by_position, "output position", "positions"),
    ):
        table = Table(where, title=title)
        for heading in (counted, "greedy agreement", "overlap"):
            table.add_column(heading, justify="right")
        for row in table_rows(found, counted):
            table.add_row(*row)
        console.print(table)


def has_begun(config: HotdraftConfig) -> bool:
    """Whether there is a checkpoint that training goes on from. Raises `RunRecordError` for one of another run."""
    checkpoints = checkpoints_of(config)
    run_of(checkpoints, lambda: recipe(config))
    return (checkpoints / "last.ckpt").is_file()


def _new_run(config: HotdraftConfig, name: str) -> str:
    client = open_client(config)
    run_id = create_run(client, experiment_id(client, config, EXPERIMENT), name, "hotdraft predistill")
    client.log_param(run_id, "target", config.target)
    for key, value in config.predistill.model_dump().items():
        client.log_param(run_id, key, value)
    return run_id


def _measures(settings: PredistillConfig) -> bool:
    by_importance = isinstance(settings.layers, int) and settings.layer_choice == "importance"
    is_cut = settings.draft is None and settings.hidden_states is None
    return is_cut and (by_importance or settings.feed_forward is not None)


def _texts(rows: ReplayRows) -> list[Tensor]:
    """Ids [1, T] of the first requests that are trained on."""
    samples = [sample_from_row(row) for _, row in rows.read(range(min(TEXTS_MEASURED, len(rows))))]
    return [torch.from_numpy(np.concatenate([s.prompt_ids, s.output_ids])).long()[None] for s in samples]


def _tokens_by_kind(rows: Dataset, kind_of: Mapping[str, str]) -> Counter[str]:
    tokens: Counter[str] = Counter()
    for row in rows.select_columns(["request_id", "output_ids"]).with_format("numpy"):
        tokens[kind_of[str(row["request_id"])]] += len(row["output_ids"])
    return tokens


def _log_figures(client: MlflowClient, outcome: PredistillResult) -> None:
    """As metrics, and as tables among the run's artifacts."""
    run_id, figures, by_position = outcome.run_id, outcome.figures, outcome.by_position
    for domain, values in figures.items():
        for name, value in values.items():
            client.log_metric(run_id, f"{name}/{name_part(domain)}", value)
    for positions, values in by_position.items():
        for name in ("greedy_agreement", "overlap"):
            client.log_metric(run_id, f"{name}/position_{name_part(positions)}", values[name])
    logged = {file.path for file in client.list_artifacts(run_id)}
    for where, found in (("domain", figures), ("position", by_position)):
        name = f"figures_by_{where}.json"
        if name in logged:  # by one that was killed before it ended: its rows would be there twice
            continue
        columns = [where, *next(iter(found.values()))]
        rows = [[place, *values.values()] for place, values in found.items()]
        table = {column: [row[index] for row in rows] for index, column in enumerate(columns)}
        client.log_table(run_id, table, name)
