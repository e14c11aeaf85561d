"""The run directory and the disk under it: writable, with room, readable by its owner alone."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from hotdraft.doctor.finding import Finding, ok, problem, warning
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.system.disk import free_bytes, free_files, nearest_folder, recorded_bytes

MIN_FREE_BYTES = 1_000_000_000
"""What checkpoints of a job, adapters and logs may need beside the replay buffer."""
MIN_FREE_FILES = 1000


def examine_run_dir(config: HotdraftConfig) -> Iterator[Finding]:
    place = [*examine_place(config)]
    yield from place or [*_room(config), *_privacy(config), *_owners(config)]


def examine_place(config: HotdraftConfig) -> Iterator[Finding]:
    """What is wrong with it, a full disk left out: that keeps no server from serving."""
    place = nearest_folder(config.run_dir)
    around = (Path(config.replay_url), Path(config.artifact_root), config.run_dir, *config.run_dir.parents)
    if lost := next((path for path in around if path.is_symlink() and not path.exists()), None):
        says = f"{lost} leads to {lost.readlink()}, which is not there"
        yield problem("run_dir", says, "mount or make that folder, or set `run_dir:` to another")
    elif not place.is_dir():
        yield problem("run_dir", f"{place} is no folder", "set `run_dir:` to one that is, or is to be made")
    elif not os.access(place, os.W_OK | os.X_OK):
        mend = f"`chown` {place} to the user that serves, or set `run_dir:` to a folder that it owns"
        yield problem("run_dir", f"{config.run_dir} cannot be written", mend)


def _room(config: HotdraftConfig) -> Iterator[Finding]:
    free = free_bytes(config.run_dir)
    says = f"{config.run_dir}, {free / 1e9:.1f} GB free"
    held = recorded_bytes(config)
    needed = MIN_FREE_BYTES + config.replay.max_bytes - held
    if (files := free_files(config.run_dir)) < MIN_FREE_FILES:
        mend = "delete files of that disk, small ones too: `df -i` tells how many it has"
        yield problem("run_dir", f"{says}, and room for {files} more files", mend)
    elif free < MIN_FREE_BYTES:
        yield problem("run_dir", says, f"free some space: a job needs up to {MIN_FREE_BYTES / 1e9:g} GB")
    elif free < needed and config.replay.url is None:
        mend = f"free some space, or set `replay: {{max_bytes: {held + int(free) - MIN_FREE_BYTES}}}`"
        yield warning(
            "run_dir", f"{says}, and the replay buffer and jobs may take {needed / 1e9:.1f} GB more", mend
        )
    else:
        yield ok("run_dir", says)


def _privacy(config: HotdraftConfig) -> Iterator[Finding]:
    """What was made before hotdraft kept its files to their owner, or made so by somebody else."""
    if not config.run_dir.is_dir() or not _is_open(config.run_dir):
        return
    inside = [config.run_dir / "replay", config.run_dir / "mlflow.db"]
    if read := [path for path in inside if path.exists() and _is_open(path)]:
        says = f"other users of this machine can read recorded prompts in {' and '.join(map(str, read))}"
        yield warning("run_dir", says, f"`chmod -R go-rwx {config.run_dir}`")


def _owners(config: HotdraftConfig) -> Iterator[Finding]:
    """What a command made that was run as another user: with a lock of root's no job begins."""
    # what goes meanwhile is passed over, as by `rglob` it is not
    inside = (Path(root, name) for root, *names in os.walk(config.run_dir) for name in (*names[0], *names[1]))
    if closed := sorted(filter(_is_closed, inside)):
        says = f"this user may not write {closed[0]}" + (f" and {len(closed) - 1} more" if len(closed) > 1 else "")
        mend = f"`chown -R` {config.run_dir} to the user that serves, and run commands as that user"
        yield problem("run_dir", says, mend)


def _is_closed(path: Path) -> bool:
    """Whether it is there, and this user may not write it."""
    return not os.access(path, os.W_OK) and path.exists()


def _is_open(path: Path) -> bool:
    return bool(path.stat().st_mode & (stat.S_IROTH | stat.S_IXOTH))
