import pytest
import torch
from transformers import LlamaConfig, Qwen2Config

from hotdraft.training.drafts.draft_cost import (
    DraftCost,
    ModelCost,
    describe_cost,
    predicted_cost,
    predicted_speed_up,
    show_cost,
)
from hotdraft.training.drafts.draft_init import cut_layers
from tests.models import tiny_llama

VOCABULARY, HIDDEN, FEED_FORWARD = 500, 32, 64


def config(layers: int, *, tied: bool, kind=LlamaConfig, feed_forward: int = FEED_FORWARD):
    return kind(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=feed_forward, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=tied,
    )  # fmt: skip


def layer_parameters(feed_forward: int = FEED_FORWARD) -> int:
    """Of a Llama layer: query and output, key and value of half as many heads, MLP, two norms."""
    return 2 * HIDDEN**2 + 2 * HIDDEN * HIDDEN // 2 + 3 * HIDDEN * feed_forward + 2 * HIDDEN


def cost_of(c: float, max_k: int = 4) -> DraftCost:
    model = ModelCost(1, 1, 1, 1, 1, 1_000_000)
    return DraftCost(model, ModelCost(1, 1, 1, 1, 1, round(1_000_000 * c)), 1, max_k)


@pytest.mark.parametrize("tied", [False, True])
def test_bytes_are_those_of_the_weights_a_step_reads(tied):
    cost = predicted_cost(
        config(8, tied=tied), config(2, tied=tied, feed_forward=16), head_size=100, max_k=4, dtype=torch.bfloat16
    )
    matrix = VOCABULARY * HIDDEN
    target_body, draft_body = 8 * layer_parameters() + HIDDEN, 2 * layer_parameters(16) + HIDDEN
    assert cost.target.parameters == target_body + (1 if tied else 2) * matrix
    assert cost.draft.parameters == draft_body + (1 if tied else 2) * matrix
    assert cost.draft.parameters_without_embedding == draft_body + (0 if tied else matrix)
    assert cost.draft.bytes == 2 * cost.draft.parameters
    assert cost.target.bytes_per_step == 2 * (target_body + matrix)
    assert cost.draft.bytes_per_step == 2 * (draft_body + 100 * HIDDEN)
    assert cost.cost_ratio == (draft_body + 100 * HIDDEN) / (target_body + matrix)
    assert (cost.target.layers, cost.draft.layers) == (8, 2)
    assert (cost.target.feed_forward, cost.draft.feed_forward) == (64, 16)


def test_a_head_is_never_larger_than_the_vocabulary():
    pair = (config(4, tied=True), config(1, tied=True))
    whole = predicted_cost(*pair, head_size=None, max_k=4, dtype=torch.float32)
    assert whole.head_size == VOCABULARY
    assert predicted_cost(*pair, head_size=10**6, max_k=4, dtype=torch.float32) == whole


def test_sizes_are_those_of_the_model_made():
    target = tiny_llama(layers=3, seed=1)
    draft = cut_layers(target, [0, 2])
    before = target.config.to_dict()
    cost = predicted_cost(target.config, draft.config, head_size=None, max_k=4, dtype=torch.float32)
    assert target.config.to_dict() == before
    assert cost.target.parameters == target.num_parameters()
    assert cost.draft.parameters == draft.num_parameters()


def test_biases_of_a_qwen_count():
    llama, qwen = (
        predicted_cost(
            config(2, tied=True, kind=kind), config(1, tied=True), head_size=None, max_k=1, dtype=torch.int8
        )
        for kind in (LlamaConfig, Qwen2Config)
    )
    assert qwen.target.bytes_per_step - llama.target.bytes_per_step == 2 * (HIDDEN + 2 * HIDDEN // 2)


def test_speed_up_follows_leviathan():
    assert predicted_speed_up(0.5, 3, 0.1) == pytest.approx((1 - 0.5**4) / (0.5 * 1.3))
    assert predicted_speed_up(1.0, 4, 0.25) == pytest.approx(2.5)  # the formula's limit
    assert predicted_speed_up(0.0, 1, 0.1) == pytest.approx(1 / 1.1)
    assert predicted_speed_up(0.7, 0, 0.9) == 1


@pytest.mark.parametrize("max_k", [1, 4, 8])
@pytest.mark.parametrize("c", [0.02, 0.3, 0.75])
def test_drafting_pays_just_above_break_even(c, max_k):
    cost = cost_of(c, max_k)
    assert cost.break_even == pytest.approx(c)
    assert cost.speed_up(c - 1e-3) == 1
    assert cost.best_k(c - 1e-3) == 0
    assert cost.speed_up(c + 1e-3) > 1
    assert cost.best_k(c + 1e-3) >= 1


def test_more_is_drafted_where_more_is_accepted():
    cost = cost_of(0.1)
    assert [cost.best_k(acceptance) for acceptance in (0.05, 0.2, 0.5, 0.95)] == [0, 1, 2, 4]


def test_a_draft_as_slow_as_its_target_never_pays():
    cost = cost_of(1.0)
    assert cost.break_even is None
    assert cost.speed_up(0.99) == 1
    assert "drafting cannot pay" in describe_cost(cost)


def test_what_is_shown(capsys):
    show_cost(
        predicted_cost(config(8, tied=True), config(2, tied=True), head_size=100, max_k=4, dtype=torch.float32)
    )
    shown = capsys.readouterr().out
    assert "c = 0.2" in shown
    assert "with a head of 100 tokens" in shown
    assert "0.9 (k = 4)" in shown
