import logging
import re
from dataclasses import replace

import numpy as np
import pytest

from hotdraft.pipeline.config.learning import DistillConfig
from hotdraft.pipeline.replay.buffer import ReplayBuffer, is_held_out
from hotdraft.training.batches.record_check import contradiction
from hotdraft.training.batches.replay_data import DataError, ReplayDataModule
from hotdraft.training.batches.sound_rows import SoundRows

FRACTION = 0.3


@pytest.fixture
def target(make_llama):
    return make_llama(0, scale=0.3)


@pytest.fixture
def sample(target, serve):
    return serve(target, 1)[0]


def greedy(sample):
    return replace(sample, temperature=0.0, output_ids=sample.target_top_ids[:, 0].copy())


def with_logprobs(sample, change):
    return replace(sample, target_top_logprobs=change(sample.target_top_logprobs.copy()))


def load(samples, folder):
    buffer = ReplayBuffer(str(folder))
    buffer.append(samples)
    return buffer.rows()


def test_what_was_recorded_as_it_was_is_believed(target, serve, sample):
    assert all(contradiction(each, vocab_size=64) is None for each in serve(target, 40))
    assert contradiction(greedy(sample), vocab_size=64) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda s: with_logprobs(s, lambda p: np.where(p == p[3, 0], np.nan, p)), "not finite"),
        (lambda s: with_logprobs(s, lambda p: p + np.float16(2)), "above 0"),
        (lambda s: with_logprobs(s, lambda p: p - np.float16(2)), r"sum to 0\.\d"),
        (lambda s: replace(s, target_tail_logprob=np.full(24, np.nan, np.float32)), "not finite"),
        (lambda s: replace(s, target_tail_logprob=np.full(24, -0.01, np.float32)), r"sum to 1\.\d"),
        (lambda s: replace(s, output_ids=s.output_ids + 64), "vocabulary"),
        (lambda s: replace(s, prompt_ids=s.prompt_ids - 64), "vocabulary"),
        (lambda s: replace(s, target_top_ids=s.target_top_ids + 64), "vocabulary"),
        (lambda s: replace(s, output_ids=s.output_ids[:-1]), "one distribution for each token"),
        (lambda s: replace(s, output_ids=s.output_ids[:0]), "one distribution for each token"),
        (lambda s: replace(s, drafted_ids=s.drafted_ids[:-1]), "how it was drafted"),
        (lambda s: replace(s, accepted=s.accepted[:-1]), "how it was drafted"),
        (lambda s: replace(s, draft_versions=s.draft_versions[:-1]), "how it was drafted"),
        (lambda s: replace(s, temperature=np.nan), "temperature or filter"),
        (lambda s: replace(s, temperature=-1.0), "temperature or filter"),
        (lambda s: replace(s, temperature=np.inf), "temperature or filter"),
        (lambda s: replace(s, top_p=np.nan), "temperature or filter"),
        (lambda s: replace(s, min_p=np.nan), "temperature or filter"),
        (lambda s: replace(greedy(s), output_ids=s.target_top_ids[:, 1]), "100% of its greedy answer"),
        (lambda s: replace(s, output_ids=s.target_top_ids[:, -1]), "not drawn"),
    ],
)
def test_what_cannot_be_true_is_told(sample, change, reason):
    assert re.search(reason, contradiction(change(sample), vocab_size=64) or "nothing")


def test_a_tie_and_a_few_other_tokens_are_no_contradiction_in_a_greedy_answer(sample):
    tied = with_logprobs(greedy(sample), lambda p: np.concatenate([p[:, 1:2], p[:, 1:]], 1))
    tied = replace(tied, target_tail_logprob=_rest(tied))
    assert contradiction(replace(tied, output_ids=tied.target_top_ids[:, 1])) is None
    one = greedy(sample)
    one.output_ids[5] = sample.target_top_ids[5, 1]
    assert contradiction(one) is None
    one.output_ids[6] = sample.target_top_ids[6, 1]
    assert contradiction(one) == "8% of its greedy answer is not the likeliest"


def test_text_that_the_target_only_scored_may_be_anything(sample):
    unlikely = replace(sample, output_ids=sample.target_top_ids[:, -1])
    assert contradiction(unlikely) is not None
    assert contradiction(unlikely, answered=False) is None
    assert contradiction(replace(unlikely, temperature=0.0), answered=False) is None


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.2])
def test_drawn_answers_are_believed_at_any_temperature_and_swapped_ones_are_not(target, serve, temperature):
    generator = np.random.default_rng(0)
    drawn = [_drawn(sample, temperature, generator) for sample in serve(target, 60, top_k=32)]
    assert not any(map(contradiction, drawn))
    swapped = [
        replace(sample, output_ids=other.output_ids)
        for sample, other in zip(drawn, drawn[1:] + drawn[:1], strict=True)
    ]
    assert np.mean([contradiction(sample) is not None for sample in swapped]) > 0.9


