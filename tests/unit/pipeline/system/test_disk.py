import os
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.replay.sample import NOT_DRAFTED, ReplaySample
from hotdraft.pipeline.system.disk import DiskError, bytes_in, replay_bytes, require_disk


def test_needs_are_held_against_the_free_bytes_of_the_right_disk(tmp_path, monkeypatch):
    asked = []

    def usage(path):
        asked.append(path)
        return SimpleNamespace(free=2_500_000_000)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    require_disk(tmp_path / "not" / "yet", 2_500_000_000, "the replay buffer")
    assert asked == [tmp_path]
    with pytest.raises(DiskError, match=r"the replay buffer may take 7\.00 GB.*not/yet has 2\.50 GB free"):
        require_disk(tmp_path / "not" / "yet", 7_000_000_000, "the replay buffer")


def test_what_a_folder_takes_is_all_below_it(tmp_path, monkeypatch):
    (tmp_path / "deep").mkdir()
    for name in ("a", "deep/b"):
        (tmp_path / name).write_bytes(b"x" * 100_000)
    assert 200_000 <= bytes_in(tmp_path) < 250_000
    monkeypatch.setattr(os, "walk", lambda folder: [(str(tmp_path), [], ["a", "gone"])])
    assert 100_000 <= bytes_in(tmp_path) < 120_000
    monkeypatch.undo()
    assert bytes_in(tmp_path / "not yet") == bytes_in("s3://bucket/replay") == 0


@pytest.mark.slow
@pytest.mark.parametrize("top_k", [8, 64])
def test_the_estimate_covers_what_a_buffer_takes(tmp_path, top_k):
    """Logits that fall off as a language model's do, over the tokens of Zipf's law."""
    generator = np.random.default_rng(0)
    vocab_size, length = 49_152, 96
    prior = -np.log(np.arange(1, vocab_size + 1))

    def sample(index: int) -> ReplaySample:
        logits = prior + 3 * generator.standard_normal((length, vocab_size))
        ids = np.argpartition(logits, -top_k)[:, -top_k:]
        ids = np.take_along_axis(ids, np.take_along_axis(-logits, ids, 1).argsort(1), 1)
        total = np.log(np.exp(logits).sum(1, keepdims=True))
        logprobs = np.take_along_axis(logits, ids, 1) - total
        tail = np.log1p(-np.exp(logprobs).sum(1)).astype(np.float32)
        return ReplaySample(
            f"{index:016x}", 0.0, "d", 0.0, ids[:60, 0].astype(np.int32), ids[:, 0].astype(np.int32),
            ids.astype(np.int32), logprobs.astype(np.float16), tail,
            np.full(length, NOT_DRAFTED, np.int32), np.zeros(length, bool), np.zeros(length, np.int32),
        )  # fmt: skip

    buffer = ReplayBuffer(str(tmp_path))
    buffer.append([sample(index) for index in range(6)])
    taken = sum(path.stat().st_size for path in tmp_path.glob("*.parquet"))
    assert 0.5 * replay_bytes(6 * length, top_k) < taken < replay_bytes(6 * length, top_k)
