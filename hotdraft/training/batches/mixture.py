"""A sample of what a draft was pre-distilled on, which its folder holds: what it knows before there is traffic.

It is rehearsed from the first job on, and guarded by the gate, as an older domain of its own. The target's
distributions are cut short: rehearsed is what the champion says there.
"""

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.names import resolve
from hotdraft.pipeline.replay.index import held_out
from hotdraft.pipeline.replay.rows import ReplayRows
from hotdraft.pipeline.replay.sample import NOT_DRAFTED, ReplaySample
from hotdraft.pipeline.replay.schema import SCHEMA, completed, table_of
from hotdraft.training.batches.packing import cut_top
from hotdraft.training.batches.sound_rows import SoundRows

logger = logging.getLogger(__name__)

FILE = "mixture.parquet"
"""In a draft's folder."""
DOMAIN = "pre-distillation mixture"
"""With a space, which no domain of a client has once it is recorded, see `pipeline.store.domains.name_part`."""
TOP_K = 8
"""Of the target's tokens at each position."""
JUDGES = 0.3
"""Requests to judge by, for each to rehearse."""


def save_mixture(draft_folder: Path, trained: ReplayRows, held_out: ReplayRows, requests: int, seed: int) -> int:
    """Write `requests` that were trained on beside the draft, and some that were held out; gives their number.

    Both are drawn at random from the answers of the target; texts are none.
    """
    generator = np.random.default_rng(seed)
    samples: list[ReplaySample] = []
    for rows, most in ((trained, requests), (held_out, int(JUDGES * requests))):
        asked = np.flatnonzero(rows.column("prompt_tokens") > 1)
        drawn = generator.permutation(asked)[: 2 * most]  # what contradicts itself as an answer is none
        samples += SoundRows(rows).samples(drawn)[:most]
    if samples:
        table = table_of([_shortened(sample) for sample in samples])
        pq.write_table(table, draft_folder / FILE, compression="zstd")
    return len(samples)


def read_mixture(draft: str) -> pa.Table | None:
    """What the folder of `draft` holds, of the schema of shards; None if nothing can be read, or it is a hub's."""
    try:
        path = Path(resolve(draft)) / FILE
        return _under_its_name(completed(pq.read_table(path))) if path.is_file() else None
    except (OSError, ValueError) as error:  # Arrow's and `ModelError` are among the latter
        logger.warning("jobs go without what the draft was pre-distilled on: %s", error)
        return None


def _under_its_name(table: pa.Table) -> pa.Table:
    """Whatever an earlier release called it."""
    at = SCHEMA.get_field_index("domain")
    return table.set_column(at, SCHEMA.field(at), pa.repeat(pa.scalar(DOMAIN), len(table)))


def split_mixture(config: HotdraftConfig) -> tuple[list[ReplaySample], list[ReplaySample]]:
    """The requests to rehearse, and those to judge by, that the draft brings with it."""
    if (rows := _rows(config)) is None:
        return [], []
    sound, judges = SoundRows(rows), _judges(rows, config)
    return sound.samples(np.flatnonzero(~judges)), sound.samples(np.flatnonzero(judges))


def held_out_in_mixture(config: HotdraftConfig) -> list[ReplaySample]:
    """The requests to judge by that the draft brings with it."""
    rows = _rows(config)
    return [] if rows is None else SoundRows(rows).samples(np.flatnonzero(_judges(rows, config)))


def _rows(config: HotdraftConfig) -> ReplayRows | None:
    mixture = None if config.draft is None else read_mixture(config.draft)
    return None if mixture is None else ReplayRows.of(mixture)


def _judges(rows: ReplayRows, config: HotdraftConfig) -> np.ndarray:
    return held_out(rows.column("prompt_hash"), config.replay.held_out_fraction)


def served(rows: ReplayRows) -> ReplayRows:
    """`rows` without those of the mixture."""
    domains, names = rows.domains
    numbers = [number for number, name in enumerate(names) if name != DOMAIN]
    return rows.select(np.flatnonzero(np.isin(domains, numbers)))


def _shortened(sample: ReplaySample) -> ReplaySample:
    count = len(sample.output_ids)
    top_k = min(TOP_K, sample.target_top_ids.shape[1])
    logprobs, tail = cut_top(sample, count, top_k)
    return replace(
        sample,
        domain=DOMAIN,
        target_top_ids=sample.target_top_ids[:, :top_k],
        target_top_logprobs=logprobs.astype(np.float16),
        target_tail_logprob=tail,
        drafted_ids=np.full(count, NOT_DRAFTED, np.int32),
        accepted=np.zeros(count, bool),
        target_id="",  # what counts is what a champion says there, whichever target it serves
        draft_id="",
    )