def test_answers_are_held_against_what_their_filters_let_through(target, serve):
    generator = np.random.default_rng(1)
    filtered = [replace(sample, top_k=2, temperature=0.8) for sample in serve(target, 40, top_k=32)]
    drawn = [_drawn(sample, 0.8, generator, among=2) for sample in filtered]
    assert not any(map(contradiction, drawn))
    others = [_drawn(sample, 0.8, generator, among=12) for sample in filtered]
    assert np.mean([contradiction(sample) is not None for sample in others]) > 0.7
    assert not any(contradiction(replace(sample, top_k=0)) for sample in others)


def test_rows_are_judged_as_samples_are(target, serve, tmp_path):
    samples = serve(target, 30)
    samples[4] = replace(samples[4], output_ids=samples[4].target_top_ids[:, -1])
    samples[7] = replace(samples[7], output_ids=samples[7].output_ids[:0])
    samples[9] = replace(samples[9], target_top_ids=samples[9].target_top_ids[:, :3])
    sound = SoundRows(load(samples, tmp_path))
    assert [sample.request_id for sample in sound.samples([0, 4, 8])] == ["r0", "r8"]
    assert sound.faults == {4: contradiction(samples[4])}
    assert len(sound.samples(range(30))) == 27
    assert sorted(sound.faults) == [4, 7, 9]


def test_they_are_left_out_of_both_parts_and_counted(target, serve, tmp_path, caplog):
    samples = serve(target, 40)
    split = [is_held_out(sample.prompt_ids, FRACTION) for sample in samples]
    false = {split.index(False), split.index(True)}
    spoilt = [
        replace(sample, target_tail_logprob=sample.target_tail_logprob + 9) if index in false else sample
        for index, sample in enumerate(samples)
    ]
    settings = DistillConfig(batch_tokens=90)
    with caplog.at_level(logging.WARNING):
        data = ReplayDataModule.for_job(load(spoilt, tmp_path / "some"), settings, FRACTION, 64)
    names = {samples[index].request_id for index in false}
    assert data.left_out == 2
    assert len(data.train_rows) + len(data.held_out_rows) == 38
    assert names.isdisjoint([*data.train_rows["request_id"], *data.held_out_rows["request_id"]])
    assert "2 of 40 recorded requests are left out, the first: it has log-probs" in caplog.text
    with pytest.raises(DataError, match="none of 40"):
        ReplayDataModule.for_job(load(samples, tmp_path / "all"), settings, FRACTION, 3)


def test_what_another_target_answered_is_left_out_where_both_are_known(target, serve, tmp_path, caplog):
    """Whatever became of their shards."""
    former, present, unknown = (
        [replace(one, target_id=name) for one in serve(target, 40, prefix=name or "u", seed=seed)]
        for seed, name in enumerate(["former", "present", ""])
    )
    buffer = ReplayBuffer(str(tmp_path), max_bytes=10_000_000)
    for start in range(0, 40, 2):
        buffer.append([*former[start : start + 2], *present[start : start + 2], *unknown[start : start + 2]])
    for _ in range(40):
        buffer.append(present[:1])
    assert len(buffer.shards()) < 40, "they were merged"

    def known(target_id):
        settings = DistillConfig(batch_tokens=90)
        data = ReplayDataModule.for_job(buffer.rows(), settings, FRACTION, 64, target_id=target_id)
        names = [*data.train_rows["request_id"], *data.held_out_rows["request_id"]]
        return {name.rstrip("0123456789") for name in names}, data.left_out

    with caplog.at_level(logging.WARNING):
        assert known("present") == ({"present", "u"}, 40)
    assert "40 of 160 recorded requests are left out, the first: another target answered it" in caplog.text
    assert known("") == ({"former", "present", "u"}, 0)


def test_what_another_target_answered_takes_no_place_of_what_is_learned_from(target, serve, tmp_path):
    """As a canary does that has most of the traffic, whether or not a job reads it at once."""
    buffer = ReplayBuffer(str(tmp_path))
    settings = DistillConfig(batch_tokens=90, window_requests=10)
    for seed, name in enumerate(["former", "present", "former"]):
        buffer.append(
            [replace(one, target_id=name) for one in serve(target, 40, prefix=f"{name}{seed}", seed=seed)]
        )
    data = ReplayDataModule.for_job(buffer.rows(), settings, FRACTION, 64, target_id="present")
    assert data.left_out == 80
    assert {name[:8] for name in [*data.train_rows["request_id"], *data.held_out_rows["request_id"]]} == {
        "present1"
    }


def _rest(sample):
    mass = np.exp(sample.target_top_logprobs.astype(np.float32)).sum(1)
    return np.log((1 - mass).clip(1e-9)).astype(np.float32)


def _drawn(sample, temperature, generator, among=None):
    """`sample` with an answer drawn from the likeliest `among` its top tokens, which is what a filter allows."""
    logprobs = sample.target_top_logprobs[:, :among].astype(float)
    chosen = (logprobs / temperature + generator.gumbel(size=logprobs.shape)).argmax(1)
    ids = sample.target_top_ids[np.arange(len(chosen)), chosen]
    return replace(sample, temperature=temperature, output_ids=ids)
