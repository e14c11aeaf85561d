"""What stays of the past once shards are deleted: a fair sample of each domain's requests.

Of each domain those requests stay whose ids have the smallest digests (bottom-k sampling: Cohen and Kaplan, 2007).
That is a uniform sample of all that were ever offered, whatever their order and number; to offer a request
again, or two reservoirs to one another, changes nothing, and nothing needs to be counted.
"""

import hashlib

import numpy as np
import pyarrow as pa

MAX_DOMAINS = 32
"""Domains with a sample of their own; clients choose their names. All others share one."""


def lots(request_ids: list[str]) -> np.ndarray:
    """uint64 [R]: as good as drawn at random, and the same for a request in every process."""
    digests = b"".join(hashlib.blake2b(name.encode(), digest_size=8).digest() for name in request_ids)
    return np.frombuffer(digests, np.uint64)


def kept(index: pa.Table, held: int, capacity: int, max_requests: int) -> np.ndarray:
    """Rows of `index` that stay, ascending; the first `held` of them were in the reservoir, all others are offered.

    Of each domain at most `capacity`, and no more than `max_requests` in all: the largest domains give up first. Of
    a request that is there twice the first counts.
    """
    ids = index["request_id"].to_pylist()
    if not ids:
        return np.empty(0, np.int64)
    domains = index["domain"].combine_chunks().dictionary_encode()
    strata = _strata(domains.indices.to_numpy(), held, capacity)
    first = np.zeros(len(ids), bool)
    first[list({name: row for row, name in reversed([*enumerate(ids)])}.values())] = True
    lot = lots(ids)
    order = np.lexsort((lot, strata))
    order = order[first[order]]
    rank = np.arange(len(order)) - np.searchsorted(strata[order], strata[order])
    order, rank = order[rank < capacity], rank[rank < capacity]
    return np.sort(order[np.lexsort((lot[order], rank))[:max_requests]])


def _strata(domains: np.ndarray, held: int, capacity: int) -> np.ndarray:
    """[R]: which sample each row belongs to. The largest domains have their own; of equals, those held already."""
    counts = np.minimum(np.bincount(domains), capacity)
    count_held = np.bincount(domains[:held], minlength=len(counts))
    largest = np.lexsort((-count_held, -counts))
    number = np.full(len(counts), MAX_DOMAINS)
    number[largest[:MAX_DOMAINS]] = np.arange(min(MAX_DOMAINS, len(counts)))
    return number[domains]
