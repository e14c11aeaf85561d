import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from hotdraft.pipeline.config.learning import LoraSection
from hotdraft.training.batches.packing import pack
from hotdraft.training.batches.sampling import sampled_target, unfiltered
from hotdraft.training.fit.lora import build_lora
from hotdraft.training.scoring.forward import OutputHead, hidden_states
from hotdraft.training.scoring.losses import distillation_loss, expected_acceptance
from hotdraft.training.scoring.position_scores import position_scores
from tests.unit.training.masked import draft_logits

ROWS = 5
"""Positions a chunk."""


def full(make_llama):
    return make_llama(0, scale=0.1).double()


def tied(make_llama):
    model = full(make_llama)
    model.lm_head.weight = model.model.embed_tokens.weight
    return model


def frozen_head(make_llama):
    model = full(make_llama)
    model.lm_head.requires_grad_(False)
    return model


def lora(make_llama):
    return build_lora(full(make_llama), LoraSection(rank=4, alpha=8), "none")


def qlora(make_llama):
    return build_lora(make_llama(0, scale=0.1), LoraSection(rank=4, alpha=8), "nf4")


@pytest.fixture
def batch(make_llama, serve):
    return pack(serve(make_llama(1, scale=0.3), 3), max_length=1000, rejected_weight=2.0)


