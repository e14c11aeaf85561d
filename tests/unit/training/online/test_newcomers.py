from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.training.batches.replay_data import ReplayDataModule
from hotdraft.training.online.newcomers import Newcomers

NEVER = SimpleNamespace(check=lambda _: None)


def test_repeats_of_all_that_the_window_teaches_are_no_news(make_llama, serve, tmp_path, monkeypatch):
    monkeypatch.setattr("hotdraft.training.online.newcomers.KNOWN", 4)
    taught = [
        replace(sample, prompt_ids=np.arange(20 * index, 20 * index + 20, dtype=np.int32))
        for index, sample in enumerate(serve(make_llama(1), 12))
    ]
    config = HotdraftConfig(target="t", run_dir=tmp_path, distill={"window_requests": 12}, gate={"wait_seconds": 0})
    buffer = ReplayBuffer(config.replay_url)
    buffer.append(taught)
    rows = buffer.rows()
    data = ReplayDataModule.for_job(rows, config.distill, 1e-9)
    buffer.append(
        [
            replace(one, request_id=f"again-{one.request_id}", prompt_ids=np.append(one.prompt_ids[:-1], 999))
            for one in taught
        ]
    )
    assert Newcomers(buffer, data, rows.newest, config).wait([], NEVER)[1] == []


def test_what_another_target_answers_meanwhile_is_no_part_of_the_mix_and_crowds_nothing_out(
    make_llama, serve, tmp_path
):
    config = HotdraftConfig(target="t", run_dir=tmp_path, gate={"wait_seconds": 0, "max_requests": 2})
    buffer = ReplayBuffer(config.replay_url)
    taught, came = (
        [replace(one, target_id="ours") for one in serve(make_llama(1), 12, prefix=name, seed=seed)]
        for seed, name in enumerate("tc")
    )
    buffer.append(taught)
    rows = buffer.rows()
    data = ReplayDataModule.for_job(rows, config.distill, 1e-9, target_id="ours")
    others = [replace(one, target_id="another", domain="theirs") for one in serve(make_llama(1), 12, prefix="o")]
    buffer.append(came)
    buffer.append(others)
    _, fresh, mix = Newcomers(buffer, data, rows.newest, config).wait([], NEVER)
    assert len(fresh) == 2
    assert "theirs" not in mix
