import numpy as np
import pytest
import torch
from torch import Tensor

from hotdraft.training.batches.sampling import Sampling, sampled_target, unfiltered
from hotdraft.training.scoring.losses import DIVERGENCES, distillation_loss, expected_acceptance

ROWS, VOCABULARY = 130, 50  # more rows than one chunk
SMOOTH = sorted(set(DIVERGENCES) - {"lk_hybrid"})
"""The others' share depends on the masses, but its gradient does not tell."""


def target_of(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor, Tensor]:
    probs = logits.double().softmax(-1)
    top, ids = probs.topk(top_k)
    return ids, top.log(), probs.scatter(1, ids, 0.0).sum(-1).log()


def of_masses(name: str, t: Tensor, d: Tensor) -> Tensor:
    """The loss as its source writes it, of probabilities whose last dimension sums to 1."""

    def kl(a: Tensor, b: Tensor) -> Tensor:
        ratio = torch.where(a > 0, a, 1.0) / torch.where(a > 0, b, 1.0)
        return (a * ratio.log()).sum(-1)

    acceptance = torch.minimum(t, d).sum(-1)
    share = torch.exp(-3 * acceptance.detach())
    return {
        "forward_kl": lambda: kl(t, d),
        "reverse_kl": lambda: kl(d, t),
        "jsd": lambda: kl(t, (t + d) / 2) / 2 + kl(d, (t + d) / 2) / 2,
        "total_variation": lambda: 1 - acceptance,
        "negative_log_acceptance": lambda: -acceptance.log(),
        "lk_hybrid": lambda: share * kl(t, d) + (1 - share) * (1 - acceptance),
    }[name]()


def bucketed_oracle(name: str, draft: Tensor, ids: Tensor, top: Tensor, tail: Tensor) -> Tensor:
    probs = draft.softmax(-1)
    draft_tail = probs.scatter(1, ids, 0.0).sum(-1, keepdim=True)
    target = torch.cat([top.exp(), tail.exp()[:, None]], 1)
    return of_masses(name, target, torch.cat([probs.gather(1, ids), draft_tail], 1))


@pytest.fixture
def pair() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(ROWS, VOCABULARY).double() * 3, torch.randn(ROWS, VOCABULARY).double() * 3


@pytest.mark.parametrize("name", DIVERGENCES)
def test_equals_the_divergence_over_the_whole_vocabulary_when_all_tokens_are_kept(pair, name):
    target, draft = pair
    oracle_in = draft.clone().requires_grad_()
    oracle = of_masses(name, target.softmax(-1), oracle_in.softmax(-1))
    oracle.sum().backward()
    draft.requires_grad_()
    loss = distillation_loss(draft, *target_of(target, VOCABULARY), loss=name)
    loss.sum().backward()
    torch.testing.assert_close(loss, oracle)
    torch.testing.assert_close(draft.grad, oracle_in.grad)


@pytest.mark.parametrize("name", DIVERGENCES)
@pytest.mark.parametrize("top_k", [1, 7, 49])
def test_value_and_gradient_with_a_tail(pair, top_k, name):
    target, draft = pair
    weights = torch.rand(ROWS).double()
    oracle_in = draft.clone().requires_grad_()
    oracle = bucketed_oracle(name, oracle_in, *target_of(target, top_k))
    (oracle * weights).sum().backward()
    draft.requires_grad_()
    loss = distillation_loss(draft, *target_of(target, top_k), loss=name)
    (loss * weights).sum().backward()
    torch.testing.assert_close(loss, oracle)
    torch.testing.assert_close(draft.grad, oracle_in.grad)


