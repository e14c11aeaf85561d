"""Collecting what a draft is pre-distilled on, with tiny models."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from hotdraft.answering.batch import CollectError, answer_all, generation_config, started
from hotdraft.answering.collect import collect
from hotdraft.answering.requests import answer_requests, check_split, on_policy_requests, output_tokens, text_pieces
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.loading import fingerprint, load_causal_lm, load_tokenizer
from hotdraft.pipeline.replay.buffer import ReplayBuffer, is_held_out, sample_from_row
from hotdraft.pipeline.replay.sample import ReplaySample
from hotdraft.pipeline.traffic.prompts import Prompt, ask
from hotdraft.pipeline.traffic.sources import Text
from hotdraft.serving.engine.load import build_engine
from hotdraft.serving.messages.request import GenerationRequest, SamplingParams
from hotdraft.training.batches.replay_data import ReplayDataModule
from tests.models import save, tiny_llama

pytestmark = pytest.mark.slow

PROMPTS = [ask("ask", f"Say {number}.") for number in range(10)]
TEXT = Text("book", "It was the best of times, it was the worst of times, it was the age of wisdom.")


@pytest.fixture
def config(tiny_target: str, tiny_draft: str, tmp_path: Path) -> HotdraftConfig:
    return HotdraftConfig(
        target=tiny_target, dtype="float32", device="cpu", run_dir=tmp_path,
        engine={"max_model_len": 80}, recorder={"top_k": 8}, replay={"held_out_fraction": 0.4},
        predistill={"max_tokens": 12, "num_slots": 4, "text_tokens": 20, "batch_tokens": 128,
                    "on_policy_fraction": 0.5, "draft": tiny_draft},
    )  # fmt: skip


@pytest.fixture
def buffer(config: HotdraftConfig) -> ReplayBuffer:
    return ReplayBuffer(config.replay_url)


def with_predistill(config: HotdraftConfig, **changes: object) -> HotdraftConfig:
    return config.model_copy(update={"predistill": config.predistill.model_copy(update=changes)})


def held(buffer: ReplayBuffer) -> dict[str, ReplaySample]:
    samples = [sample_from_row(row) for row in buffer.load().with_format("numpy")]
    assert len({sample.request_id for sample in samples}) == len(samples)
    return {sample.request_id: sample for sample in samples}


def answer_ids(config: HotdraftConfig, prompts: Sequence[Prompt]) -> list[str]:
    return [*answer_requests(config, load_tokenizer(config.target), prompts, fingerprint(config.target))]


def greedy(model: str, sample: ReplaySample, tokens: int) -> list[int]:
    prompt = torch.from_numpy(sample.prompt_ids).long()[None]
    out = load_causal_lm(model).generate(prompt, max_new_tokens=tokens, do_sample=False, pad_token_id=0)
    return out[0, prompt.shape[1] :].tolist()


def test_every_kind_is_held_once(config, buffer, tiny_target, tiny_draft):
    collect(config, [*PROMPTS[:6], TEXT, *PROMPTS[6:]], buffer, Path(tiny_draft))
    samples = held(buffer)
    answers = [samples.pop(name) for name in answer_ids(config, PROMPTS)]
    assert [sample.temperature for sample in answers] == [0.0, pytest.approx(0.7)] * 5
    for sample in answers[::2]:
        assert sample.output_ids.tolist() == greedy(tiny_target, sample, 12)
        assert sample.target_top_ids[:, 0].tolist() == sample.output_ids.tolist()

    tokens = load_tokenizer(tiny_target)(TEXT.text).input_ids
    pieces = [sample for sample in samples.values() if sample.domain == "book"]
    assert [token for piece in pieces for token in piece.output_ids] == tokens[1:]
    assert {len(piece.output_ids) for piece in pieces[:-1]} == {19}
    assert 0 < len(samples) - len(pieces) < 10
    assert output_tokens(config, [*PROMPTS, TEXT]) >= 120


def test_the_drafts_answers_are_scored_by_the_target(config, buffer, tiny_target, tiny_draft):
    config = config.model_copy(
        update={
            "predistill": config.predistill.model_copy(update={"on_policy_fraction": 1.0, "temperatures": [0.0]})
        }
    )
    collect(config, PROMPTS, buffer, Path(tiny_draft))
    samples = list(held(buffer).values())
    target = load_causal_lm(tiny_target)
    by_prompt: dict[bytes, list[ReplaySample]] = {}
    for sample in samples:
        by_prompt.setdefault(sample.prompt_ids.tobytes(), []).append(sample)
    assert len(by_prompt) == 10
    for answer, own in by_prompt.values():
        assert own.output_ids.tolist() == greedy(tiny_draft, own, 12)
        assert own.output_ids.tolist() != answer.output_ids.tolist()
        ids = torch.from_numpy(np.concatenate([own.prompt_ids, own.output_ids])).long()[None]
        with torch.no_grad():
            expected = target(ids).logits[0, len(own.prompt_ids) - 1 : -1].log_softmax(-1).topk(8)
        np.testing.assert_allclose(own.target_top_logprobs, expected.values, atol=5e-3)
        assert (own.temperature, own.domain) == (0.0, "ask")


def test_a_run_goes_on_where_it_was_stopped(config, buffer, tiny_draft):
    collect(config, PROMPTS[:3], buffer, None)
    first = held(buffer)
    assert list(first) == answer_ids(config, PROMPTS[:3])
    collect(config, [*PROMPTS, TEXT], buffer, Path(tiny_draft))
    second = held(buffer)
    assert {name: second[name].created_at for name in first} == {name: s.created_at for name, s in first.items()}
    assert set(answer_ids(config, PROMPTS)) < set(second)
    shards = buffer.shards()
    collect(config, [*PROMPTS, TEXT], buffer, Path(tiny_draft))
    assert buffer.shards() == shards


def test_what_a_target_said_before_it_was_made_anew_is_not_taken_for_its_own(config, buffer, tmp_path):
    config = config.model_copy(update={"target": str(tmp_path / "target")})
    for seed in (1, 5):
        save(tiny_llama(layers=3, seed=seed), tmp_path / "target")
        kinds = collect(config, [*PROMPTS[:3], TEXT], buffer, None)
    samples = held(buffer)
    [first, *_] = kinds["answers of the target"]
    assert samples[first].output_ids.tolist() == greedy(config.target, samples[first], 12)
    assert len(samples) == 2 * sum(map(len, kinds.values()))


def test_a_stage_that_breaks_off_is_taken_up(config, buffer, tiny_draft, monkeypatch):
    monkeypatch.setattr("hotdraft.answering.collect.TEXTS_AT_ONCE", 2)
    append = buffer.append
    left = [None, None]

    def failing(samples, *told):
        left.pop()
        return append(samples, *told)

    monkeypatch.setattr(buffer, "append", failing)
    with pytest.raises(IndexError):
        collect(config, [PROMPTS[0], TEXT], buffer, None)
    assert [sample.domain for sample in held(buffer).values()] == ["ask", "book", "book"]
    monkeypatch.undo()
    collect(config, [PROMPTS[0], TEXT], buffer, None)
    scored = sum(len(sample.output_ids) for sample in held(buffer).values() if sample.domain == "book")
    assert scored == len(TEXT.text) - 1


def test_answers_that_cannot_be_written_are_an_error(config, buffer, monkeypatch):
    def full(samples):
        raise OSError("disk full")

    monkeypatch.setattr(buffer, "append", full)
    with pytest.raises(CollectError, match="cannot be written"):
        collect(config, PROMPTS, buffer, None)


@pytest.fixture
def poisoned(config, tmp_path) -> HotdraftConfig:
    """With a target whose numbers for the letter Z are none."""
    target = tiny_llama(layers=2, seed=0)
    [letter] = load_tokenizer(config.target)("Z", add_special_tokens=False).input_ids
    torch.nn.init.constant_(target.model.embed_tokens.weight[letter], torch.nan)
    return config.model_copy(update={"target": save(target, tmp_path / "poisoned")})


def test_a_prompt_that_cannot_be_answered_is_left_out_each_time(poisoned, buffer, tiny_draft, capsys):
    config = with_predistill(poisoned, on_policy_fraction=0.0)
    for _ in range(2):
        kinds = collect(config, [*PROMPTS, ask("ask", "Z?")], buffer, None)
        answered = answer_ids(config, PROMPTS)
        assert kinds["answers of the target"] == answered
        assert held(buffer).keys() == set(answered)
        assert "1 of 11 samples are left out: answering failed, and the log says why" in capsys.readouterr().out


def test_where_nothing_or_next_to_nothing_can_be_answered_the_run_ends(poisoned, buffer):
    hopeless = [ask("ask", f"Z{number}?") for number in range(40)]
    with pytest.raises(CollectError, match="the engine failed while answering"):
        collect(poisoned, [*hopeless, *PROMPTS], buffer, None)
    with pytest.raises(CollectError, match="nothing could be answered"):
        collect(poisoned, hopeless[:3], buffer, None)


def test_an_engine_that_has_ended_is_an_error_of_one_line(config):
    requests = list(answer_requests(config, load_tokenizer(config.target), PROMPTS).values())
    engine = build_engine(generation_config(config, requests), None)
    with started(engine):
        engine.step = engine.decoder.check = Mock(side_effect=RuntimeError("the device is gone"))
        with pytest.raises(CollectError, match="the engine failed while answering"):
            answer_all(engine, requests, lambda *_: None)
        with pytest.raises(CollectError, match="the engine failed while answering"):
            answer_all(engine, requests, lambda *_: None)


def test_samples_that_retention_deletes_are_an_error(config):
    with pytest.raises(CollectError, match=r"lost 10 of 1\d samples.*replay\.max_bytes"):
        collect(config, [*PROMPTS, TEXT], ReplayBuffer(config.replay_url, max_bytes=1), None)


def test_equal_items_are_learned_from_once(config, buffer):
    collect(config, [PROMPTS[0], PROMPTS[1], PROMPTS[0], TEXT, TEXT], buffer, None)
    assert Counter(sample.domain for sample in held(buffer).values()) == {"ask": 2, "book": 5}


def test_a_prompt_is_on_one_side_with_all_its_answers(config, buffer, tiny_draft):
    config = with_predistill(config, on_policy_fraction=1.0)
    prompts = [prompt for prompt in PROMPTS for _ in config.predistill.temperatures]
    collect(config, [*prompts, TEXT], buffer, Path(tiny_draft))
    data = ReplayDataModule.for_predistill(buffer.load(), config.predistill, config.replay.held_out_fraction)
    train, held_out = (
        Counter(tuple(row["prompt_ids"]) for _, row in rows.read(range(len(rows))) if len(row["prompt_ids"]) > 1)
        for rows in (data.train_rows, data.held_out_rows)
    )
    assert not train.keys() & held_out.keys()
    assert [*train.values(), *held_out.values()] == 10 * [4], (
        "two temperatures, the target's answer and the draft's"
    )
    assert train
    assert held_out


def test_too_few_prompts_are_told_before_any_work(config):
    for items in ([PROMPTS[0]], [Text("book", "Best of times.")]):
        with pytest.raises(CollectError, match=r"1 prompts and texts are too few: 0\.4 of all"):
            check_split(config, items)
    check_split(config, PROMPTS)
    check_split(config, [TEXT])


def test_long_prompts_are_left_out_and_counted(config, buffer, capsys):
    long = ask("ask", "x" * 60)
    collect(config, [long, PROMPTS[1]], buffer, None)
    assert list(held(buffer)) == answer_ids(config, [long, PROMPTS[1]])
    assert "1 of 2 prompts are left out" in capsys.readouterr().out
    with pytest.raises(CollectError, match="nothing to learn from"):
        collect(config, [long], buffer, None)


def test_a_target_without_a_chat_template_is_told_before_any_work(config):
    tokenizer = load_tokenizer(config.target)
    tokenizer.chat_template = None
    with pytest.raises(CollectError, match=r"has no chat template.*predistill\.sources"):
        answer_requests(config, tokenizer, PROMPTS)
    tokenizer.chat_template = "{{ raise_exception('no system role') }}"
    with pytest.raises(CollectError, match=r"prompt 0 \(ask\): .*no system role"):
        answer_requests(config, tokenizer, PROMPTS)


def test_a_prompts_own_limits_hold(config):
    prompts = [replace(PROMPTS[0], temperature=1, max_tokens=3), replace(PROMPTS[1], max_tokens=500)]
    first, second = answer_requests(config, load_tokenizer(config.target), prompts).values()
    assert (first.params.temperature, first.params.max_tokens) == (1.0, 3)
    assert (second.params.temperature, second.params.max_tokens) == (0.7, 12)


def test_what_another_target_said_or_an_answer_of_another_length_is_not_taken_for_this_one(config, tiny_draft):
    def ids(config):
        pieces = text_pieces(config, load_tokenizer(config.target), [TEXT])
        return {*answer_ids(config, PROMPTS), *pieces}

    longer, other = with_predistill(config, max_tokens=13), config.model_copy(update={"target": tiny_draft})
    assert ids(config) == ids(config.model_copy())
    assert not ids(config) & ids(other)
    assert not {*answer_ids(config, PROMPTS)} & {*answer_ids(longer, PROMPTS)}
    in_8_bits = config.model_copy(update={"engine": config.engine.model_copy(update={"target_weights": "int8"})})
    assert not {*answer_ids(config, PROMPTS)} & {*answer_ids(in_8_bits, PROMPTS)}


def test_pieces_are_no_longer_than_training_takes(config):
    config = with_predistill(config, text_tokens=500)
    pieces = text_pieces(config, load_tokenizer(config.target), [Text("d", "abc " * 200)])
    assert max(len(piece.prompt_ids) + len(piece.output_ids) for piece in pieces.values()) == 80


def test_the_draft_answers_a_share_of_both_splits(config):
    params = SamplingParams(temperature=0)
    names = [hashlib.sha256(str(number).encode()).hexdigest()[:16] for number in range(2000)]
    requests = {name: GenerationRequest(name, (1, number), params) for number, name in enumerate(names)}
    chosen = on_policy_requests(config, requests, "a draft")
    share = [is_held_out(request.prompt_ids, 0.4) for request in chosen.values()]
    assert 900 < len(chosen) < 1100
    assert 0.35 < np.mean(share) < 0.45
    assert chosen.keys() == on_policy_requests(config, requests, "a draft").keys()
    assert not chosen.keys() & on_policy_requests(config, requests, "another").keys()
    assert not chosen.keys() & requests.keys()


def test_rows_that_only_the_target_has_are_no_tokens(config, buffer, tiny_draft, tmp_path):
    padded = config.model_copy(update={"target": save(tiny_llama(2, 0, vocab_size=400), tmp_path / "padded")})
    collect(padded, [*PROMPTS, TEXT], buffer, Path(tiny_draft))
    for sample in held(buffer).values():
        assert max(sample.target_top_ids.max(), sample.output_ids.max()) < 257
        mass = np.exp(sample.target_top_logprobs.astype(float)).sum(1) + np.exp(sample.target_tail_logprob)
        np.testing.assert_allclose(mass, 1, atol=2e-3)
