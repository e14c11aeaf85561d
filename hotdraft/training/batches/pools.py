"""Which recorded requests a job learns from: recent ones, those that were drafted badly, and old domains."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hotdraft.pipeline.config.learning import DistillConfig
from hotdraft.pipeline.replay.rows import ReplayRows
from hotdraft.training.batches.mixture import DOMAIN as MIXTURE

DRAWN_AT_ONCE = 64


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

    def draw(self, generator: np.random.Generator) -> Iterator[int]:
        """All rows in random order, those of higher weight sooner: drawing by weight without putting back.

        Drawing with putting back is the same, as long as what comes again is passed over, and a batch that takes
        few rows of many costs no more. What it has not reached is put in the order of exponential variables of
        these rates (Efraimidis and Spirakis, 2006).
        """
        drawn = np.zeros(len(self.rows), bool)
        for _ in range(len(self.rows) // DRAWN_AT_ONCE):
            at = generator.random(DRAWN_AT_ONCE) * self._ends[-1]
            for place in np.searchsorted(self._ends, at, side="right"):
                if not drawn[place]:
                    drawn[place] = True
                    yield int(self.rows[place])
        rest = np.flatnonzero(~drawn)
        yield from self.rows[rest[np.argsort(generator.exponential(size=len(rest)) / self.weights[rest])]].tolist()

    @cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum(self.weights)


def everything(count: int) -> list[Pool]:
    """One pool of all rows, drawn uniformly."""
    return [Pool(1.0, np.arange(count), np.ones(count))]


def mix_of(domains: Sequence[str], settings: DistillConfig) -> dict[str, float]:
    """Share of each domain in today's traffic: the newest `mix_requests` of `domains`, oldest first."""
    counts = Counter(domain for domain in domains[-settings.mix_requests :] if domain != MIXTURE)
    return {domain: count / counts.total() for domain, count in counts.items()}


def pools_of(rows: ReplayRows, settings: DistillConfig) -> list[Pool]:
    """Pools of `rows`, oldest first: today's traffic, the same by missed tokens, and older traffic.

    Today's are the rows of the window whose domain is in the newest `mix_requests`, each domain drawn by its share
    of these. All else is older, and every domain of it drawn alike, however much of it was recorded. Pools
    without rows are left out.
    """
    indices = np.arange(len(rows))
    domains, names = rows.domains
    mix = mix_of([names[number] for number in domains[-settings.mix_requests :]], settings)
    shares = np.array([mix.get(name, 0.0) for name in names])
    today = (shares[domains] > 0) & (indices >= len(rows) - settings.window_requests)
    by_mix = shares[domains[today]] * _rarity(domains[today])
    pools = [
        Pool(1 - settings.older_fraction - settings.rejected_fraction, indices[today], by_mix),
        Pool(settings.rejected_fraction, indices[today], rows.column("missed")[today] + 1.0),
        Pool(settings.older_fraction, indices[~today], _rarity(domains[~today]), older=True),
    ]
    return [pool for pool in pools if pool.share > 0 and len(pool.rows)]


def _rarity(domains: np.ndarray) -> np.ndarray:
    """Weights by which every domain is drawn alike."""
    return 1 / np.bincount(domains)[domains] if len(domains) else np.empty(0)
