import os
from pathlib import Path

import pytest

from hotdraft.pipeline.system import resources
from hotdraft.pipeline.system.resources import core_limits, memory_limits, usable_cores


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return tmp_path / "cgroup"


def limit(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


def test_memory_is_limited_by_the_own_control_group_and_all_above_it(tmp_path: Path, own: Path) -> None:
    own.write_text("0::/pod/box\n")
    limit(tmp_path / "pod/box", memory__max="max")
    limit(tmp_path / "pod", memory__max="3000")
    assert list(memory_limits(tmp_path, own)) == [3000]
    own.write_text("4:memory:/job\n3:cpuset:/pod\n")
    limit(tmp_path / "memory/job", memory__limit_in_bytes="2000")
    limit(tmp_path / "memory", memory__limit_in_bytes="9000")
    assert list(memory_limits(tmp_path, own)) == [2000, 9000]
    assert list(memory_limits(tmp_path, tmp_path / "absent")) == []


def test_cores_are_limited_by_a_containers_quota(tmp_path: Path, own: Path) -> None:
    own.write_text("0::/pod/box\n")
    limit(tmp_path / "pod/box", cpu__max="250000 100000")
    limit(tmp_path / "pod", cpu__max="max 100000")
    assert list(core_limits(tmp_path, own)) == [2.5]
    own.write_text("1:cpu,cpuacct:/job\n0::/\n")
    limit(tmp_path / "cpu/job", cpu__cfs_quota_us="50000", cpu__cfs_period_us="100000")
    limit(tmp_path / "cpu", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    assert list(core_limits(tmp_path, own)) == [0.5]
    assert list(core_limits(tmp_path, tmp_path / "absent")) == []


@pytest.mark.parametrize(("granted", "usable"), [([], 8), ([2.5], 2), ([0.5, 4.0], 1), ([64.0], 8)])
def test_part_of_a_core_is_none_but_one_there_always_is(
    granted: list[float], usable: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    monkeypatch.setattr(resources, "core_limits", lambda: iter(granted))
    assert usable_cores() == usable
