from collections import Counter
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset

from hotdraft.pipeline.config.learning import GateConfig, PredistillConfig
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.loop.trigger import DistillTrigger
from hotdraft.pipeline.replay.buffer import ReplayBuffer, is_held_out
from hotdraft.pipeline.replay.sample import ReplaySample
from hotdraft.training.batches.packing import DataError, pack
from hotdraft.training.batches.replay_data import ReplayDataModule
from tests.unit.training.batches.halves import split, stream_of
from tests.unit.training.masked import draft_logits


@pytest.fixture
def target(make_llama):
    return make_llama(0, scale=0.3)


@pytest.fixture
def rows(target, serve, tmp_path):
    buffer = ReplayBuffer(str(tmp_path))
    buffer.append(serve(target, 40))
    return buffer.load()


def test_a_packed_request_gets_the_logits_it_gets_alone(target, serve):
    samples = serve(target, 3)
    batch = pack(samples, max_length=1000)
    with torch.no_grad():
        packed = draft_logits(target, batch)
        for index, sample in enumerate(samples):
            ids = torch.from_numpy(np.concatenate([sample.prompt_ids, sample.output_ids])).long()[None]
            alone = target(ids).logits[0, len(sample.prompt_ids) - 1 : -1]
            torch.testing.assert_close(packed[batch.request == index], alone, rtol=1e-4, atol=1e-4)


def test_logged_targets_stand_at_the_position_before_their_token(target, serve):
    batch = pack(serve(target, 4), max_length=1000)
    with torch.no_grad():
        truth = draft_logits(target, batch).log_softmax(-1)
    torch.testing.assert_close(truth.gather(1, batch.top_ids), batch.top_logprobs, rtol=2e-3, atol=5e-3)


def test_rejected_positions_weigh_more(target, serve):
    (sample,) = serve(target, 1)
    batch = pack([sample], max_length=1000, rejected_weight=2.0)
    assert batch.weight.tolist() == [2.0 if rejected else 1.0 for rejected in sample.rejected]
    assert 0 < sample.rejected.sum() < len(sample.rejected)


def test_long_requests_are_cut_from_the_right(target, serve):
    (sample,) = serve(target, 1)
    length = len(sample.prompt_ids)
    batch = pack([sample], max_length=length + 5)
    assert batch.input_ids.shape[1] == length + 5
    assert batch.supervised.tolist() == list(range(length - 1, length + 5))
    with pytest.raises(DataError, match="r0"):
        pack([sample], max_length=length - 1)


def test_samples_with_fewer_kept_tokens_keep_the_mass(target, serve):
    wide, narrow = serve(target, 1, top_k=16)[0], serve(target, 1, top_k=4)[0]
    batch = pack([wide, narrow], max_length=1000)
    assert batch.top_ids.shape[1] == 4
    assert torch.equal(batch.top_ids[:24], batch.top_ids[24:])
    torch.testing.assert_close(batch.tail_logprob[:24], batch.tail_logprob[24:], rtol=1e-2, atol=1e-2)


def test_batches_are_deterministic_and_resume_where_they_stopped(rows):
    stream = iter(stream_of(rows)())
    first = [next(stream) for _ in range(4)]
    resumed = next(iter(stream_of(rows)(start=3)))
    assert torch.equal(first[3].input_ids, resumed.input_ids)
    assert not torch.equal(first[0].input_ids[0, :20], first[1].input_ids[0, :20])


@pytest.mark.parametrize(("accumulate", "processes"), [(4, 1), (2, 2), (1, 4)])
def test_a_step_takes_the_same_batches_however_they_are_shared_out(rows, accumulate, processes):
    expected = [stream_of(rows)().batch(index) for index in range(4 * 2, 4 * 3)]
    got = []
    for rank in range(processes):
        stream = stream_of(rows, accumulate=accumulate)(start=2, rank=rank, processes=processes)
        own = list(islice(stream, accumulate))
        weight = sum(batch.weight.sum() for batch in own)
        assert all(torch.equal(batch.step_weight, weight) for batch in own)
        got += own

    def keys(batches):
        return sorted(tuple(batch.input_ids[0].tolist()) for batch in batches)

    assert keys(got) == keys(expected)


def test_batches_drawn_together_are_the_same_and_each_knows_the_prompts_of_all(rows):
    alone = list(islice(stream_of(rows)(start=1), 4))
    together = list(islice(stream_of(rows, together=2)(start=1), 4))
    for batch, one in zip(together, alone, strict=True):
        assert torch.equal(batch.input_ids, one.input_ids)
        assert torch.equal(batch.step_weight, one.step_weight)
    assert [one.prompts_ahead for one in alone] == 4 * [()]
    pairs = [alone[0].prompts + alone[1].prompts, alone[2].prompts + alone[3].prompts]
    assert [batch.prompts_ahead for batch in together] == [pairs[0], pairs[0], pairs[1], pairs[1]]


