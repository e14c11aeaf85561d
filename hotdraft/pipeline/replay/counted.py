"""Which rows count where files hold the same ones: a merge or the reservoir took them, and a crash left both."""

from collections.abc import Sequence

from hotdraft.pipeline.replay.shard import Shard

RESERVOIR = "reservoir"

Ranges = list[tuple[int, int]]


def is_reservoir(name: str) -> bool:
    return name.startswith(RESERVOIR)


def counted(shards: Sequence[Shard]) -> dict[str, Ranges]:
    """Ranges of rows of each shard that count: what was committed together does in the largest file that has it."""
    taken: set[str] = set()
    found: dict[str, Ranges] = {}
    for shard in sorted(
        shards, key=lambda shard: (not is_reservoir(shard.name), -len(shard.origin_names), shard.name)
    ):
        if taken.isdisjoint(shard.origin_names):
            taken.update(shard.origin_names)
            found[shard.name] = [(0, shard.rows)]
            continue
        ranges: Ranges = []
        end = 0
        for origin in shard.origins:
            start, end = end, end + origin.rows
            if origin.name in taken:
                continue
            taken.add(origin.name)
            if ranges and ranges[-1][1] == start:
                ranges[-1] = (ranges[-1][0], end)
            else:
                ranges.append((start, end))
        found[shard.name] = ranges
    return found


def newest_reservoir(names: Sequence[str]) -> list[str]:
    """The one that counts, if any; a crash may leave others. Older versions wrote it without a time."""
    return sorted((name for name in names if is_reservoir(name)), key=lambda name: (name[9] == "-", name))[-1:]
