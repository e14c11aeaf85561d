"""What stays of the past once shards are deleted: a fair sample of each domain's requests."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

SEEN = b"hotdraft_seen_"
"""Before a domain's name: key of the schema metadata that counts its requests that were ever offered."""


def take_in(reservoir: pa.Table, retired: pa.Table, capacity: int) -> pa.Table:
    """`reservoir` with `retired` rows offered to it: of each domain at most `capacity`, all equally likely to stay.

    Vitter (1985), algorithm R. Rows that the reservoir holds already, by `request_id`, are not offered again.
    The counts that it takes go with the table, as metadata of its schema.
    """
    known = pc.is_in(retired["request_id"], value_set=reservoir["request_id"])
    retired = retired.filter(pc.invert(known))
    seen = _seen(reservoir)
    places: dict[str, list[int]] = {}
    everything = pa.concat_tables([reservoir.replace_schema_metadata(None), retired])
    domains = everything["domain"].to_pylist()
    for row, domain in enumerate(domains[: len(reservoir)]):
        places.setdefault(domain, []).append(row)
    generator = np.random.default_rng(sum(seen.values()))
    for row in range(len(reservoir), len(everything)):
        held = places.setdefault(domains[row], [])
        seen[domains[row]] += 1
        if len(held) < capacity:
            held.append(row)
        elif (place := int(generator.integers(seen[domains[row]]))) < capacity:
            held[place] = row
    kept = everything.take(sorted(row for held in places.values() for row in held))
    return kept.replace_schema_metadata({SEEN + name.encode(): str(count) for name, count in seen.items()})


def _seen(reservoir: pa.Table) -> Counter[str]:
    metadata = reservoir.schema.metadata or {}
    return Counter(
        {key.removeprefix(SEEN).decode(): int(value) for key, value in metadata.items() if key.startswith(SEEN)}
    )
