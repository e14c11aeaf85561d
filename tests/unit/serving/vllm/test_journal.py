"""Whatever number of workers there is, all that they tell is heard once, and nothing of it piles up."""

from pathlib import Path
from typing import Any

import pytest

from hotdraft.serving.vllm import journal
from hotdraft.serving.vllm.journal import Journal, JournalFollower, engine_names, engine_of, worker_name
from tests.unit.serving.vllm.fakes import parallel_config


def test_every_workers_events_are_heard_once_and_in_their_order(tmp_path: Path) -> None:
    one, other, follower = Journal(tmp_path, "one"), Journal(tmp_path, "other"), JournalFollower(tmp_path)
    one.tell("staged", version=1)
    other.tell("not_staged", version=1, why="no memory")
    one.tell("swapped", version=1)
    heard = list(follower.news())
    assert [event["event"] for event in heard if event["worker"] == "one"] == ["staged", "swapped"]
    assert [event["why"] for event in heard if event["worker"] == "other"] == ["no memory"]
    assert list(follower.news()) == []


def test_a_line_that_is_being_written_comes_when_it_is_whole(tmp_path: Path) -> None:
    follower = JournalFollower(tmp_path)
    path = tmp_path / "w.000001.jsonl"
    path.write_text('{"event": "sta')
    assert list(follower.news()) == []
    path.write_text('{"event": "staged"}\n')
    assert list(follower.news()) == [{"event": "staged"}]


def test_a_broken_line_costs_no_other(tmp_path: Path) -> None:
    follower = JournalFollower(tmp_path)
    (tmp_path / "w.000001.jsonl").write_text('{"event": "a"}\n{"event": "b{"event": "c"}\n{"event": "d"}\n')
    assert [event["event"] for event in follower.news()] == ["a", "d"]
    assert follower.broken == 1


def test_segments_that_were_read_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "SEGMENT_BYTES", 200)
    writer, follower = Journal(tmp_path, "w"), JournalFollower(tmp_path)
    for number in range(50):
        writer.tell("finished", number=number)
    assert [event["number"] for event in follower.news()] == list(range(50))
    assert len(list(tmp_path.iterdir())) == 1
    writer.tell("finished", number=50)
    assert [event["number"] for event in follower.news()] == [50]


def test_what_earlier_workers_told_is_forgotten(tmp_path: Path) -> None:
    Journal(tmp_path, "w").tell("swapped", version=3)
    follower = JournalFollower(tmp_path)
    follower.clear()
    assert list(follower.news()) == []
    Journal(tmp_path, "w").tell("attached")
    assert [event["event"] for event in follower.news()] == ["attached"]


def test_a_full_disk_costs_lines_and_raises_nothing(tmp_path: Path) -> None:
    (tmp_path / "w.000001.jsonl").symlink_to("/dev/full")
    writer = Journal(tmp_path, "w")
    writer.tell("finished")
    assert writer.lost == 1


def test_a_segment_that_cannot_be_begun_for_a_while_costs_nothing_that_is_told_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "SEGMENT_BYTES", 1)
    folder = tmp_path / "journal"
    writer, follower = Journal(folder, "w"), JournalFollower(folder)
    folder.rename(tmp_path / "away")
    writer.tell("staged")
    (tmp_path / "away").rename(folder)
    writer.tell("swapped")
    assert [event["event"] for event in follower.news()] == ["staged", "swapped"]


@pytest.mark.parametrize(
    ("told", "names"),
    [
        ({"data_parallel_size": 2}, ["engine0", "engine1"]),
        ({"data_parallel_size": 4, "data_parallel_size_local": 0}, ["engine0", "engine1", "engine2", "engine3"]),
        ({"data_parallel_size": 4, "data_parallel_index": 3, "data_parallel_external_lb": True}, ["engine3"]),
        (
            {
                "data_parallel_size": 4,
                "data_parallel_size_local": 2,
                "data_parallel_index": 2,
                "data_parallel_hybrid_lb": True,
            },
            ["engine2", "engine3"],
        ),
    ],
)
def test_a_front_end_knows_which_engines_it_has(told: dict[str, Any], names: list[str]) -> None:
    parallel = parallel_config(**told)
    assert engine_names(parallel) == names
    assert engine_of(worker_name(parallel, 1, 2)) == names[0]
