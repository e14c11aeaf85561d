"""The first stage of a job: open what was recorded."""

from dataclasses import dataclass

from hotdraft.pipeline.models.loading import load_config_of, weights_id
from hotdraft.pipeline.replay.sample import ReplaySample
from hotdraft.training.batches.mixture import read_mixture, served
from hotdraft.training.batches.packing import DataError
from hotdraft.training.batches.pools import mix_of
from hotdraft.training.batches.replay_data import ReplayDataModule
from hotdraft.training.online.context import JobCancelledError, JobContext, JobError

ADVICE = "let other traffic pass, or set distill.max_length higher where its prompts are longer"


@dataclass(frozen=True)
class Recorded:
    data: ReplayDataModule
    held_out: list[ReplaySample]
    """H requests to be judged by, each of another prompt."""
    last_request: str
    """The newest that the job knows."""


def open_recorded(context: JobContext) -> Recorded:
    """What the job learns from and is judged by, as did one that it goes on with.

    Raises `JobError`, and `JobCancelledError` for one that goes on with another of which too little is left, or not
    the newest request that it knew.
    """
    try:
        return _open_recorded(context)
    except JobError as error:
        if context.job.job.work is None:
            raise
        raise JobCancelledError(f"dropped, as what it began with is gone: {error}") from error


def _open_recorded(context: JobContext) -> Recorded:
    config, rows = context.config, context.buffer.rows()
    if not len(rows):
        raise JobError("the replay buffer is empty: let traffic pass through `hotdraft serve` first")
    mixture = None if config.draft is None else read_mixture(config.draft)
    if mixture is not None:
        rows = rows.following(mixture)
    if (work := context.job.job.work) is not None:
        known = rows.up_to(work.last_request)
        if known is None:
            raise JobError(f"the replay buffer holds request {work.last_request} and those before it no more")
        rows = known
    vocab_size = None if config.draft is None else load_config_of(config.draft).get_text_config().vocab_size
    try:
        data = ReplayDataModule.for_job(
            rows, config.distill, config.replay.held_out_fraction, vocab_size, config.engine.served_window,
            weights_id(config.target),
        )  # fmt: skip
    except DataError as error:
        raise JobError(f"{error}: {ADVICE}") from error
    if not len(served(data.train_rows)):
        raise JobError(
            f"none of {len(served(rows))} recorded requests can be learned from, {data.why_left_out}: {ADVICE}"
        )
    held_out = data.held_out_by_domain(mix_of(data.domains, config.distill), config.gate)
    if len(held_out) < config.gate.min_requests:
        raise JobError(
            f"the replay buffer has {len(held_out)} held-out prompts in {len(rows)} requests, "
            f"{data.why_left_out}; the gate needs {config.gate.min_requests}: let more traffic pass"
        )
    return Recorded(data, held_out, rows.newest)
