"""Which recorded requests a job learns from: recent ones, those that were drafted badly, and old domains."""

from collections import Counter
from collections.abc import Sequence
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
    older: bool = False
    """Whether it is what came before today's traffic."""

    def draw(self, generator: np.random.Generator) -> np.ndarray:
        """All rows in random order, those of higher weight sooner: drawing by weight without putting back.

        By Efraimidis and Spirakis (2006): the order of exponential variables of these rates.
        """
        return self.rows[np.argsort(generator.exponential(size=len(self.rows)) / self.weights)]


def everything(count: int) -> list[Pool]:
    """One pool of all rows, drawn uniformly."""
    return [Pool(1.0, np.arange(count), np.ones(count))]


def mix_of(domains: Sequence[str], settings: DistillConfig) -> dict[str, float]:
    """Share of each domain in today's traffic: the newest `mix_requests` of `domains`, oldest first."""
    counts = Counter(domains[-settings.mix_requests :])
    return {domain: count / counts.total() for domain, count in counts.items()}


def pools_of(rows: Dataset, settings: DistillConfig) -> list[Pool]:
    """Pools of `rows`, oldest first: today's traffic, the same by missed tokens, and older traffic.

    Today's are the rows of the window whose domain is in the newest `mix_requests`, each domain drawn by its share
    of these. All else is older, and every domain of it drawn alike, however much of it was recorded. Pools
    without rows are left out.
    """
    indices, domains = np.arange(len(rows)), np.array(rows["domain"])
    mix = mix_of(domains.tolist(), settings)
    today = np.isin(domains, list(mix)) & (indices >= len(rows) - settings.window_requests)
    records = rows.select(indices[today]).select_columns(["drafted_ids", "accepted"]).with_format("numpy")
    misses = np.array([missed(row["drafted_ids"], row["accepted"]).sum() for row in records])
    by_mix = np.array([mix[domain] for domain in domains[today]]) * _rarity(domains[today])
    pools = [
        Pool(1 - settings.older_fraction - settings.rejected_fraction, indices[today], by_mix),
        Pool(settings.rejected_fraction, indices[today], misses + 1.0),
        Pool(settings.older_fraction, indices[~today], _rarity(domains[~today]), older=True),
    ]
    return [pool for pool in pools if pool.share > 0 and len(pool.rows)]


def _rarity(domains: np.ndarray) -> np.ndarray:
    """Weights by which every domain is drawn alike."""
    counts = Counter(domains)
    return np.array([1 / counts[domain] for domain in domains])