def test_validation_gives_each_process_as_many_batches_and_counts_no_request_twice(rows):
    data = split(rows, 0.4, validation_requests=12)
    names = {sample.request_id for sample in data.validation_samples}
    assert len(names) == 12
    assert names <= set(data.held_out_rows["request_id"])
    data.trainer = SimpleNamespace(world_size=3, global_rank=0)
    alone = split(rows, 0.4, validation_requests=12).val_dataloader()
    total = sum(float(batch.weight.sum()) for batch in alone)
    counts, weights = [], []
    for rank in range(3):
        data.trainer.global_rank = rank
        own = list(data.val_dataloader())
        counts.append(len(own))
        weights.append(sum(float(batch.weight.sum()) for batch in own))
    assert len(list(alone)) % 3 != 0
    assert len(set(counts)) == 1
    assert sum(weights) == total


def test_nothing_held_out_to_validate_on_is_refused(rows):
    with pytest.raises(DataError, match=r"none of 40 .* held out"):
        split(rows, 1e-9, validation_requests=1)


def ages_of(batch, rows):
    """When the requests of `batch` were recorded."""
    times = {tuple(row["prompt_ids"]): row["created_at"] for row in rows}
    assert len(times) == len(rows)
    starts = (batch.position_ids[0] == 0).nonzero()[:, 0].tolist()
    prompts = [tuple(batch.input_ids[0, start : start + 4 + n].tolist()) for start in starts for n in range(5)]
    return [times[prompt] for prompt in prompts if prompt in times]


def test_batches_draw_from_the_window_and_from_before_it(rows):
    batches = stream_of(rows)()
    origins = []
    for index in range(40):
        batch = batches.batch(index)
        assert batch.input_ids.shape[1] <= 90
        [older] = {age < 32 for age in ages_of(batch, rows)}  # one batch, one side of the window
        origins.append(older)
    assert 8 < sum(origins) < 32
    assert torch.equal(batches.batch(0).input_ids, batches.batch(0).input_ids)


def test_a_request_longer_than_a_batch_is_one_of_its_own_and_cut(rows):
    lengths = {len(row["prompt_ids"]) + len(row["output_ids"]) - 1 for row in rows}
    assert min(lengths) > 20
    batch = stream_of(rows, batch_tokens=16, max_length=25)().batch(0)
    assert batch.lengths == (25,)


def test_batches_of_older_requests_teach_what_is_said_of_them_now(rows):
    data = split(rows, 1e-9)
    before = [data.batches().batch(index) for index in range(20)]
    data.rehearse(lambda samples: [replace(sample, temperature=5.0) for sample in samples])
    seen = set()
    for index, batch in enumerate(before):
        again = data.batches().batch(index)
        assert torch.equal(again.input_ids, batch.input_ids)
        [older] = {age < 32 for age in ages_of(again, rows)}
        seen |= {(older, temperature) for temperature in again.temperature.tolist()}
    assert {older for older, _ in seen} == {False, True}
    assert all((temperature == 5) is older for older, temperature in seen)


def test_what_is_rehearsed_weighs_as_ever_where_undrafted_positions_weigh_nothing(rows):
    """The draft was asked for none of it."""
    data = split(rows, 1e-9, undrafted_weight=0.0)
    data.rehearse(lambda samples: [replace(s, drafted_ids=np.full_like(s.drafted_ids, -1)) for s in samples])
    for batch in map(data.batches().batch, range(20)):
        [older] = {age < 32 for age in ages_of(batch, rows)}
        assert set(batch.weight.tolist()) == ({1.0} if older else {0.0, 1.0})


def test_more_is_rehearsed_where_that_is_asked_for_and_no_less_where_it_is_not(rows):
    data = split(rows, 1e-9)

    def older():
        batches = data.batches()
        return sum(ages_of(batches.batch(index), rows).pop() < 32 for index in range(100)) / 100

    as_configured = older()
    data.rehearse_more(0.01)
    assert older() == as_configured
    data.rehearse_more(0.9)
    assert older() == pytest.approx(0.9, abs=0.1)
    data.rehearse(lambda samples: samples)
    assert older() == pytest.approx(0.9, abs=0.1)


def test_older_requests_are_given_as_one_pack_of_about_so_many_tokens(rows):
    batch = split(rows, 1e-9).older(150)
    assert 100 < batch.input_ids.shape[1] <= 150
    assert {age < 32 for age in ages_of(batch, rows)} == {True}


def prompts_of(rows):
    return [row["prompt_ids"] for _, row in rows.read(range(len(rows)))]