@pytest.mark.parametrize("name", SMOOTH)
def test_gradcheck(pair, name):
    target, draft = pair
    ids, top, tail = target_of(target[:4], 5)
    assert torch.autograd.gradcheck(
        lambda x: distillation_loss(x, ids, top, tail, loss=name), draft[:4].clone().requires_grad_(), eps=1e-6
    )


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("top_k", [1, 5, 20])
def test_few_tokens_give_a_lower_bound(pair, top_k, name):
    target, draft = pair
    over_all = of_masses(name, target.softmax(-1), draft.softmax(-1))
    assert (distillation_loss(draft, *target_of(target, top_k), loss=name) <= over_all + 1e-9).all()


@pytest.mark.parametrize("name", DIVERGENCES)
def test_a_draft_equal_to_the_target_costs_nothing(pair, name):
    target, _ = pair
    draft = target.clone().requires_grad_()
    loss = distillation_loss(draft, *target_of(target, 8), loss=name)
    loss.sum().backward()
    assert loss.abs().max() < 1e-12
    if "kl" in name or name == "jsd":  # the others have a corner there
        assert draft.grad.abs().max() < 1e-12


def test_half_precision_log_probs_that_sum_to_more_than_one_give_no_negative_loss(pair):
    target, _ = pair
    ids, top, tail = target_of(target * 3, 30)
    top = top.half() + 0.01
    empty = torch.full_like(tail, -torch.inf).float()
    loss = distillation_loss((target * 3).float(), ids, top, empty, loss="forward_kl")
    assert top.double().exp().sum(-1).max() > 1
    assert loss.min() > -1e-5
    assert loss.max() < 0.1


@pytest.mark.parametrize("name", DIVERGENCES)
def test_an_empty_or_vanishing_tail_gives_finite_values_and_gradients(name):
    draft = torch.zeros(3, 6)
    draft[1, 0] = 200.0  # the draft's own tail underflows
    draft[2, 5] = 200.0  # the draft puts everything in the tail
    draft.requires_grad_()
    ids = torch.tensor([[0, 1]]).repeat(3, 1)
    top = torch.tensor([[0.5, 0.5]]).log().repeat(3, 1)
    tail = torch.tensor([-torch.inf, -2.0, -torch.inf])
    loss = distillation_loss(draft, ids, top, tail, loss=name)
    loss.sum().backward()
    assert torch.isfinite(loss).all()
    assert torch.isfinite(draft.grad).all()
    if name == "forward_kl":
        torch.testing.assert_close(loss[0].item(), float(np.log(3)))


@pytest.mark.parametrize("name", DIVERGENCES)
def test_bfloat16_logits_are_summed_in_float32(pair, name):
    target, draft = pair
    narrow = draft.bfloat16().requires_grad_()
    oracle_in = draft.bfloat16().double().requires_grad_()
    oracle = bucketed_oracle(name, oracle_in, *target_of(target, 8))
    oracle.sum().backward()
    loss = distillation_loss(narrow, *target_of(target, 8), loss=name)
    loss.sum().backward()
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), oracle, rtol=1e-5, atol=1e-5)
    assert narrow.grad.dtype == torch.bfloat16
    torch.testing.assert_close(narrow.grad.double(), oracle_in.grad, rtol=2**-7, atol=1e-6)


def test_expected_acceptance_is_the_overlap_above_temperature_0_and_agreement_at_0(pair):
    target, draft = pair
    ids, top, tail = target_of(target, VOCABULARY)
    half = torch.arange(ROWS) % 2
    got = expected_acceptance(draft, ids, top, tail, unfiltered(half))
    overlap = torch.minimum(target.softmax(-1), draft.softmax(-1)).sum(-1)
    agreement = (target.argmax(-1) == draft.argmax(-1)).double()
    torch.testing.assert_close(got, torch.where(half == 0, agreement, overlap))
    assert 0 < agreement.sum() < ROWS


