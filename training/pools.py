"""Which recorded requests a job learns from: recent ones, those that were drafted badly, and old domains."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from datasets import Dataset

from pipeline.config import DistillConfig
from pipeline.loop import missed


@dataclass(frozen=True)
class Pool:
    """Rows that batches are drawn from."""

    share: float
    """Of the batches, beside the shares of the other pools."""
    rows: np.ndarray
    """int64 [R]: row indices."""
    weights: np.ndarray
    """float64 [R], positive: how much likelier than others a row is drawn early."""

    def draw(self, generator: np.random.Generator) -> np.ndarray:
        """All rows in random order, those of higher weight sooner: drawing by weight without putting back.

        By Efraimidis and Spirakis (2006): the order of exponential variables of these rates.
        """
        return self.rows[np.argsort(generator.exponential(size=len(self.rows)) / self.weights)]


def everything(count: int) -> list[Pool]:
    """One pool of all rows, drawn uniformly."""
    return [Pool(1.0, np.arange(count), np.ones(count))]


def pools_of(rows: Dataset, settings: DistillConfig) -> list[Pool]:
    """Pools of `rows`, oldest first: the window of the newest, the same by missed tokens, and what came before.

    Before the window every domain weighs the same, however much of it was recorded, and a domain that is
    in the window weighs no more. Of requests with the same prompt only the newest counts. Pools without
    rows are left out.
    """
    newest = _newest_by_prompt(rows)
    recent, older = newest[-settings.window_requests :], newest[: -settings.window_requests]
    misses = np.array([_misses(row) for row in rows.select(recent).select_columns(MISSES).with_format("numpy")])
    domains = rows.select(older)["domain"] if len(older) else []
    counts = Counter(domains)
    pools = [
        Pool(1 - settings.older_fraction - settings.rejected_fraction, recent, np.ones(len(recent))),
        Pool(settings.rejected_fraction, recent, misses + 1.0),
        Pool(settings.older_fraction, older, np.array([1 / counts[domain] for domain in domains])),
    ]
    return [pool for pool in pools if pool.share > 0 and len(pool.rows)]


MISSES = ["drafted_ids", "accepted"]


def _misses(row: dict) -> int:
    return int(missed(row["drafted_ids"], row["accepted"]).sum())


def _newest_by_prompt(rows: Dataset) -> np.ndarray:
    last: dict[bytes, int] = {}
    for index, row in enumerate(rows.select_columns(["prompt_ids"]).with_format("numpy")):
        last[np.asarray(row["prompt_ids"], np.int32).tobytes()] = index
    return np.array(sorted(last.values()), np.int64)
