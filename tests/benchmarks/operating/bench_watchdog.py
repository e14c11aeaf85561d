"""How often the watchdog undoes a swap, over simulated servers.

    python -m tests.benchmarks.operating.bench_watchdog

A request's acceptance is drawn from a beta distribution about a mean of its domain (0.35 to 0.75), client,
client in the domain and length. Clients send different shares of the requests, and each prefers some domains.
"""

import argparse
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hotdraft.pipeline.config.learning import WatchdogConfig
from hotdraft.pipeline.watch.watchdog import Samples, judge, looks

REPLICAS = (1, 5, 10, 50)
DOMAINS = (1, 4, 16, 32)
FALLS = (0.05, 0.1, 0.2, 0.3)
LENGTHS = 2


@dataclass(frozen=True)
class Traffic:
    replicas: int = 1
    domains: int = 1
    clients: int = 1
    fall: float = 0.0
    """Of every request's mean, with the swap."""
    spread: float = 0.22
    """Standard deviation of a request's rate."""
    new_spread: float | None = None
    """On the new version, if another."""
    of_clients: float = 0.08
    """Standard deviation of the clients' effects."""
    hostile: float = 0.0
    """Share of the requests that one client sends: easy ones before the swap, hard ones after."""
    only_before: bool = False
    """Whether that client sends before the swap only."""
    clients_change: bool = False
    """Whether one half of the clients sends before the swap and the other half after."""
    mix_changes: bool = False
    """Whether domains and lengths have other shares after the swap."""
    before: int = 60
    """Requests of each server before the swap."""
    a_second: int = 4
    """Requests of each server between two looks at the registry."""


def undone_after(traffic: Traffic, swaps: int, seed: int = 0, config: WatchdogConfig | None = None) -> list[int]:
    """Pooled requests after which each of `swaps` was undone, of those that were."""
    generator = np.random.default_rng(seed)
    ends = [_Swap(traffic, generator).undone_after(config or WatchdogConfig()) for _ in range(swaps)]
    return [end for end in ends if end is not None]


