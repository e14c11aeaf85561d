"""SIGKILL of server and trainer at random moments under load, and what it cost.

python -m tests.benchmarks.operating.bench_kills --config my-small-pair.yaml --kills 200 --out kills.json
"""

import argparse
import json
from pathlib import Path

from tests.scenarios.kills import kill_at_random


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    arguments = parser.parse_args()
    toll = kill_at_random(arguments.config, arguments.kills, arguments.seed, cold=True)
    report = json.dumps({**vars(toll), "kills": dict(toll.kills)}, indent=2)
    print(report)
    if arguments.out is not None:
        arguments.out.write_text(report + "\n")


if __name__ == "__main__":
    main()
