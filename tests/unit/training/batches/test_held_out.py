"""What a pre-distilled draft is judged by is alike what was held out, whatever order it was recorded in."""

import numpy as np

from hotdraft.pipeline.config.learning import PredistillConfig
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.training.batches.replay_data import ReplayDataModule


def test_held_out_samples_are_of_all_ages_and_first_of_those_that_validation_did_not_look_at(
    make_llama, serve, tmp_path
):
    buffer = ReplayBuffer(str(tmp_path / "replay"))
    buffer.append(serve(make_llama(1), 60))
    data = ReplayDataModule.for_predistill(buffer.load(), PredistillConfig(validation_requests=8), 0.5)
    held_out = list(data.held_out_rows["request_id"])
    drawn = [sample.request_id for sample in data.held_out_samples(10)]
    ages = [held_out.index(name) for name in drawn]
    assert len(set(ages)) == 10
    assert abs(np.mean(ages) / (len(held_out) - 1) - 0.5) < 0.2
    validated = {sample.request_id for sample in data.validation_samples}
    assert not validated & set(drawn)
    assert [sample.request_id for sample in data.held_out_samples(10)] == drawn
    assert {sample.request_id for sample in data.held_out_samples(400)} == set(held_out)
