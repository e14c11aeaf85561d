"""The figures of one policy on one stream."""

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Result = dict[str, Any]
"""A `StreamResult` as JSON, of one policy and seed, or a `Reached`."""
Results = Mapping[str, Sequence[Result]]
"""By policy, or by ceiling, one for each seed."""

WORTH = 0.05
"""Gain of acceptance that a domain must have in it, for it to be asked when it was served."""
RECOVERED = 0.9
"""Of what could be gained on a domain, that counts as having recovered from its coming."""


def figures(result: Result, reached: Sequence[Result] = ()) -> dict[str, float]:
    """First and last are fifths of the stream; after a shift, of the newest domain.

    With what ceilings `reached` on the same stream, also what the best of them gained, the share of it that was,
    and what was accepted as a share of what would have been with it. `half` and `recovered` count the requests of a
    domain before the first that a version serves which has so much of that gain, in the mean over what was to be
    learned; infinite if none has. `forgotten` is the most that a domain ended under the best it ever had, `worse`
    counts the versions that took service with less than the one before in the mean over all domains.
    """
    served = result["served"]
    shift = is_shift(served)
    newest = served[-1]["domain"]
    part = [request for request in served if request["domain"] == newest] if shift else served
    fifth = -(-len(part) // 5)
    last = part[-fifth:]
    before, after = result["probes_before"], result["probes_after"]
    learned = {newest} if shift else before.keys()
    earlier = before.keys() - learned

    def gain(probes: Mapping[str, float]) -> float:
        return statistics.fmean(probes[domain] - before[domain] for domain in learned)

    seconds = sum(job["seconds"] for job in result["jobs"])
    best = max((one["probes"] for one in reached), key=gain, default=None)
    versions = [before, *(swap["probes"] for swap in result["swaps"])]
    means = [statistics.fmean(probes.values()) for probes in versions]
    found = {
        "first": acceptance_rate(part[:fifth]),
        "last": acceptance_rate(last),
        "gain": gain(after),
        "lost": statistics.fmean(before[domain] - after[domain] for domain in earlier) if earlier else 0.0,
        "forgotten": max(max(probes[domain] for probes in versions) - after[domain] for domain in before),
        "worse": sum(mean < mean_before for mean_before, mean in itertools.pairwise(means)),
        "area": acceptance_rate(served),
        "tokens_per_round": sum(r["tokens"] for r in last) / sum(r["rounds"] for r in last),
        "jobs": len(result["jobs"]),
        "promoted": sum(job["accepted"] for job in result["jobs"]),
        "steps": sum(job["steps"] for job in result["jobs"]),
        "seconds": seconds,
        "point_seconds": seconds / (100 * gain(after)) if gain(after) > 0 else math.inf,
    }
    if best is not None:
        worth = [domain for domain in learned if best[domain] - before[domain] >= WORTH]
        most = sum(request["drafted"] * best[request["domain"]] for request in served)
        found |= {
            "ceiling": gain(best),
            "share": gain(after) / gain(best) if gain(best) else math.nan,
            "area_share": sum(request["accepted"] for request in served) / most,
            "half": _mean(_requests_until(result, best, domain, 0.5) for domain in worth),
            "recovered": _mean(_requests_until(result, best, domain, RECOVERED) for domain in worth),
        }
    return found


def _requests_until(result: Result, best: Mapping[str, float], domain: str, share: float) -> float:
    """Requests of `domain` before the first served by a version with `share` of what `best` gained on it."""
    before = result["probes_before"]
    enough = before[domain] + share * (best[domain] - before[domain])
    has_enough = {0: before[domain] >= enough}
    has_enough |= {swap["version"]: swap["probes"][domain] >= enough for swap in result["swaps"]}
    of_domain = [request for request in result["served"] if request["domain"] == domain]
    found = (place for place, request in enumerate(of_domain) if has_enough[request["draft_version"]])
    return next(found, math.inf)


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return statistics.fmean(found) if found else math.nan


def acceptance_rate(served: Sequence[Result]) -> float:
    """Accepted over drafted tokens, positions after a rejection counted as drafted."""
    return sum(r["accepted"] for r in served) / max(1, sum(r["drafted"] for r in served))


def area_ratios(results: Results, baseline: str | None) -> dict[str, list[float]]:
    """By policy, its area under the acceptance curve over the baseline's, by seed; none without one."""
    if baseline is None or baseline not in results:
        return {}
    under = [acceptance_rate(run["served"]) for run in results[baseline]]
    return {
        name: [acceptance_rate(run["served"]) / area for run, area in zip(runs, under, strict=True)]
        for name, runs in results.items()
        if name != baseline
    }


def starts(served: Sequence[Result]) -> list[int]:
    """Where a run of one domain begins."""
    pairs = itertools.pairwise([None, *(request["domain"] for request in served)])
    return [index for index, (before, domain) in enumerate(pairs) if domain != before]


def is_shift(served: Sequence[Result]) -> bool:
    """Whether domains come one after the other, and not mixed."""
    return len(starts(served)) == len({request["domain"] for request in served})