def test_where_a_drafts_likeliest_tokens_are_equally_likely_the_first_is_drafted():
    logits = torch.tensor([[1.0, 3.0, 3.0], [1.0, 3.0, 3.0], [3.0, 1.0, 2.0]], dtype=torch.bfloat16)
    ids, logprobs = torch.tensor([[2], [1], [1]]), torch.zeros(3, 1)
    greedy = unfiltered(torch.zeros(3))
    assert expected_acceptance(logits, ids, logprobs, logprobs[:, 0], greedy).tolist() == [0, 1, 0]


def test_expected_acceptance_from_few_tokens_is_a_lower_bound(pair):
    target, draft = pair
    ids, top, tail = target_of(target, 5)
    got = expected_acceptance(draft, ids, top, tail, unfiltered(torch.ones(ROWS)))
    overlap = torch.minimum(target.softmax(-1), draft.softmax(-1)).sum(-1)
    assert (got <= overlap + 1e-9).all()
    assert (got >= overlap - tail.exp() - 1e-9).all()


def served_at(temperature: float, top_p: float = 1.0, top_k: int = 0, min_p: float = 0.0) -> Sampling:
    return Sampling(*(torch.full((ROWS,), value) for value in (temperature, top_p, top_k, min_p)))


def of_support(name: str, target: Tensor, draft: Tensor, sampling: Sampling) -> Tensor:
    """The loss over what either model's filters let through, of logits in dense tensors."""
    heat = sampling.temperature[:, None].double()
    served = torch.stack(
        [dense_filter((logits / heat).softmax(-1), sampling) for logits in (target, draft.detach())]
    )
    either = (served > 0).any(0)
    drafted = (draft / heat).masked_fill(~either, -torch.inf).softmax(-1)
    return of_masses(name, served[0], drafted) * sampling.temperature


def dense_filter(probs: Tensor, sampling: Sampling) -> Tensor:
    """Rank by rank, as `serving.sampling.logits` describes it."""
    kept = torch.zeros_like(probs)
    for row, (p, top_p, top_k, min_p) in enumerate(
        zip(probs, sampling.top_p.tolist(), sampling.top_k.tolist(), sampling.min_p.tolist(), strict=True)
    ):
        ordered, ids = p.sort(descending=True)
        if top_k:
            ordered, ids = ordered[:top_k], ids[:top_k]
        ordered = ordered / ordered.sum()
        before = 0.0
        for index, (token, mass) in enumerate(zip(ids.tolist(), ordered.tolist(), strict=True)):
            if index and (before >= top_p or mass < min_p * ordered[0].item()):
                break
            kept[row, token] = mass
            before += mass
    return kept / kept.sum(-1, keepdim=True)


FILTERS = [{}, {"top_p": 0.8}, {"top_k": 4}, {"min_p": 0.1}, {"top_p": 0.9, "top_k": 9, "min_p": 0.02}]


@pytest.mark.slow
@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 1.6])
def test_expected_acceptance_is_the_overlap_of_what_both_models_are_sampled_from(pair, temperature, filters):
    target, draft = pair
    sampling = served_at(temperature, **filters)
    ids, top, tail = target_of(target, VOCABULARY)
    got = expected_acceptance(draft, ids, *sampled_target(top, tail, sampling, VOCABULARY), sampling)
    served, drafted = (dense_filter((logits / temperature).softmax(-1), sampling) for logits in pair)
    torch.testing.assert_close(got, torch.minimum(served, drafted).sum(-1), rtol=1e-6, atol=1e-6)
    at_one = torch.minimum(target.softmax(-1), draft.softmax(-1)).sum(-1)
    assert filters or temperature == 1 or (got - at_one).abs().mean() > 0.01