def gradients(model):
    return {name: p.grad for name, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("build", [full, tied, frozen_head, lora, qlora])
def test_loss_and_gradient_are_those_of_all_logits_at_once(build, make_llama, batch, monkeypatch):
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if build is qlora else {"rtol": 1e-9, "atol": 1e-10}
    if build is not qlora:
        batch = batch._replace(
            **{name: getattr(batch, name).double() for name in ("top_logprobs", "tail_logprob", "weight")}
        )
    targets = (batch.top_ids, batch.top_logprobs, batch.tail_logprob)
    torch.manual_seed(1)
    oracle = build(make_llama).train()
    losses = distillation_loss(draft_logits(oracle, batch), *targets, loss="forward_kl")
    expected = (losses * batch.weight).sum() / 7
    expected.backward()

    monkeypatch.setattr("hotdraft.training.scoring.forward.CHUNK_LOGITS", 64 * ROWS)
    torch.manual_seed(1)
    model = build(make_llama).train()
    scores = position_scores(
        hidden_states(model, batch), OutputHead(model), batch=batch, loss="forward_kl", measure=False
    )
    (scores.loss / 7).backward()
    torch.testing.assert_close(scores.loss / 7, expected, **tolerance)
    for name, gradient in gradients(oracle).items():
        torch.testing.assert_close(gradients(model)[name], gradient, msg=name, **tolerance)
        assert gradient.abs().max() > 0 or "lora_A" in name

    with torch.no_grad():
        again = position_scores(
            hidden_states(model, batch), OutputHead(model), batch=batch, loss="forward_kl", measure=False
        )
    torch.testing.assert_close(again.loss, scores.loss, **tolerance)


def test_no_more_than_a_chunk_of_logits_is_alive(make_llama, batch, monkeypatch):
    monkeypatch.setattr("hotdraft.training.scoring.forward.CHUNK_LOGITS", 64 * ROWS)
    chunks = []
    make_logits = OutputHead.__call__

    def watched(head, hidden):
        assert all(chunk.expired() for chunk in chunks)
        logits = make_logits(head, hidden)
        assert len(logits) <= ROWS
        chunks.append(StorageWeakRef(logits.untyped_storage()))
        return logits

    monkeypatch.setattr(OutputHead, "__call__", watched)
    model = make_llama(0, scale=0.1)
    scores = position_scores(
        hidden_states(model, batch), OutputHead(model), batch=batch, loss="forward_kl", measure=True
    )
    assert len(chunks) == 15
    assert chunks[-1].expired()
    scores.loss.backward()


def test_measures_are_those_of_all_logits_at_once(make_llama, batch, monkeypatch):
    monkeypatch.setattr("hotdraft.training.scoring.forward.CHUNK_LOGITS", 64 * ROWS)
    model = make_llama(0, scale=0.1)
    targets = (batch.top_ids, batch.top_logprobs, batch.tail_logprob)
    logits = draft_logits(model, batch)
    scores = position_scores(
        hidden_states(model, batch), OutputHead(model), batch=batch, loss="forward_kl", measure=True
    )
    zeros = torch.zeros_like(batch.temperature)
    torch.testing.assert_close(scores.overlap, expected_acceptance(logits, *targets, unfiltered(zeros + 1)))
    torch.testing.assert_close(scores.agreement, expected_acceptance(logits, *targets, unfiltered(zeros)))
    assert scores.overlap.shape == batch.weight.shape


def test_a_trimmed_head_learns_what_target_and_draft_share(make_llama, batch, monkeypatch):
    """Forward KL over the tokens that the draft has, weighted by what of the target's mass they have."""
    monkeypatch.setattr("hotdraft.training.scoring.forward.CHUNK_LOGITS", ROWS * 33)
    batch = batch._replace(
        **{name: getattr(batch, name).double() for name in ("top_logprobs", "tail_logprob", "weight")}
    )
    vocabulary = torch.arange(0, 64, 2)
    torch.manual_seed(1)
    oracle = lora(make_llama).train()
    draft = draft_logits(oracle, batch)[:, vocabulary].softmax(-1)
    expected = torch.zeros((), dtype=torch.double)
    for row, (ids, logprobs) in enumerate(zip(batch.top_ids, batch.top_logprobs, strict=True)):
        column = {int(token): index for index, token in enumerate(vocabulary)}
        known = [(column[int(i)], p) for i, p in zip(ids, logprobs.exp(), strict=True) if int(i) in column]
        masses = torch.stack([*(p for _, p in known), batch.tail_logprob[row].exp()])
        masses = masses / (logprobs.exp().sum() + batch.tail_logprob[row].exp())
        drafted = draft[row, [c for c, _ in known]]
        drafted = torch.cat([drafted, 1 - drafted.sum()[None]])
        conditional = masses / masses.sum()
        kl = (conditional * (conditional / drafted).log()).sum()
        expected = expected + batch.weight[row] * masses.sum() * kl
    expected.backward()

    torch.manual_seed(1)
    model = lora(make_llama).train()
    head = OutputHead(model, vocabulary)
    scores = position_scores(hidden_states(model, batch), head, batch=batch, loss="forward_kl", measure=True)
    scores.loss.backward()
    torch.testing.assert_close(scores.loss, expected, rtol=1e-7, atol=1e-8)
    for name, gradient in gradients(oracle).items():
        torch.testing.assert_close(gradients(model)[name], gradient, rtol=1e-6, atol=1e-9)

    covered = torch.isin(batch.top_ids.gather(1, batch.top_logprobs.argmax(1, keepdim=True))[:, 0], vocabulary)
    assert 0 < covered.sum() < len(covered)
    assert not scores.agreement[~covered].any(), "what the draft does not have is never accepted"


def test_greedy_requests_teach_a_cooled_target(make_llama, batch):
    model = make_llama(0, scale=0.1)
    greedy = torch.arange(len(batch.temperature)) % 2 == 0
    batch = batch._replace(temperature=torch.where(greedy, 0.0, 1.0))
    logits = draft_logits(model, batch)
    as_it_is, cooled = (
        distillation_loss(
            logits, batch.top_ids, power * batch.top_logprobs, power * batch.tail_logprob, loss="forward_kl"
        )
        for power in (1, 2)
    )
    expected = (torch.where(greedy, cooled, as_it_is) * batch.weight).sum()
    scores = position_scores(
        hidden_states(model, batch), OutputHead(model), batch=batch, loss="forward_kl", measure=False,
        greedy_temperature=0.5,
    )  # fmt: skip
    torch.testing.assert_close(scores.loss, expected)
    assert not torch.allclose(as_it_is[greedy], cooled[greedy])


def test_sampled_requests_teach_what_they_are_sampled_from_and_greedy_ones_as_before(make_llama, batch):
    model = make_llama(0, scale=0.1)
    kind = torch.arange(len(batch.temperature)) % 3
    batch = batch._replace(
        temperature=torch.tensor([0.0, 0.4, 0.7])[kind],
        top_p=torch.tensor([0.5, 1.0, 0.8])[kind],
    )
    logits = draft_logits(model, batch)
    sampling = batch.sampling
    top, tail = sampled_target(batch.top_logprobs, batch.tail_logprob, sampling, 64)
    power = torch.where(kind == 0, 2.0, 1.0)
    losses = distillation_loss(
        logits, batch.top_ids, power[:, None] * top, power * tail, loss="forward_kl", sampling=sampling
    )
    scores = position_scores(
        hidden_states(model, batch), OutputHead(model), batch=batch, loss="forward_kl", measure=True,
        greedy_temperature=0.5,
    )  # fmt: skip
    torch.testing.assert_close(scores.loss, (losses * batch.weight).sum())
    chances = expected_acceptance(logits, batch.top_ids, top, tail, sampling)
    torch.testing.assert_close(torch.where(kind == 0, scores.agreement, scores.overlap), chances)
    plain = distillation_loss(
        logits, batch.top_ids, 2 * batch.top_logprobs, 2 * batch.tail_logprob, loss="forward_kl"
    )
    torch.testing.assert_close(losses[kind == 0], plain[kind == 0], rtol=1e-3, atol=1e-3)


def test_a_head_that_has_nothing_of_what_filters_leave_learns_nothing_there(make_llama, batch):
    ones = torch.ones_like(batch.temperature)
    batch = batch._replace(temperature=0.5 * ones, top_k=ones.long(), any_filtered=True)
    kept = batch.top_ids[:, 0]
    lacking = int(kept.mode().values)
    model = lora(make_llama).train()
    head = OutputHead(model, torch.tensor([token for token in range(64) if token != lacking]))
    alone = batch._replace(weight=(kept == lacking).double())
    scores = position_scores(hidden_states(model, alone), head, batch=alone, loss="forward_kl", measure=True)
    scores.loss.backward()
    assert scores.loss.abs() < 1e-6
    assert not scores.overlap[kept == lacking].any()
    assert max(gradient.abs().max() for gradient in gradients(model).values()) < 1e-6