def test_held_out_requests_are_never_trained_on(rows):
    data = split(rows, 0.3)
    assert len(data.train_rows) + len(data.held_out_rows) == 40
    assert all(is_held_out(ids, 0.3) for ids in prompts_of(data.held_out_rows))
    assert not any(is_held_out(ids, 0.3) for ids in prompts_of(data.train_rows))


def test_of_a_prompt_asked_again_the_newest_answer_counts_on_either_side(target, serve, tmp_path):
    first, again = serve(target, 40), serve(target, 40)
    again = [
        replace(sample, request_id=f"again-{sample.request_id}", created_at=40 + sample.created_at)
        for sample in again[::2]
    ]
    buffer = ReplayBuffer(str(tmp_path / "replay"))
    buffer.append([*first, *again])
    data = split(buffer.load(), 0.4)
    taken = [*data.train_rows["request_id"], *data.held_out_rows["request_id"]]
    assert sorted(taken) == sorted(f"again-r{index}" if index % 2 == 0 else f"r{index}" for index in range(40))
    assert len(data.domains) == 60, "today's mix is of all that was asked"
    judged = [sample.prompt_ids.tobytes() for sample in data.held_out_samples(48)]
    assert len(judged) == len(set(judged)) == sum(is_held_out(sample.prompt_ids, 0.4) for sample in first)

    config = HotdraftConfig(
        target="t", run_dir=tmp_path, replay={"held_out_fraction": 0.4}, gate={"min_requests": len(judged) + 1}
    )
    waiting = f"{len(judged)} of {len(judged) + 1} held-out prompts"
    assert waiting in DistillTrigger(config, buffer).decide().reason, "the trigger counts what the gate judges by"


def test_for_predistill_all_answers_to_a_prompt_count_and_a_text_goes_by_all_of_it(target, serve, tmp_path):
    answers = [
        replace(sample, request_id=f"{turn}-{sample.request_id}")
        for turn in range(2)
        for sample in serve(target, 30)
    ]
    beginning = np.array([7], np.int32)
    texts = [
        replace(sample, request_id=f"text-{sample.request_id}", prompt_ids=beginning)
        for sample in serve(target, 60, seed=1)
    ]
    buffer = ReplayBuffer(str(tmp_path / "replay"))
    buffer.append([*answers, *texts])
    data = ReplayDataModule.for_predistill(buffer.load(), PredistillConfig(validation_requests=1), 0.4)
    held_out = set(data.held_out_rows["request_id"])
    assert len(data.train_rows) + len(held_out) == 120
    assert {f"0-{name}" in held_out for name in (f"r{index}" for index in range(30))} == {False, True}
    assert all((f"0-r{index}" in held_out) == (f"1-r{index}" in held_out) for index in range(30))
    assert 10 < sum(name.startswith("text") for name in held_out) < 40


def test_judged_by_are_the_newest_of_todays_domains_and_older_ones_of_every_domain_alike(target, serve, tmp_path):
    counts = {"many": 60, "few": 12, "rare": 3, "today": 40}
    samples = [
        replace(sample, created_at=float(1000 * turn + sample.created_at))
        for turn, (domain, count) in enumerate(counts.items())
        for sample in serve(target, count, domain=domain, prefix=domain, seed=turn)
    ]
    buffer = ReplayBuffer(str(tmp_path / "replay"))
    buffer.append(samples)

    def judged(rows: Dataset) -> list[ReplaySample]:
        data = split(rows, 0.5)
        return data.held_out_by_domain({"today"}, GateConfig(max_requests=6, older_requests=14))

    found = judged(buffer.load())
    by_domain = Counter(sample.domain for sample in found)
    rare = sum(is_held_out(sample.prompt_ids, 0.5) for sample in samples if sample.domain == "rare")
    assert (by_domain["today"], by_domain["rare"], by_domain.total()) == (6, rare, 20)
    assert abs(by_domain["few"] - by_domain["many"]) <= 1
    assert [s.created_at for s in found] == sorted(s.created_at for s in found)
    newest = [s.request_id for s in samples if s.domain == "today" and is_held_out(s.prompt_ids, 0.5)][-6:]
    assert [s.request_id for s in found if s.domain == "today"] == newest

    buffer.append(serve(target, 30, domain="today", prefix="later", seed=9))
    again = {sample.request_id for sample in judged(buffer.load()) if sample.domain != "today"}
    assert again == {sample.request_id for sample in found if sample.domain != "today"}, "what was held out stays"


def test_prompts_that_fill_a_batch_are_left_out(rows, serve, target, tmp_path):
    buffer = ReplayBuffer(str(tmp_path / "long"))
    long = replace(serve(target, 1)[0], request_id="long", prompt_ids=np.ones(91, np.int32))
    buffer.append([long])
    with pytest.raises(DataError, match="none of 1"):
        split(buffer.load(), 0.1)