class _Swap:
    def __init__(self, traffic: Traffic, generator: np.random.Generator) -> None:
        self._traffic, self._generator = traffic, generator
        domains, clients = traffic.domains, traffic.clients
        self._mean = (
            generator.uniform(0.35, 0.75, (1, domains, 1))
            + generator.normal(0, traffic.of_clients, (clients, 1, 1))
            + generator.normal(0, 0.05, (clients, domains, 1))
            + generator.normal(0, 0.05, (1, domains, LENGTHS))
        )
        self._shape = self._mean.shape
        self._old, self._new = self._shares(), self._shares()
        if not traffic.mix_changes:
            self._new = self._old
        if traffic.clients_change:
            self._old, self._new = (_only(s, half) for s, half in ((self._old, 0), (self._new, 1)))
        if traffic.only_before:
            self._new = self._new * (np.arange(clients) > 0)[:, None, None]

    def undone_after(self, config: WatchdogConfig) -> int | None:
        traffic, planned = self._traffic, looks(config.min_requests, config.max_requests)
        old = self._serve(traffic.before * traffic.replicas, self._old, new=False)
        new, done, sent = np.zeros_like(old), 0, 0
        while done < len(planned) and sent < 20 * config.max_requests * traffic.replicas:
            new += self._serve(traffic.a_second * traffic.replicas, self._new, new=True)
            sent += traffic.a_second * traffic.replicas
            verdict = judge(self._samples(old, new), done, config)
            done = verdict.looks
            if verdict.fall is not None:
                return sent
        return None

    def _shares(self) -> NDArray[np.float64]:
        """Of each client, domain and length in the requests."""
        generator, (clients, domains, lengths) = self._generator, self._shape
        by_client = generator.dirichlet(np.ones(clients))
        if self._traffic.hostile:
            rest = generator.dirichlet(np.full(clients - 1, 2.0))
            by_client = np.r_[self._traffic.hostile, (1 - self._traffic.hostile) * rest]
        by_domain = generator.dirichlet(np.ones(domains), clients)
        by_length = generator.dirichlet(np.full(lengths, 2.0), (clients, domains))
        return by_client[:, None, None] * by_domain[:, :, None] * by_length

    def _serve(self, requests: int, shares: NDArray[np.float64], *, new: bool) -> NDArray[np.float64]:
        """[3, clients x domains x lengths]: requests, sums and sums of squares of their rates."""
        traffic, generator, size = self._traffic, self._generator, self._mean.size
        shares = shares.ravel() / shares.sum()
        key = generator.choice(size, requests, p=shares)
        mean = self._mean.ravel()[key] - (traffic.fall if new else 0.0)
        if traffic.hostile:
            mean = np.where(key < size // traffic.clients, 0.1 if new else 0.9, mean)
        mean = mean.clip(0.03, 0.97)
        spread = traffic.new_spread if new and traffic.new_spread is not None else traffic.spread
        count = np.maximum(mean * (1 - mean) / spread**2 - 1, 0.5)
        rates = generator.beta(mean * count, (1 - mean) * count)
        return np.stack([np.bincount(key, weights, size) for weights in (np.ones(requests), rates, rates**2)])

    def _samples(self, old: NDArray[np.float64], new: NDArray[np.float64]) -> Samples:
        rows = np.flatnonzero(old[0] + new[0])
        client, kind = np.divmod(rows, self._mean.size // self._traffic.clients)
        return Samples(kind, client, old[:, rows], new[:, rows])


def _only(shares: NDArray[np.float64], half: int) -> NDArray[np.float64]:
    return shares * (np.arange(len(shares)) % 2 == half)[:, None, None]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--swaps", type=int, default=1000)
    swaps = parser.parse_args().swaps
    print(f"false alarms in {swaps} swaps to an equal draft, by servers (down) and domains (across)")
    for clients in (1, 3, 12):
        print(f"{clients} clients: {DOMAINS}")
        for replicas in REPLICAS:
            rates = [len(undone_after(Traffic(replicas, domains, clients), swaps)) / swaps for domains in DOMAINS]
            print(f"  {replicas:3}", *(f"{rate:6.1%}" for rate in rates), flush=True)
    print("found, and after how many pooled requests: median, 90 %")
    for replicas in (1, 10):
        for domains in (1, 16):
            for clients in (1, 3, 12):
                traffic = Traffic(replicas, domains, clients)
                found = [undone_after(replace(traffic, fall=fall), swaps) for fall in FALLS]
                cells = [
                    f"{len(ends) / swaps:4.0%} ({np.median(ends):.0f}, {np.quantile(ends, 0.9):.0f})"
                    if ends
                    else "0 %"
                    for ends in found
                ]
                print(f"  {replicas} servers, {domains} domains, {clients} clients:", *cells, flush=True)
    print("false alarms with a client that sends easy requests before and hard ones after, by its share")
    for share in (0.2, 0.5, 0.8):
        rates = [
            len(undone_after(Traffic(replicas, 4, clients, hostile=share), swaps)) / swaps
            for replicas in (1, 10)
            for clients in (2, 4, 8)
        ]
        print(f"  {share:.0%}", *(f"{rate:6.1%}" for rate in rates), flush=True)
    for what, traffic in {
        "another mix, one client": Traffic(domains=4, mix_changes=True),
        "another mix, 10 servers": Traffic(10, 16, 12, mix_changes=True),
        "other clients": Traffic(domains=4, clients=12, clients_change=True),
        "a client that sends before only": Traffic(clients=4, hostile=0.5, only_before=True),
        "a spread of 0.3 instead of 0.12": Traffic(domains=16, spread=0.12, new_spread=0.3),
    }.items():
        print(f"false alarms, {what}: {len(undone_after(traffic, swaps)) / swaps:.1%}", flush=True)


if __name__ == "__main__":
    main()
