from dataclasses import replace

import numpy as np
import pytest
import torch

from hotdraft.serving.messages.request import SamplingParams
from hotdraft.serving.sampling.logits import SamplingBatch
from hotdraft.training.scoring.evaluate import by_request, expected_acceptance_by_position, over_steps
from tests.unit.served_probs import served_probs


def acceptance_by_request(*arguments, **options):
    return by_request(expected_acceptance_by_position(*arguments, **options))


def test_scores_are_the_mean_overlap_of_each_request(make_llama, serve):
    target, draft = make_llama(0, scale=0.3), make_llama(1, scale=0.3)
    samples = serve(target, 7, top_k=64)
    scores = acceptance_by_request(draft, samples, batch_tokens=70)
    expected = []
    for sample in samples:
        ids = torch.from_numpy(np.concatenate([sample.prompt_ids, sample.output_ids])).long()[None]
        span = slice(len(sample.prompt_ids) - 1, -1)
        with torch.no_grad():
            target_probs = target(ids).logits[0, span].softmax(-1)
            draft_probs = draft(ids).logits[0, span].softmax(-1)
        expected.append(torch.minimum(target_probs, draft_probs).sum(-1).mean().item())
    assert scores == pytest.approx(expected, abs=2e-3)
    assert acceptance_by_request(target, samples, batch_tokens=70).min() > 0.99


def test_sampled_requests_score_the_overlap_of_what_was_and_would_be_sampled_from(make_llama, serve):
    """Oracle: the server's own processing of both models' logits."""
    target, draft = make_llama(0, scale=0.3), make_llama(1, scale=0.3)
    ways = [{"temperature": 0.4}, {"temperature": 0.8, "top_p": 0.7}, {"temperature": 0.6, "top_k": 3}]
    samples = [replace(sample, **way) for sample, way in zip(serve(target, 3, top_k=64), ways, strict=True)]
    expected = []
    for sample, way in zip(samples, ways, strict=True):
        ids = torch.from_numpy(np.concatenate([sample.prompt_ids, sample.output_ids])).long()[None]
        span = slice(len(sample.prompt_ids) - 1, -1)
        sampling = SamplingBatch.of([SamplingParams(**way)], [0], torch.device("cpu"))
        with torch.no_grad():
            target_probs, draft_probs = (
                served_probs(model(ids).logits[:, span], sampling) for model in (target, draft)
            )
        expected.append(torch.minimum(target_probs, draft_probs).sum(-1).mean().item())
    assert acceptance_by_request(draft, samples, batch_tokens=70) == pytest.approx(expected, abs=5e-3)
    at_one = acceptance_by_request(draft, serve(target, 3, top_k=64), batch_tokens=70)
    assert (abs(at_one - expected) > 0.02).all()


def test_greedy_requests_score_their_agreement(make_llama, serve):
    target = make_llama(0, scale=0.3)
    samples = serve(target, 3, temperature=0.0)
    assert acceptance_by_request(target, samples, batch_tokens=70).tolist() == [1.0, 1.0, 1.0]
    scores = acceptance_by_request(make_llama(1, scale=0.3), samples, batch_tokens=70)
    assert ((scores * 24) % 1 == 0).all()
    assert scores.mean() < 0.5


def test_what_the_head_does_not_cover_is_never_drafted(make_llama, serve):
    target, draft = make_llama(0, scale=0.3), make_llama(1, scale=0.3)
    samples = serve(target, 5, top_k=64)
    covered = torch.arange(0, 64, 3)
    scores = acceptance_by_request(draft, samples, batch_tokens=70, vocabulary=covered)
    expected = []
    for sample in samples:
        ids = torch.from_numpy(np.concatenate([sample.prompt_ids, sample.output_ids])).long()[None]
        span = slice(len(sample.prompt_ids) - 1, -1)
        with torch.no_grad():
            target_probs = target(ids).logits[0, span].softmax(-1)[:, covered]
            draft_probs = draft(ids).logits[0, span][:, covered].softmax(-1)
        expected.append(torch.minimum(target_probs, draft_probs).sum(-1).mean().item())
    assert scores == pytest.approx(expected, abs=2e-3)


def test_a_greedy_request_needs_its_tokens_in_the_head(make_llama, serve):
    target = make_llama(0, scale=0.3)
    (sample,) = serve(target, 1, temperature=0.0)
    likeliest, counts = np.unique(sample.target_top_ids[:, 0], return_counts=True)
    left_out = int(likeliest[counts.argmax()])
    covered = torch.tensor([token for token in range(64) if token != left_out])
    (score,) = acceptance_by_request(target, [sample], batch_tokens=70, vocabulary=covered)
    assert score == pytest.approx(1 - counts.max() / 24)


def test_no_samples_no_scores(make_llama):
    assert len(acceptance_by_request(make_llama(0), [], batch_tokens=70)) == 0


def test_steps_of_a_round_count_as_often_as_a_round_comes_that_far():
    """Oracle: rounds of three drafted tokens that begin at every position, of which each is examined that comes."""
    chances = np.random.default_rng(0).random((3, 40)).round()  # greedy: right or not
    examined, accepted = np.zeros(40), np.zeros(40)
    for start in range(40):
        for step in range(min(3, 40 - start)):
            examined[start + step] += 1
            accepted[start + step] += chances[step, start + step]
            if not chances[step, start + step]:
                break
    assert over_steps(chances) == pytest.approx(accepted / examined)
    assert np.array_equal(over_steps(chances[:1]), chances[0])