@pytest.mark.parametrize(
    "name", sorted(set(DIVERGENCES) - {"reverse_kl"})
)  # infinite behind filters, but for its floor
@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_the_loss_is_between_what_both_models_are_sampled_from(pair, temperature, filters, name):
    target, draft = pair
    sampling = served_at(temperature, **filters)
    weights = torch.rand(ROWS).double()
    oracle_in = draft.clone().requires_grad_()
    oracle = of_support(name, target, oracle_in, sampling)
    (oracle * weights).sum().backward()
    draft.requires_grad_()
    ids, top, tail = target_of(target, VOCABULARY)
    served = sampled_target(top, tail, sampling, VOCABULARY)
    loss = distillation_loss(draft, ids, *served, loss=name, sampling=sampling)
    (loss * weights).sum().backward()
    torch.testing.assert_close(loss, oracle, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(draft.grad, oracle_in.grad, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("filters", FILTERS[1:], ids=str)
def test_filters_bar_what_neither_model_may_choose_unless_it_may_be_among_the_targets_tail(pair, filters):
    target, draft = pair
    sampling = served_at(1.0, **filters)
    ids, top, tail = target_of(target, 12)
    served = sampled_target(top, tail, sampling, VOCABULARY)
    has_tail = served[1] > -torch.inf
    oracle_in = draft.clone().requires_grad_()
    of_all = of_support("forward_kl", target, oracle_in, sampling)
    of_buckets = bucketed_oracle("forward_kl", oracle_in, ids, *served)
    oracle = torch.where(has_tail, of_buckets, of_all)
    oracle.sum().backward()
    draft.requires_grad_()
    loss = distillation_loss(draft, ids, *served, loss="forward_kl", sampling=sampling)
    loss.sum().backward()
    torch.testing.assert_close(loss, oracle, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(draft.grad, oracle_in.grad, rtol=1e-6, atol=1e-6)
    assert not has_tail.all()


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_drafting_as_the_target_does_costs_nothing_and_is_always_accepted(pair, filters):
    target, _ = pair
    sampling = served_at(0.8, **filters)
    ids, top, tail = target_of(target, 30)
    draft = target.clone().requires_grad_()
    top, tail = sampled_target(top, tail, sampling, VOCABULARY)
    if filters:
        accepted = expected_acceptance(draft, ids, top, tail, sampling)
        torch.testing.assert_close(accepted, torch.ones_like(accepted), rtol=0, atol=0.02)
    exact = sampled_target(*target_of(target, VOCABULARY)[1:], sampling, VOCABULARY)
    loss = distillation_loss(draft, target_of(target, VOCABULARY)[0], *exact, loss="forward_kl", sampling=sampling)
    loss.sum().backward()
    assert loss.abs().max() < 1e-6
    assert draft.grad.abs().max() < 1e-6


@pytest.mark.parametrize("name", DIVERGENCES)
def test_filters_give_finite_values_and_gradients_where_the_two_share_nothing(name):
    draft = torch.zeros(2, 6)
    draft[:, 5] = 200.0
    draft.requires_grad_()
    sampling = Sampling(*(torch.full((2,), value) for value in (0.5, 0.9, 3, 0.1)))
    top, tail = sampled_target(
        torch.tensor([[0.6, 0.3]]).log().repeat(2, 1), torch.tensor([0.1, 0.1]).log(), sampling, 6
    )
    loss = distillation_loss(draft, torch.tensor([[0, 1]]).repeat(2, 1), top, tail, loss=name, sampling=sampling)
    loss.sum().backward()
    assert torch.isfinite(loss).all()
    assert torch.isfinite(draft.grad).all()


@pytest.mark.parametrize("loss", DIVERGENCES)
def test_a_tail_that_rounding_left_beside_the_whole_vocabulary_is_none(loss):
    torch.manual_seed(0)
    target, draft = torch.randn(2, 3, 8).log_softmax(-1)
    ids = torch.arange(8).expand(3, 8)
    draft.requires_grad_()
    found = distillation_loss(draft, ids, target, torch.full((3,), -30.0), loss=loss)
    expected = distillation_loss(draft, ids, target, torch.full((3,), -torch.inf), loss=loss)
    assert torch.isfinite(found).all()
    torch.testing.assert_close(found, expected)
    found.sum().backward()
    assert torch.isfinite(draft.grad).all()
