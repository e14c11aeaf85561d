"""The third stage of a job: train, and offer what came of it to the gate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import lightning
import numpy as np
import torch
from peft import PeftModel

from hotdraft.pipeline.models.adapter_folder import AdapterError, LoadedAdapter
from hotdraft.pipeline.models.loading import weights_id
from hotdraft.training.batches.packing import DataError
from hotdraft.training.fit.lora import LoraError, build_lora, card_of, resolve_quantization, target_modules
from hotdraft.training.fit.module import NonFiniteLossError
from hotdraft.training.fit.older_directions import OlderDirections, find_directions
from hotdraft.training.fit.run import FitOptions, RunPlace, train
from hotdraft.training.judging.candidate import Candidate, candidates, copy_trainable
from hotdraft.training.judging.evidence import VersionScores, tell
from hotdraft.training.judging.parent import initial_adapter, with_parent
from hotdraft.training.judging.served_check import UnlikeServedError, check_served, checkable
from hotdraft.training.judging.served_draft import ServedDraft
from hotdraft.training.judging.teachers import teachers_of
from hotdraft.training.online.context import JobContext, JobError
from hotdraft.training.online.recorded import Recorded
from hotdraft.training.online.unproven import Unproven
from hotdraft.training.scoring.evaluate import by_request

MOMENTUM = 0.8
"""Of the optimiser: within the few steps of a burst 0.9 gets on more slowly (docs/learning.md)."""
DIRECTION_TOKENS = 1024
"""Of older requests that their directions are found in."""
NARROW_SHARE = 0.5
"""Of the batches that rehearse at least, where a layer is too narrow for so many directions or little is known."""
RANKED = 256
"""Requests that the trimmed head's tokens are counted in, of what is new and of what is rehearsed."""


@dataclass(frozen=True)
class Trained:
    draft: ServedDraft
    """With the adapter that the job began from."""
    metrics: Mapping[str, float]
    candidates: Sequence[Candidate]
    refusal: str = ""
    """Why there are none."""


def train_candidates(context: JobContext, recorded: Recorded) -> Trained:
    """Raises `JobError` for a draft that cannot be improved, or once nothing is left to learn from, and
    `JobInterruptedError`."""
    config, interruption, champion = context.config, context.interruption, context.job.work.parent_version
    lightning.seed_everything(config.distill.seed, verbose=False)
    interruption.check("the draft was loaded")
    if config.draft is None:
        raise JobError("the configuration names no draft to improve")
    draft = with_parent(context.resident.draft(config.draft, config), context.registry, champion)
    interruption.check("the champion was judged")
    serving = 0 if draft.parent is None else champion
    scores = VersionScores(draft, context.registry, config.distill, recorded.held_out, context.resident.scores)
    since = context.registry.version(serving).created_at if serving else 0.0
    checked = checkable(recorded.held_out, serving, weights_id(config.draft), since)
    chances = draft.chances(draft.parent, checked, config.distill.batch_tokens)
    tell(context.resident.scores, serving, checked, by_request(chances))
    before = scores.of_champion(serving)
    if not np.isfinite(before).all():
        raise JobError("the draft's expected acceptance before the first step is not finite")
    metrics = {
        "champion_expected_acceptance": float(before.mean()),
        "requests_left_out": float(recorded.data.left_out),
    }
    try:
        check_served(checked, chances, serving)
        offered = _candidates(context, recorded, draft, metrics)
    except (UnlikeServedError, NonFiniteLossError, AdapterError, torch.linalg.LinAlgError) as error:
        return Trained(draft, metrics, (), str(error))
    except (DataError, LoraError) as error:
        raise JobError(str(error)) from error
    return Trained(draft, metrics, offered)


def _candidates(
    context: JobContext, recorded: Recorded, draft: ServedDraft, metrics: dict[str, float]
) -> list[Candidate]:
    """What came of training, which adds to `metrics`."""
    distill, data, job = context.config.distill, recorded.data, context.job
    context.interruption.check("training began")
    quantization = resolve_quantization(distill.quantization, draft.base)
    unproven = Unproven(context.config).beside(job.work.parent_version, draft)
    initial = initial_adapter(draft, unproven, distill, quantization)
    model = build_lora(draft.base, distill.lora, quantization, initial=initial)
    beside = _left_alone(model, initial, draft, recorded, context)
    start = copy_trainable(model)
    ranking = None if draft.head_size is None else draft.rank(data.drawn(RANKED))
    if distill.older_targets == "best":
        teachers = teachers_of(draft, job.work.parent_version, context.registry)
        data.rehearse(partial(context.resident.rehearsal.taught, teachers, top_k=context.config.recorder.top_k))
    uri, stop = context.config.tracking_uri, context.interruption
    place = RunPlace(uri, job.run_id, job.work_folder / "checkpoints", context.progress, stop, job.tell)
    options = FitOptions(
        vocabulary=draft.covered(ranking),
        prompt_steps=distill.prompt_steps,
        momentum=MOMENTUM,
        share=distill.share,
        beside=beside,
    )
    metrics |= train(model, data, distill, place, options)
    context.interruption.check("the candidates were judged")
    context.interruption.give_way_no_more()
    parent = 0 if initial is None else job.work.parent_version
    card = card_of(draft.base, draft.fingerprint, distill.lora, quantization, data.train_rows, parent)
    return candidates(model, start, draft, card, ranking, distill.blends, job.work_folder)


def _left_alone(
    model: PeftModel, initial: LoadedAdapter | None, draft: ServedDraft, recorded: Recorded, context: JobContext
) -> list[OlderDirections]:
    """What keeps training off the directions of older requests. Where there are not so many, more is rehearsed."""
    distill = context.config.distill
    batch = recorded.data.older(DIRECTION_TOKENS) if distill.older_directions else None
    if batch is None:
        return []
    names = target_modules(draft.base, distill.lora.target_modules)
    directions = context.resident.directions(
        batch, lambda: find_directions(draft.model(initial), names, batch, distill.older_directions)
    )
    if any(found.shape[1] < distill.older_directions for found in directions.values()):
        recorded.data.rehearse_more(NARROW_SHARE)
        return []
    left_alone = OlderDirections(model, directions)
    if initial is None:
        left_alone.clear()
    return [left_alone]
