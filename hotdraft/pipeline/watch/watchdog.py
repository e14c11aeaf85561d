"""The watchdog's verdict on a swap: is the served acceptance really lower than what the champion had?

A pure function of what was served before and after, pooled over all servers, and of the looks already done. It
looks a few times while requests come in, not after each: whoever looks often enough finds a fall by chance. The
looks together find one in at most 5 % of swaps to a draft that is no worse, whatever any one client sends.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtrit

from hotdraft.pipeline.config.learning import WatchdogConfig
from hotdraft.pipeline.watch.evidence import Evidence, Tally

CRITICAL = (1.645, 1.875, 1.992, 2.067, 2.122, 2.164, 2.197, 2.225)
"""Standard errors that a fall must exceed at each of 1, 2, … looks, one-sided 5 % over all of them.

Pocock (1977); table 2.1 of Jennison and Turnbull (2000), two-sided 10 %. For a t of so many degrees of freedom,
the quantile of the same level.
"""
LOOK_FACTOR = 1.5
"""Requests at a look over those at the one before."""
OTHERS_SHARE = 0.05
"""Of the requests: where all clients but one send less, the server is that client's and judged by it."""
MATCHED_SHARE = 0.5
"""Of the comparable requests, by clients that asked for their kind before the swap and after it."""
PRIOR_REQUESTS = 2
"""That the spread of either side counts as if they had the spread of both."""
LEAST_VARIANCE = 1e-6
"""Of rates: all may be alike, as far as rounding lets them."""
LEFT_OUT = 64
"""Clients tried without, those of most requests: any other weighs less than each of these."""

Numbers = NDArray[np.float64]
Ids = NDArray[np.intp]


@dataclass(frozen=True)
class Fall:
    """A real fall of the served acceptance rate, over kinds of requests served before and after."""

    before: float
    after: float
    error: float
    """Standard error of the difference."""
    requests: int
    """On the new version."""
    clients: int

    def __str__(self) -> str:
        return (
            f"served acceptance fell from {self.before:.3f} to {self.after:.3f} (± {self.error:.3f}) "
            f"over {self.requests} requests of {self.clients} client{'s' if self.clients > 1 else ''}"
        )


@dataclass(frozen=True)
class Judgement:
    looks: int
    """Done by now."""
    fall: Fall | None = None


@dataclass(frozen=True)
class Samples:
    """Rows of requests of one client and kind, [N] each, compared within `stratum`."""

    stratum: Ids
    client: Ids
    old: Numbers
    """[3, N]: requests, sum and sum of squares of their rates, on the version before."""
    new: Numbers
    """Likewise on the new one."""

    @classmethod
    def of(cls, before: Evidence, after: Evidence) -> "Samples":
        keys = sorted({*before, *after})
        clients = _numbered([client for client, _ in keys])
        return cls(_numbered([kind for _, kind in keys]), clients, _sums(before, keys), _sums(after, keys))

    def by_kind(self) -> "Samples":
        """Of the kinds that were served before and after."""
        rows = ((_per(self.stratum, self.old[0]) > 0) & (_per(self.stratum, self.new[0]) > 0))[self.stratum]
        return self._where(rows)

    def by_client_and_kind(self) -> "Samples":
        """Each client's own: kinds that it asked for before and after."""
        return Samples(np.arange(len(self.client)), self.client, self.old, self.new).by_kind()

    def without(self, client: int) -> "Samples":
        return self._where(self.client != client).by_kind()

    def is_of_one_client(self, most_before: int) -> bool:
        """Whether one sends nearly all; what it sent before a swap counts up to `most_before` only."""
        sent = np.minimum(_per(self.client, self.old[0]), most_before) + _per(self.client, self.new[0])
        return bool(sent.sum() - sent.max() < OTHERS_SHARE * sent.sum())

    def requests(self, alone: bool) -> float:
        """On the new version, without the client that sent most unless it is the only one."""
        sent = _per(self.client, self.new[0])
        return float(sent.sum() - (0 if alone or not len(sent) else sent.max()))

    def largest_clients(self) -> Ids:
        """At most `LEFT_OUT`."""
        ids = np.unique(self.client)
        sent = _per(self.client, self.old[0] + self.new[0])
        return ids[np.argsort(-sent[ids], kind="stable")][:LEFT_OUT]

    def fall(self, critical: float, max_fall: float) -> Fall | None:
        """If the rate fell by more than `max_fall` and `critical` standard errors.

        The rate's regression on the version with an effect for each stratum: strata weigh by
        n_old n_new / (n_old + n_new), which is their share of the new requests where much is known of before.
        Spreads of old and new requests are apart, degrees of freedom Satterthwaite's. Where the requests of a
        client rise and fall together, the clustered error (Liang and Zeger, 1986) is larger, and counts.
        """
        stratum = _numbered(self.stratum)
        (n_old, sum_old, _), (n_new, sum_new, _) = old, new = [
            np.stack([_per(stratum, row) for row in side]) for side in (self.old, self.new)
        ]
        weight = n_old * n_new / (n_old + n_new)
        weight /= weight.sum()
        before, after = float(weight @ (sum_old / n_old)), float(weight @ (sum_new / n_new))
        spreads = _spreads(old, new)
        if spreads is None:
            return None
        (spread_old, freedom_old), (spread_new, freedom_new) = spreads
        error_old, error_new = spread_old * (weight**2 / n_old).sum(), spread_new * (weight**2 / n_new).sum()
        variance = error_old + error_new
        freedom = variance**2 / (error_old**2 / freedom_old + error_new**2 / freedom_new)
        clusters = self._scores(stratum, old, new, before - after)
        if len(clusters) > 1:
            scale = (n_old * n_new / (n_old + n_new)).sum() ** 2
            variance = max(variance, (clusters**2).sum() / scale * len(clusters) / (len(clusters) - 1))
        error = math.sqrt(variance)
        if before - after - float(stdtrit(freedom, ndtr(critical))) * error <= max_fall:
            return None
        return Fall(before, after, error, int(n_new.sum()), len(clusters))

    def _scores(self, stratum: Ids, old: Numbers, new: Numbers, fall: float) -> Numbers:
        """Of each client: Σ (x - x̄)(residual), x = 1 on the new version."""
        everything = old + new
        mean = (everything[1] / everything[0])[stratum]
        share = (new[0] / everything[0])[stratum]
        on_new = self.new[1] - self.new[0] * (mean - fall * (1 - share))
        on_old = self.old[1] - self.old[0] * (mean + fall * share)
        return _per(_numbered(self.client), (1 - share) * on_new - share * on_old)

    def _where(self, rows: NDArray[np.bool_]) -> "Samples":
        return Samples(self.stratum[rows], self.client[rows], self.old[:, rows], self.new[:, rows])


