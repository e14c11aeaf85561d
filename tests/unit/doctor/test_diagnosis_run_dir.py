"""What `hotdraft doctor` says of the run folder: room, owners, links that lead nowhere."""

import math
import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from hotdraft.doctor import preflight, run_dir
from hotdraft.doctor.run_dir import examine_run_dir
from hotdraft.pipeline.system.disk import free_files
from tests.unit.doctor.test_diagnosis_stores import config_of, only


def test_recorded_prompts_that_other_users_can_read_are_told_of(tmp_path):
    settings = config_of(tmp_path)
    replay = settings.run_dir / "replay"
    replay.mkdir(parents=True, mode=0o755)
    [_, found] = examine_run_dir(settings)
    assert (found.state, str(replay) in found.says) == ("warning", True)
    settings.run_dir.chmod(0o700)
    assert only(examine_run_dir(settings)).about == "run_dir"


def test_a_full_disk_keeps_no_server_from_starting(tmp_path, monkeypatch):
    monkeypatch.setattr(run_dir, "free_bytes", lambda _: 0)
    monkeypatch.setattr(preflight, "examine_configured", lambda _: ())
    preflight.check_ready_to_serve(config_of(tmp_path, server={"port": 0}))


def test_room_on_the_disk(tmp_path, monkeypatch):
    settings = config_of(tmp_path)
    for free, state in ((10**11, "ok"), (2 * 10**9, "warning"), (10**8, "problem")):
        monkeypatch.setattr(run_dir, "free_bytes", lambda _, free=free: free)
        assert only(examine_run_dir(settings)).state == state
    monkeypatch.setattr(run_dir, "free_bytes", lambda _: 2 * 10**9)  # enough where the buffer is elsewhere
    assert only(examine_run_dir(config_of(tmp_path, replay={"url": "s3://bucket/replay"}))).state == "ok"


def test_a_disk_that_takes_no_more_files_is_full_whatever_its_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(run_dir, "free_files", lambda _: 12)
    found = only(examine_run_dir(config_of(tmp_path)))
    assert (found.state, "and room for 12 more files" in found.says) == ("problem", True)
    assert "df -i" in (found.mend or "")


@pytest.mark.parametrize(("files", "left", "free"), [(100, 7, 7), (0, 0, math.inf)])
def test_how_many_more_files_a_disk_can_have(tmp_path, monkeypatch, files, left, free):
    monkeypatch.setattr(os, "statvfs", lambda _: Mock(f_files=files, f_favail=left))
    assert free_files(tmp_path / "not" / "made") == free


def test_what_is_advised_deletes_nothing_that_was_recorded(tmp_path, monkeypatch):
    settings = config_of(tmp_path, replay={"max_bytes": 10**10})
    monkeypatch.setattr(run_dir, "free_bytes", lambda _: 2 * 10**9)
    monkeypatch.setattr(run_dir, "recorded_bytes", lambda _: 5 * 10**9)
    assert "max_bytes: 6000000000" in only(examine_run_dir(settings)).mend
    monkeypatch.setattr(run_dir, "recorded_bytes", lambda _: settings.replay.max_bytes - 10**8)
    assert only(examine_run_dir(settings)).state == "ok", "most of what the buffer may take is taken"


def test_a_run_dir_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    assert only(examine_run_dir(config_of(tmp_path, run_dir=tmp_path / "file" / "run"))).state == "problem"


def test_a_link_to_a_disk_that_is_not_mounted_is_named(tmp_path):
    (tmp_path / "runs").symlink_to(tmp_path / "mnt")
    found = only(examine_run_dir(config_of(tmp_path, run_dir=tmp_path / "runs" / "smollm2")))
    assert (found.state, found.says) == ("problem", f"{tmp_path}/runs leads to {tmp_path}/mnt, which is not there")
    (tmp_path / "mnt").mkdir()
    assert only(examine_run_dir(config_of(tmp_path, run_dir=tmp_path / "runs" / "smollm2"))).state == "ok"


@pytest.mark.parametrize("name", ["replay", "mlartifacts"])
def test_a_link_within_the_run_dir_to_a_disk_that_is_not_mounted_is_named(tmp_path, name):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(tmp_path / "mnt")
    found = only(examine_run_dir(config_of(tmp_path)))
    assert (found.state, f"{name} leads to {tmp_path}/mnt, which is not there" in found.says) == ("problem", True)


def test_what_a_command_of_another_user_left_in_the_run_dir_is_named(tmp_path, monkeypatch):
    lock = tmp_path / "run" / "jobs" / "records" / ".begin"
    lock.parent.mkdir(parents=True)
    lock.touch()
    assert only(examine_run_dir(config_of(tmp_path))).state == "ok"
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name not in (".begin", "gone"))
    (lock.parent / "gone").symlink_to("nowhere")
    _, found = examine_run_dir(config_of(tmp_path))
    assert (found.state, found.says) == ("problem", f"this user may not write {lock}")
