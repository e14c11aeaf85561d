"""What following the adapter registry costs a server, by the number of versions in it.

    python -m tests.benchmarks.operating.bench_registry

A poll is what `serving.updates.adapter_sync` asks each second while nothing changes, and the news, of newly
refused versions, every few; a listing of all versions, which it once asked as well, stands beside them. The store
is a local SQLite file, whose queries hold the decoder's GIL.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.store.adapter_version import CANDIDATE, REJECTED, RETIRED
from hotdraft.pipeline.store.connection import open_client
from hotdraft.pipeline.store.registry import AdapterRegistry

TAGS = {"parent": "0", "gain": "0.01", "gain_low": "0.00", "candidate_expected_acceptance": "0.5", "reason": "gate"}
REPEATS = 5


def main(versions: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = HotdraftConfig(target="tiny", run_dir=Path(folder))
        client, name = open_client(config), config.tracking.registered_model
        registry = AdapterRegistry(config)
        registry.champion()
        made = 0
        print(f"{'versions':>8}  {'poll':>9}  {'news':>9}  {'refused':>9}  {'all':>9}")
        for wanted in versions:
            for number in range(made, wanted):
                status = (REJECTED, RETIRED)[number % 2]
                client.create_model_version(name, f"/adapters/{number}", tags={**TAGS, "status": status})
            made = wanted
            client.set_registered_model_alias(name, CANDIDATE, "1")
            registry.promote(1, reason="benchmark")
            news = partial(registry.refused, after=wanted)
            calls = (registry.champion, news, registry.refused, registry.versions)
            spent = [milliseconds(call) for call in calls]
            print(f"{wanted:8}  " + "  ".join(f"{figure:6.1f} ms" for figure in spent))


def milliseconds(call: Callable[[], object]) -> float:
    """Of CPU time: the median of `REPEATS` calls after one."""
    call()
    times = []
    for _ in range(REPEATS):
        began = time.process_time()
        call()
        times.append(1000 * (time.process_time() - began))
    return statistics.median(times)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--versions", type=int, nargs="+", default=[10, 100, 1000])
    main(parser.parse_args().versions)