def judge(samples: Samples, looks_done: int, config: WatchdogConfig) -> Judgement:
    """Look if one of the planned looks is due that was not done, and say what it found.

    A client's requests of one kind are compared with its own of before. Where clients seldom come again,
    requests of one kind are, whosever they are. A fall must stand without any one of the clients, unless all
    others together send next to nothing; so the requests are counted without the client that sent most.
    """
    planned = looks(config.min_requests, config.max_requests)
    if not len(samples.client):
        return Judgement(looks_done)
    alone = samples.is_of_one_client(config.max_requests)
    matched, comparable = samples.by_client_and_kind(), samples.by_kind()
    enough = MATCHED_SHARE * comparable.requests(alone)
    chosen = matched if matched.requests(alone) >= enough else comparable
    due = sum(look <= chosen.requests(alone) for look in planned)
    if due <= looks_done:
        return Judgement(looks_done)
    critical = CRITICAL[len(planned) - 1]
    fall = chosen.fall(critical, config.max_fall)
    if fall is not None and not alone:
        stands = all(chosen.without(c).fall(critical, config.max_fall) for c in chosen.largest_clients())
        fall = fall if stands else None
    return Judgement(due, fall)


def looks(first: int, last: int) -> list[int]:
    """Numbers of requests at which to look: `first`, each half as many again, and `last`; at most 8."""
    factor = max(LOOK_FACTOR, (last / first) ** (1 / (len(CRITICAL) - 1)))
    found = [first]
    while found[-1] * factor < last:
        found.append(math.ceil(found[-1] * factor))
    return found if found[-1] == last else [*found, last]


def _spreads(old: Numbers, new: Numbers) -> list[tuple[float, float]] | None:
    """Variance within strata and its degrees of freedom, of old and of new requests; None if nobody can tell."""
    squares = [float(np.maximum(side[2] - side[1] ** 2 / side[0], 0).sum()) for side in (old, new)]
    freedom = [float((side[0] - 1).sum()) for side in (old, new)]
    if not sum(freedom):
        return None
    both = max(sum(squares) / sum(freedom), LEAST_VARIANCE)
    return [
        ((square + PRIOR_REQUESTS * both) / (own + PRIOR_REQUESTS), min(own + PRIOR_REQUESTS, sum(freedom)))
        for square, own in zip(squares, freedom, strict=True)
    ]


def _sums(evidence: Evidence, keys: list[tuple[str, str]]) -> Numbers:
    tallies = [evidence.get(key, Tally()) for key in keys]
    return np.array([[t.requests, t.total, t.squares] for t in tallies], dtype=float).reshape(-1, 3).T


def _numbered(names: Sequence[str] | Ids) -> Ids:
    return np.unique(names, return_inverse=True)[1]


def _per(ids: Ids, values: Numbers) -> Numbers:
    """Sums of `values` [N] by id."""
    return np.bincount(ids, values).astype(np.float64)
