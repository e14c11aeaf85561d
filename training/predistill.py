"""Offline pre-distillation: a draft cut from its target learns the target's recorded answers."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import lightning
import numpy as np
from rich.console import Console
from rich.table import Table
from transformers import PreTrainedModel

from pipeline.config import HotdraftConfig
from pipeline.draft_vocabulary import count_answers, count_prompts, merge_rankings, rank_tokens, save_vocabulary
from pipeline.mlflow_store import experiment_id, open_client
from pipeline.models import Cut, choose_device, choose_dtype, fingerprint, load_causal_lm, save_cut
from pipeline.records import ReplaySample
from pipeline.replay import ReplayBuffer
from training.data import ReplayDataModule
from training.draft_card import Figures, write_draft_card
from training.draft_init import cut_layers, freeze_shared
from training.evaluate import expected_acceptance_by_request
from training.run import train

EXPERIMENT = "hotdraft-predistillation"
MAX_EVALUATED = 400


def predistill(config: HotdraftConfig, buffer: ReplayBuffer, out: Path) -> None:
    """Cut `predistill.layers` from the target, train them on the buffer, and write the draft to `out`.

    With it goes the ranking of the tokens that its head may be cut to: those of the answers, then those
    of the prompts. A run that was stopped goes on from its last checkpoint in the run folder.
    """
    settings = config.predistill
    lightning.seed_everything(settings.seed, verbose=False)
    device = choose_device(config.device)
    target = load_causal_lm(config.target, dtype=choose_dtype(config.dtype, device), device=device)
    draft = cut_layers(target, settings.layers)
    dtype = draft.dtype
    freeze_shared(draft)
    for parameter in draft.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()  # the master copy of mixed-precision training

    rows = buffer.load()
    data = ReplayDataModule(
        rows,
        held_out_fraction=config.replay.held_out_fraction,
        batch_tokens=settings.batch_tokens,
        window_requests=len(rows),
        older_fraction=0.0,
        rejected_weight=1.0,
        seed=settings.seed,
    )
    client = open_client(config)
    run = client.create_run(experiment_id(client, config, EXPERIMENT), run_name=out.name)
    train(
        draft,
        data,
        settings,
        tracking_uri=config.tracking_uri,
        run_id=run.info.run_id,
        checkpoints=config.run_dir / "checkpoints",
        progress=True,
        stop=None,
    )

    draft = draft.to(dtype)  # type: ignore[arg-type]  # transformers' decorator hides `to`
    figures = evaluate(draft, data.held_out_samples(MAX_EVALUATED, settings.seed), settings.batch_tokens)
    cut = Cut(config.target, fingerprint(config.target), list(settings.layers))
    save_cut(out, draft, cut)
    vocab_size = draft.config.get_text_config().vocab_size
    counts = (count_answers(rows, vocab_size), count_prompts(rows, vocab_size))
    save_vocabulary(out, merge_rankings([rank_tokens(count) for count in counts]))
    write_draft_card(out, cut, buffer.stats(), figures)
    for domain, values in figures.items():
        for name, value in values.items():
            client.log_metric(run.info.run_id, f"{name}/{domain}", value)
    client.set_terminated(run.info.run_id)
    show(figures)


def evaluate(draft: PreTrainedModel, samples: Sequence[ReplaySample], batch_tokens: int) -> Figures:
    """Greedy agreement and overlap with the target by domain and over `all`, on prompts never trained on."""
    scores = {
        name: expected_acceptance_by_request(
            draft, [replace(s, temperature=temperature) for s in samples], batch_tokens=batch_tokens
        )
        for name, temperature in (("greedy_agreement", 0.0), ("overlap", 1.0))
    }
    domains = np.array([sample.domain for sample in samples])
    groups = {"all": np.full(len(samples), True)} | {d: domains == d for d in sorted(set(domains))}
    return {
        domain: {
            "prompts": int(group.sum()),
            **{name: float(values[group].mean()) for name, values in scores.items()},
        }
        for domain, group in groups.items()
    }


def show(figures: Figures) -> None:
    table = Table("domain", "prompts", "greedy agreement", "overlap", title="On prompts never trained on")
    for domain, values in figures.items():
        table.add_row(
            domain,
            f"{values['prompts']:.0f}",
            f"{values['greedy_agreement']:.3f}",
            f"{values['overlap']:.3f}",
        )
    Console().print(table)
