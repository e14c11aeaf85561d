from collections.abc import Sequence

import numpy as np
import pytest
import torch

from hotdraft.pipeline.models.loading import load_causal_lm
from hotdraft.pipeline.replay.sample import MIN_LOG_MASS, NOT_DRAFTED
from hotdraft.serving.decoding.build import build_decoder
from hotdraft.serving.messages.request import SamplingParams
from hotdraft.serving.models.attention import ATTENTION, register_attention
from hotdraft.serving.proposers.plan import ProposalPlan
from hotdraft.serving.sampling.logits import SamplingBatch
from hotdraft.training.batches.replay_data import DataError
from hotdraft.training.scoring.target_scores import ScoredText, score


@pytest.fixture
def target(make_llama):
    return make_llama(0, scale=0.3)


def text(name: str, prompt: Sequence[int], output: Sequence[int]) -> ScoredText:
    return ScoredText(name, "d", 0.7, np.asarray(prompt, np.int32), np.asarray(output, np.int32))


def random_texts(lengths: Sequence[tuple[int, int]]) -> list[ScoredText]:
    generator = np.random.default_rng(0)
    return [text(f"r{i}", *(generator.integers(0, 64, n) for n in pair)) for i, pair in enumerate(lengths)]


@pytest.mark.parametrize("batch_tokens", [16, 200])
def test_scores_are_those_of_a_plain_log_softmax(target, batch_tokens):
    texts = random_texts([(1, 5), (4, 90), (7, 1), (3, 30), (1, 2)])  # 90: more rows than a chunk, and than a pack
    samples = list(score(target, iter(texts), 16, batch_tokens))
    assert [sample.request_id for sample in samples] == [given.request_id for given in texts]
    for given, sample in zip(texts, samples, strict=True):
        ids = torch.from_numpy(np.concatenate([given.prompt_ids, given.output_ids])).long()[None]
        with torch.no_grad():
            expected = target(ids).logits[0, len(given.prompt_ids) - 1 : -1].log_softmax(-1)
        top_ids = torch.from_numpy(sample.target_top_ids).long()
        top = torch.from_numpy(sample.target_top_logprobs).float()
        assert top.shape == (len(given.output_ids), 16)
        torch.testing.assert_close(expected.gather(1, top_ids), top, atol=5e-3, rtol=2e-3)
        outside = expected.scatter(1, top_ids, -torch.inf)
        assert (outside.amax(-1) <= expected.gather(1, top_ids).amin(-1) + 1e-4).all()
        tail = torch.from_numpy(sample.target_tail_logprob)
        torch.testing.assert_close(outside.logsumexp(-1), tail, atol=1e-3, rtol=1e-3)
        assert (sample.domain, sample.temperature) == ("d", 0.7)
        np.testing.assert_array_equal(sample.prompt_ids, given.prompt_ids)
        np.testing.assert_array_equal(sample.output_ids, given.output_ids)
        assert set(sample.drafted_ids) == {NOT_DRAFTED}
        assert not sample.rejected.any()


@pytest.mark.parametrize("top_k", [8, 257])  # of 257 tokens: nothing is left for the tail
def test_scores_are_those_that_the_decoder_logs(tiny_target, top_k):
    register_attention()
    decoder = build_decoder(
        load_causal_lm(tiny_target, attn_implementation=ATTENTION),
        None,
        num_slots=2,
        max_model_len=64,
        max_k=0,
        log_top_k=top_k,
    )
    prompts = [[5, 6, 7], [9] * 20]
    for row, prompt in enumerate(prompts):
        decoder.load(row, prompt)
        while not decoder.prefill(row, 64, with_proposer=False):
            pass
    sampling = SamplingBatch.of([SamplingParams(temperature=0)] * 2, [0, 1], torch.device("cpu"))
    rounds = [decoder.round(ProposalPlan.uniform(2, 0), sampling, log=True) for _ in range(24)]
    texts = [
        text(f"r{row}", prompt, [outcome.token_ids[row, 0] for outcome in rounds])
        for row, prompt in enumerate(prompts)
    ]
    samples = score(load_causal_lm(tiny_target), texts, top_k, 64)
    for row, sample in enumerate(samples):
        logs = [outcome.target_log for outcome in rounds]
        logged = np.concatenate([log.top_logprobs[row] for log in logs]).astype(np.float16)  # as it is recorded
        assert sample.target_top_logprobs.dtype == logged.dtype
        assert sample.target_top_ids.dtype == logs[0].top_ids.dtype
        np.testing.assert_allclose(sample.target_top_logprobs, logged, atol=1e-3, rtol=1e-3)
        np.testing.assert_array_equal(sample.target_top_ids[:, 0], [log.top_ids[row, 0, 0] for log in logs])
        tail = np.concatenate([log.tail_logprob[row] for log in logs])
        assert sample.target_tail_logprob.dtype == tail.dtype
        # with nothing left it is the rounding of a sum to 1, or the floor
        np.testing.assert_allclose(np.exp(sample.target_tail_logprob), np.exp(tail), atol=1e-5)
        assert np.isfinite(sample.target_tail_logprob).all()


def test_an_empty_tail_is_what_the_decoder_logs(target):
    target.lm_head.weight.data *= 1000
    (sample,) = score(target, random_texts([(1, 20)]), 8, 64)
    assert sample.target_tail_logprob.min() == MIN_LOG_MASS


def test_a_pack_is_bounded_by_tokens(target):
    packed = []
    target.model.register_forward_pre_hook(
        lambda module, args, options: packed.append(options["input_ids"].shape[1]), with_kwargs=True
    )
    list(score(target, random_texts([(1, 10)] * 12), 8, 60))
    assert packed == [60, 60]


def test_more_than_the_vocabulary_is_not_kept(target):
    (sample,) = score(target, random_texts([(2, 3)]), 100, 64)
    assert sample.target_top_ids.shape == (3, 64)
    np.testing.assert_allclose(np.exp(sample.target_top_logprobs.astype(float)).sum(1), 1, atol=2e-3)


@pytest.mark.parametrize("lengths", [(0, 3), (3, 0)])
def test_a_text_without_prompt_or_output_is_named(target, lengths):
    with pytest.raises(DataError, match="r0"):
        list(score(target, random_texts([lengths]), 8, 64))
