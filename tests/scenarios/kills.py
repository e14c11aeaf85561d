"""SIGKILL of server and trainer at random moments, and what must hold after each."""

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from mlflow.exceptions import MlflowException
from safetensors.torch import load_file

from hotdraft.pipeline.config.settings import HotdraftConfig, load_config
from hotdraft.pipeline.models.adapter_folder import CARD_FILE, PROBE_FILE, WEIGHTS_FILE, AdapterError, read_card
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.store.adapter_version import CHAMPION
from hotdraft.pipeline.store.errors import RegistryError
from hotdraft.pipeline.store.registry import AdapterRegistry
from tests.integration.processes import Server, Trickle, is_running, kill, wait_for

LONGEST_CALM = 3.0
"""Seconds from a moment to the kill, at most."""
JOB_SECONDS = 180.0
VICTIMS = (("server",), ("trainer",), ("trainer", "server"))
"""Both in turn, with `BETWEEN` seconds at most."""
BETWEEN = 0.3
WORK = "????????-??????-??????"
"""In the folder of jobs, what one is at work at."""
MOMENTS = {"at any time": None, "in a job": WORK, "at its verdict": f"{WORK}/judged.json"}
"""What is waited for before the calm, by what in the folder of jobs says so."""


@dataclass
class Toll:
    """What was killed, and what it cost: all but `kills` should stay 0."""

    kills: Counter[str] = field(default_factory=Counter)
    lost_samples: int = 0
    """Committed once, and not there after a kill."""
    set_aside: int = 0
    """Files that a kill left in the replay buffer and that are no shards."""
    half_published: int = 0
    """Versions in the registry without all of their files."""
    champion_not_served: int = 0
    """Restarts after which something else than the champion served."""
    versions: int = 0
    """In the registry: how much there was to break."""
    samples: int = 0
    """Likewise, in the replay buffer."""


def kill_at_random(
    config_path: Path, kills: int, seed: int, tell: Callable[[str], None] = print, *, cold: bool = False
) -> Toll:
    """Serve with the loop on, ask without a pause, and kill server, trainer or one after the other `kills` times.

    Two of three kills come while a job is under way or is being published, where there is most to break. For `cold`
    see `Server`.
    """
    config = load_config(config_path)
    chance, toll, known = random.Random(seed), Toll(), set[str]()
    server, first = Server(config_path, _log(config_path), "--self-improve", cold=cold), 0
    try:
        while toll.kills.total() < kills:
            victims, moment = chance.choice(VICTIMS), chance.choice(list(MOMENTS))
            with Trickle(server, first) as one, Trickle(server, first + 500_000) as other:
                _await(config, MOMENTS[moment])
                time.sleep(chance.uniform(0, LONGEST_CALM if moment == "at any time" else 0.5))
                known |= set(request_ids(config))
                trainer = server.trainer_pid()
                if "trainer" in victims:
                    if trainer is None:
                        continue
                    kill(trainer)
                    time.sleep(chance.uniform(0, BETWEEN))
                if "server" in victims:
                    server.kill()
            toll.kills.update(f"{victim}, {moment}" for victim in victims)
            first += len(one.answers) + len(other.answers)
            if "server" in victims:
                if trainer is not None:
                    wait_for("the trainer's end", lambda pid=trainer: not is_running(pid))  # type: ignore[misc]
                server = Server(config_path, _log(config_path), "--self-improve", cold=cold)
                toll.champion_not_served += server.draft_version != AdapterRegistry(config).champion()
            else:
                assert not [*one.failures, *other.failures], "serving outlives its trainer"
            _examine(config, known, toll)
            tell(f"{toll.kills.total()} of {kills}: {' and '.join(victims)} {moment}; {toll}")
    finally:
        server.kill()
    return toll


def _await(config: HotdraftConfig, sign: str | None) -> None:
    if sign is not None:
        wait_for(sign, lambda: list((config.run_dir / "jobs").glob(sign)), JOB_SECONDS)


def request_ids(config: HotdraftConfig) -> list[str]:
    """Of the committed samples."""
    return list(ReplayBuffer(config.replay_url).load()["request_id"])


def _examine(config: HotdraftConfig, known: set[str], toll: Toll) -> None:
    there = request_ids(config)
    assert len(there) == len(set(there)), "no sample is there twice"
    toll.lost_samples += len(known - set(there))
    known |= set(there)
    toll.set_aside = sum(1 for _ in Path(config.replay_url).glob("quarantine/*"))
    registry = AdapterRegistry(config)
    versions = registry.versions()
    toll.versions, toll.samples = len(versions), len(known)
    toll.half_published = sum(not _is_whole(registry, version.version) for version in versions)
    assert sum(CHAMPION in version.aliases for version in versions) <= 1


def _is_whole(registry: AdapterRegistry, version: int) -> bool:
    try:
        folder = registry.download(version)
        read_card(folder)
        return (
            all(load_file(folder / name) for name in (WEIGHTS_FILE, PROBE_FILE)) and (folder / CARD_FILE).is_file()
        )
    except (AdapterError, RegistryError, MlflowException, OSError):
        return False


def _log(config_path: Path) -> Path:
    return config_path.with_name("server.log")
