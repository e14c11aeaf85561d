"""What the trainer waits for, as it is told to whoever asks."""

from pathlib import Path

import pytest

from hotdraft.pipeline.loop.next_job import NextJobFile


def test_what_is_waited_for_is_read_by_others_and_written_where_it_is_news(tmp_path: Path) -> None:
    trainer, server = NextJobFile(tmp_path), NextJobFile(tmp_path)
    assert server.read() is None, "no trainer has said anything"
    trainer.tell("waiting: 3 of 8 new requests")
    assert server.read() == "waiting: 3 of 8 new requests"
    (tmp_path / "next_job.json").unlink()
    trainer.tell("waiting: 3 of 8 new requests")
    assert server.read() is None, "a trainer asks each second, and a disk is not to be written to as often"
    trainer.tell("waiting: 4 of 8 new requests")
    assert server.read() == "waiting: 4 of 8 new requests"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"says": 3}', b"\xff"], ids=repr)
def test_a_broken_file_says_nothing_until_there_is_news(tmp_path: Path, content: bytes) -> None:
    trainer = NextJobFile(tmp_path)
    trainer.tell("waiting")
    (tmp_path / "next_job.json").write_bytes(content)
    assert NextJobFile(tmp_path).read() is None
    trainer.tell("due")
    assert NextJobFile(tmp_path).read() == "due"
