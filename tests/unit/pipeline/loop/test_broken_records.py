"""Records of jobs that cannot be read: passed over, told once, and no longer than they are there."""

import json

import pytest

from hotdraft.pipeline.loop.jobs import JobRecords, UnknownJobError


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"id": "x"}', b"[" * 100_000, None,
        b'{"id": "ID", "origin": "loop", "state": "accepted", "started_at": "yesterday"}',
        b'{"id": "ID", "origin": "loop", "state": "paused", "started_at": 1.0}',
        b'{"id": "ID", "origin": "loop", "state": "accepted", "started_at": 1e300}',
        b'{"id": "ID", "origin": "loop", "state": "accepted", "started_at": 1.0, "ended_at": NaN}',
        b'{"id": "../other", "origin": "loop", "state": "running", "started_at": 1.0}',
    ],
    ids=lambda content: repr(content)[:40],
)  # fmt: skip
def test_a_broken_record_is_passed_over_and_told_once(records, tmp_path, caplog, content):
    sound = records.begin("loop")
    path = tmp_path / "jobs" / "records" / "20260101-000000-aaaaaa.json"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content.replace(b"ID", path.stem.encode()))
    for _ in range(3):
        assert [job.id for job in records.jobs()] == [sound.id]
    with pytest.raises(UnknownJobError):
        records.get(path.stem)
    assert [str(path) in record.message for record in caplog.records] == [True]
    assert [str(path) in says for says in JobRecords(tmp_path).broken()] == [True]
    assert records.running() == sound.job


def test_a_broken_record_that_was_mended_or_deleted_is_told_of_no_more(records, tmp_path, caplog):
    for name in ("mended", "deleted"):
        records.begin("loop").end("rejected", name)
    paths = {job.reason: tmp_path / "jobs" / "records" / f"{job.id}.json" for job in records.jobs()}
    sound, watching = paths["mended"].read_bytes(), JobRecords(tmp_path)
    for path in paths.values():
        path.write_text("{")
    assert len(watching.broken()) == 2
    paths["mended"].write_bytes(sound)
    paths["deleted"].unlink()
    assert watching.broken() == []
    assert [job.reason for job in watching.jobs()] == ["mended"]
    paths["deleted"].write_text("{")
    assert len(watching.broken()) == 1
    assert len(caplog.messages) == 3, "what breaks anew is told anew"


def test_a_record_of_a_later_version_is_read_by_what_is_known_of_it(records, tmp_path):
    job = records.begin("loop")
    path = tmp_path / "jobs" / "records" / f"{job.id}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"mood": "good"}))
    assert records.get(job.id) == job.job


def test_a_record_that_cannot_be_read_is_passed_over(records, caplog, tmp_path):
    job = records.begin("loop")
    job.end("rejected", "worse")
    folder = tmp_path / "jobs" / "records"
    (folder / "half.json").write_text('{"id": "ha')
    (folder / "other.json").write_text(json.dumps({"id": "other"}))
    assert [job.id for job in records.jobs()] == [job.id]
    assert "half.json is broken" in caplog.text
    with pytest.raises(UnknownJobError):
        records.get("half")
