"""All runners compute what transformers' own layers compute, over ragged slots that hold stale keys."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, DeepseekV3Config, DeepseekV3ForCausalLM, PreTrainedModel

from hotdraft.pipeline.models.names import ModelError
from hotdraft.serving.decoding.build import build_decoder
from hotdraft.serving.models.attention import ATTENTION, check_supported, register_attention
from hotdraft.serving.models.linear import cpu_has_bfloat16
from hotdraft.serving.models.llama_like import is_llama_like
from hotdraft.serving.models.runner import Window
from hotdraft.serving.native.bindings import Format
from tests.models import tiny_neox
from tests.unit.serving.models.runner_kinds import (
    INSTRUCTIONS,
    KINDS,
    LENGTHS,
    MAX_LENGTH,
    MODELS,
    OF_BFLOAT16,
    SIZES,
    SLOTS,
    STEPS,
    WINDOW,
    WINDOWED,
    Kind,
    make,
    natively,
)

MLA = {
    **SIZES, "num_key_value_heads": 4, "moe_intermediate_size": 24, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "n_shared_experts": 1, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8,
    "v_head_dim": 8, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
}  # fmt: skip


def run(kind: Kind, model: PreTrainedModel, ids: Tensor) -> list[Tensor]:
    """Logits [T, V] of each row's tokens from its prompt's last on: chunks of a prompt, then ragged windows."""
    runner = kind(copy.deepcopy(model))  # a runner takes it over
    with torch.inference_mode():
        everywhere = torch.arange(MAX_LENGTH).expand(SLOTS, -1)
        runner.forward(Window(slice(0, SLOTS), everywhere, MAX_LENGTH), (everywhere * 7) % 64, 1)  # stale keys
        outputs: list[list[Tensor]] = []
        for row, length in enumerate(LENGTHS):
            for start in range(0, length, 7):
                positions = torch.arange(start, min(start + 7, length))[None]
                window = Window(slice(row, row + 1), positions, 32)
                logits = runner.forward(window, ids[row : row + 1].gather(1, positions), 1)
            outputs.append([logits[0]])
        at = torch.tensor(LENGTHS)[:, None]
        for step in STEPS:
            positions = at + torch.arange(step)
            window = Window(slice(0, len(LENGTHS)), positions, 32)
            logits = runner.forward(window, ids.gather(1, positions), step)
            for row, output in enumerate(outputs):
                output.append(logits[row])
            at = at + step
    return [torch.cat(output) for output in outputs]


@torch.no_grad()
def expected(model: PreTrainedModel, ids: Tensor) -> list[Tensor]:
    plain = copy.deepcopy(model)
    plain.set_attn_implementation("sdpa")
    following = sum(STEPS)
    return [
        plain(ids[row : row + 1, : length + following], use_cache=False).logits[0, length - 1 :]
        for row, length in enumerate(LENGTHS)
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MODELS)
def test_computes_what_transformers_does(kind: str, name: str, ids: Tensor) -> None:
    model = make(**MODELS[name])
    assert is_llama_like(model)
    found, wanted = run(KINDS[kind], model, ids), expected(model, ids)
    assert max(float(logits.std()) for logits in wanted) > 0.5, "logits all alike would show nothing"
    for row, logits in enumerate(wanted):
        torch.testing.assert_close(found[row], logits, atol=2e-5, rtol=2e-5)


def test_another_architecture_is_left_to_transformers(ids: Tensor) -> None:
    register_attention()
    model = tiny_neox(layers=2, seed=0)
    model.set_attn_implementation(ATTENTION)
    assert not is_llama_like(model)
    for found, wanted in zip(run(KINDS["transformers"], model, ids), expected(model, ids), strict=True):
        torch.testing.assert_close(found, wanted, atol=2e-5, rtol=2e-5)


class Doubled(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return 2 * super().forward(inputs)


def test_a_layer_with_a_product_of_its_own_keeps_it_as_quantised_ones_must(ids: Tensor) -> None:
    model = make("llama")
    for layer in model.model.layers:
        layer.mlp.down_proj.__class__ = Doubled
    assert not is_llama_like(model)
    for found, wanted in zip(run(KINDS["transformers"], model, ids), expected(model, ids), strict=True):
        torch.testing.assert_close(found, wanted, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("vocabulary", [None, torch.arange(0, 64, 2)], ids=["whole", "trimmed"])
@pytest.mark.parametrize("whose", ["target", "draft", "draft that is the target otherwise"])
def test_a_head_with_a_product_of_its_own_is_refused(whose: str, vocabulary: Tensor | None) -> None:
    target = make("llama")
    draft = copy.deepcopy(target) if "otherwise" in whose else make("qwen2")
    (target if whose == "target" else draft).lm_head.__class__ = Doubled
    with pytest.raises(ModelError, match="output head that is a Doubled"):
        build_decoder(
            target, draft, num_slots=1, max_model_len=32, max_k=2, log_top_k=8, draft_vocabulary=vocabulary
        )


def test_keys_and_values_may_differ_in_width(ids: Tensor) -> None:
    register_attention()
    torch.manual_seed(1)
    model = DeepseekV3ForCausalLM(DeepseekV3Config(**MLA)).eval()
    model.set_attn_implementation(ATTENTION)
    for found, wanted in zip(run(KINDS["transformers"], model, ids), expected(model, ids), strict=True):
        torch.testing.assert_close(found, wanted, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("model_type", ["bloom", "falcon", "gpt_neo", "recurrent_gemma", "jamba"])
def test_what_slots_cannot_hold_is_refused_by_its_name(model_type: str) -> None:
    with pytest.raises(ModelError, match=f"{model_type} has .* of its own kind"):
        check_supported(AutoConfig.for_model(model_type), MAX_LENGTH)


@pytest.mark.parametrize("name", WINDOWED)
def test_sliding_windows_are_those_of_transformers(name: str, ids: Tensor) -> None:
    model = make(**WINDOWED[name])
    check_supported(model.config, MAX_LENGTH)
    assert not is_llama_like(model)
    found, wanted = run(KINDS["transformers"], model, ids), expected(model, ids)
    wide = copy.deepcopy(model)
    wide.config.sliding_window = 10 * WINDOW
    for layer in wide.model.layers:
        layer.self_attn.sliding_window = None
    seen_all = expected(wide, ids)
    assert not torch.allclose(wanted[1], seen_all[1], atol=1e-2), "a window that changes nothing would show nothing"
    for row, logits in enumerate(wanted):
        torch.testing.assert_close(found[row], logits, atol=2e-5, rtol=2e-5)
        assert torch.equal(found[row].argmax(-1), logits.argmax(-1))


def test_other_kinds_of_layers_are_refused() -> None:
    config = AutoConfig.for_model("llama4_text", **{**SIZES, "num_hidden_layers": 4})
    with pytest.raises(ModelError, match=r"chunked_attention.* not supported"):
        check_supported(config, MAX_LENGTH)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "dynamic", "factor": 2.0},
        {"rope_type": "longrope", "factor": 4.0, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4},
    ],
    ids=lambda rope: rope["rope_type"],
)
def test_a_rotation_by_the_longest_request_is_refused_where_it_would_reach_the_others(
    rope: dict[str, Any], ids: Tensor
) -> None:
    limit = 16 if rope["rope_type"] == "longrope" else 64
    config = make("llama", rope=rope).config
    with pytest.raises(ModelError, match=f"{rope['rope_type']} RoPE .* beyond {limit} tokens"):
        check_supported(config, limit + 1)
    check_supported(config, limit)
    config.rope_parameters = {
        "full_attention": config.rope_parameters,
        "sliding_attention": {"rope_type": "default"},
    }
    with pytest.raises(ModelError, match="RoPE"):
        check_supported(config, limit + 1)


def test_a_rotation_that_depends_on_the_length_is_not_fused() -> None:
    assert not is_llama_like(make("llama", rope={"rope_type": "dynamic", "factor": 2.0}))


@pytest.mark.skipif(not cpu_has_bfloat16(), reason="this CPU has no bfloat16 in oneDNN")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_packed_bfloat16_is_as_near_to_float32_as_plain_bfloat16(kind: str, name: str, ids: Tensor) -> None:
    model = make(**MODELS[name])
    exact = torch.cat(expected(model, ids)).softmax(-1)
    model = model.bfloat16()
    plain = distance(torch.cat(expected(model, ids)), exact)
    packed = distance(torch.cat(run(KINDS[kind], model, ids)), exact)
    assert 0 < packed < 2 * plain + 1e-3


@pytest.mark.parametrize("format", [Format.BFLOAT16, Format.W8A16])
@pytest.mark.parametrize("instructions", OF_BFLOAT16)
def test_a_native_token_is_the_same_to_the_bit_whatever_is_computed_beside_it(
    instructions: str, format: Format, ids: Tensor
) -> None:
    model = make("llama").bfloat16()
    runners = [natively(instructions, format, threads)(copy.deepcopy(model)) for threads in (1, 2, 3)]
    positions = torch.arange(40)[None]
    with torch.inference_mode():
        alone = torch.cat(
            [
                runners[0].forward(Window(slice(0, 1), positions[:, i : i + 1], 64), ids[:1, i : i + 1], 1)
                for i in range(40)
            ],
            1,
        )
        for runner in runners[1:]:
            beside = runner.forward(Window(slice(0, 3), positions.expand(3, -1), 64), ids[:, :40], 40)
            assert torch.equal(alone[0], beside[0])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("instructions", OF_BFLOAT16)
def test_weights_in_8_bits_are_near_to_float32(instructions: str, name: str, ids: Tensor) -> None:
    model = make(**MODELS[name])
    exact = torch.cat(expected(model, ids)).softmax(-1)
    found = torch.cat(run(natively(instructions, Format.W8A16), model.bfloat16(), ids))
    assert 0 < distance(found, exact) < 0.06


@pytest.mark.skipif("amx" not in INSTRUCTIONS, reason="this CPU has no AMX")
@pytest.mark.parametrize("name", MODELS)
def test_matrix_instructions_compute_8_bits_as_vectors_do_to_the_bit(name: str, ids: Tensor) -> None:
    by_matrix, by_vectors = (
        torch.cat(run(natively(instructions, Format.W8A16), make(**MODELS[name]), ids))
        for instructions in OF_BFLOAT16
    )
    assert torch.equal(by_matrix, by_vectors)


def distance(logits: Tensor, probs: Tensor) -> float:
    """Mean total variation."""
    return float((logits.float().softmax(-1) - probs).abs().sum(-1).mean() / 2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_moved_slot_goes_on_where_it_was(kind: str, ids: Tensor) -> None:
    runner = KINDS[kind](make("llama"))
    prompt, following = ids[:1, :9], ids[:1, 9:12]
    with torch.inference_mode():
        for row, tokens in ((2, prompt), (0, prompt.flip(1))):
            runner.forward(Window(slice(row, row + 1), torch.arange(9)[None], 32), tokens, 1)
        runner.move(2, 0, 9)
        at, there = (Window(slice(row, row + 1), torch.arange(9, 12)[None], 32) for row in (2, 0))
        assert torch.equal(runner.forward(at, following, 3), runner.forward(there, following, 3))


def test_its_linears_are_all_but_the_head_by_the_models_own_names() -> None:
    model = make("qwen2")
    names = {name for name, weight in model.named_parameters() if weight.ndim == 2}
    for kind in KINDS.values():
        runner = kind(copy.deepcopy(model))
        weights = {name: weight for linear in runner.linears for name, weight in linear.weights().items()}
        assert set(weights) == names - {"lm_head.weight", "model.embed_tokens.weight"}
        assert all(torch.equal(weight, model.get_parameter(name)) for name, weight in weights.items())
