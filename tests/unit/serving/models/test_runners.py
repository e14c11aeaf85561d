"""All runners compute what transformers' own layers compute, over ragged slots that hold stale keys."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from hotdraft.pipeline.models.names import ModelError
from hotdraft.serving.models.attention import ATTENTION, check_supported, register_attention
from hotdraft.serving.models.fused_runner import FusedRunner
from hotdraft.serving.models.linear import ServedLinear, cpu_has_bfloat16
from hotdraft.serving.models.llama_like import is_llama_like
from hotdraft.serving.models.native_runner import NativeRunner
from hotdraft.serving.models.runner import Runner, Window
from hotdraft.serving.models.transformers_runner import TransformersRunner
from hotdraft.serving.native.bindings import CONFIDENCES, Format, NativeError, ThreadPool, find_instructions
from hotdraft.serving.native.linear import NativeLinear
from hotdraft.serving.native.memory import WeightMemory
from tests.models import tiny_neox

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama, one head each": {"model_type": "llama", "num_key_value_heads": 4},
    "llama, biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "llama, tied": {"model_type": "llama", "tie_word_embeddings": True},
    "llama, llama3 rope": {"model_type": "llama", "rope": LLAMA3},
    "llama, yarn rope": {"model_type": "llama", "rope": YARN},
    "llama, linear rope": {"model_type": "llama", "rope": {"rope_type": "linear", "factor": 3.0}},
    "mistral, wide heads": {"model_type": "mistral", "sliding_window": None, "head_dim": 16},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3", "head_dim": 16, "num_key_value_heads": 1},
    "odd sizes": {"model_type": "qwen2", "hidden_size": 40, "intermediate_size": 50, "vocab_size": 71},
    "heads of 80": {"model_type": "llama", "head_dim": 80, "attention_bias": True},
    "heads of 128": {"model_type": "qwen3", "head_dim": 128},
}
WINDOW = 5
WINDOWED: dict[str, dict[str, Any]] = {
    "mistral": {"model_type": "mistral", "sliding_window": WINDOW},
    "qwen2, every other layer": {
        "model_type": "qwen2", "use_sliding_window": True, "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "qwen3, all layers": {
        "model_type": "qwen3", "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 0,
    },
    "gemma3": {
        "model_type": "gemma3_text", "sliding_window": WINDOW, "head_dim": 8,
        "layer_types": ["sliding_attention", "full_attention"],
    },
}  # fmt: skip
SLOTS, MAX_LENGTH = 4, 48
LENGTHS = [3, 17, 9]
"""Prompt lengths of the slots in use."""
STEPS = [4, 1, 1, 6]
"""Tokens that follow for every row, window by window."""


def make(model_type: str, rope: dict[str, Any] | None = None, **changes: Any) -> PreTrainedModel:
    """A random model whose biases and norms do something, too."""
    register_attention()
    config = AutoConfig.for_model(model_type, **{**SIZES, **changes})
    if rope is not None:
        config.rope_parameters = {"rope_theta": 10000.0, "original_max_position_embeddings": 16, **rope}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


Kind = Callable[[PreTrainedModel], Runner]


def by_torch(kind: type[FusedRunner] | type[TransformersRunner]) -> Kind:
    def make_runner(model: PreTrainedModel) -> Runner:
        head = ServedLinear.of({"head": model.get_output_embeddings()})
        return kind(model, head, SLOTS, MAX_LENGTH, why_not_native="torch is meant")

    return make_runner


def natively(instructions: str, format: Format | None = None, threads: int = 2) -> Kind:
    """With weights of the model's own dtype, if `format` names no other."""

    def make_runner(model: PreTrainedModel) -> Runner:
        weights = format or (Format.BFLOAT16 if model.dtype == torch.bfloat16 else Format.FLOAT32)
        memory = WeightMemory()
        head = NativeLinear.of({"head": model.get_output_embeddings()}, weights, memory)
        pool = ThreadPool(instructions, threads)
        return NativeRunner(model, head, SLOTS, MAX_LENGTH, format=weights, memory=memory, pool=pool)

    return make_runner


def can(instructions: str) -> bool:
    try:
        return find_instructions(instructions) == instructions
    except NativeError:
        return False


INSTRUCTIONS = [name for name in ("avx512_bf16", "avx512", "avx2") if can(name)]
KINDS = {
    "fused": by_torch(FusedRunner),
    "transformers": by_torch(TransformersRunner),
    **{name: natively(name) for name in INSTRUCTIONS},
}


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


@pytest.fixture
def ids() -> Tensor:
    return torch.randint(64, (len(LENGTHS), MAX_LENGTH), generator=torch.Generator().manual_seed(1))


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


@pytest.mark.skipif("avx512_bf16" not in INSTRUCTIONS, reason="this CPU has no AVX-512 BF16")
@pytest.mark.parametrize("format", [Format.BFLOAT16, Format.W8A16])
def test_a_native_token_is_the_same_to_the_bit_whatever_is_computed_beside_it(format: Format, ids: Tensor) -> None:
    model = make("llama").bfloat16()
    runners = [natively("avx512_bf16", format, threads)(copy.deepcopy(model)) for threads in (1, 2, 3)]
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


@pytest.mark.skipif("avx512_bf16" not in INSTRUCTIONS, reason="this CPU has no AVX-512 BF16")
@pytest.mark.parametrize("name", MODELS)
def test_weights_in_8_bits_are_near_to_float32(name: str, ids: Tensor) -> None:
    model = make(**MODELS[name])
    exact = torch.cat(expected(model, ids)).softmax(-1)
    found = torch.cat(run(natively("avx512_bf16", Format.W8A16), model.bfloat16(), ids))
    assert 0 < distance(found, exact) < 0.06


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


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_different_lengths_are_computed_as_if_they_were_alone(kind: str, ids: Tensor) -> None:
    model, counts = make("llama"), [3, 0, 5]
    positions = torch.arange(5).expand(3, -1)
    with torch.inference_mode():
        ragged = KINDS[kind](copy.deepcopy(model)).forward(
            Window(slice(0, 3), positions, 32, torch.tensor(counts, dtype=torch.int32)), ids[:3, :5], 5
        )
        for row, count in enumerate(counts):
            if count:
                window = Window(slice(row, row + 1), positions[:1, :count], 32)
                alone = KINDS[kind](copy.deepcopy(model)).forward(window, ids[row : row + 1, :count], count)
                torch.testing.assert_close(ragged[row, :count], alone[0])


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_drafts_of_different_lengths_behind_different_rests_are_those_of_single_steps(
    instructions: str, ids: Tensor
) -> None:
    model, ks = make("qwen2"), [2, 0, 3]
    positions = torch.arange(4).expand(3, -1)
    with torch.inference_mode():
        runner = natively(instructions)(copy.deepcopy(model))
        assert isinstance(runner, NativeRunner)
        # of the last row all but one token have been read
        runner.forward(Window(slice(2, 3), positions[:1, :3], 32), ids[2:3, :3], 1)
        drafted, counts, _, sound, *_ = runner.draft_greedily(
            positions.numpy(), ids[:3, :4].numpy(), [4, 0, 1], ks, np.ones(CONFIDENCES), [0.0] * 3, 0
        )
        assert sound.all()
        assert counts.tolist() == ks
        stepping = natively(instructions)(copy.deepcopy(model))
        for row, k in enumerate(ks):
            fed, at = ids[row : row + 1, :4], positions[:1]
            for step in range(k):
                fed = stepping.forward(Window(slice(row, row + 1), at, 32), fed, 1).argmax(-1)
                at = torch.tensor([[4 + step]])
                assert drafted[row, step] == fed
            assert not drafted[row, k:].any()


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_a_draft_ends_where_it_is_not_sure_enough(instructions: str, ids: Tensor) -> None:
    model, positions = make("llama"), torch.arange(4)[None]
    with torch.inference_mode():
        whole = natively(instructions)(copy.deepcopy(model))
        stepping = natively(instructions)(copy.deepcopy(model))
        assert isinstance(whole, NativeRunner)
        rates, prompt = np.linspace(0.1, 0.9, CONFIDENCES), (positions.numpy(), ids[:1, :4].numpy())
        drafted, counts, confidences, _, others, chances = whole.draft_greedily(*prompt, [4], [6], rates, [0.0], 3)
        assert counts.tolist() == [6]
        fed, at, reached = ids[:1, :4], positions, 1.0
        for step in range(6):
            probs = stepping.forward(Window(slice(0, 1), at, 32), fed, 1).softmax(-1)
            chance, fed = probs.max(-1)
            at = torch.tensor([[4 + step]])
            assert drafted[0, step] == fed
            best = probs[0, 0].topk(4)
            assert others[0, step].tolist() == best.indices[1:].tolist()
            torch.testing.assert_close(torch.from_numpy(chances[0, step]), best.values)
            confidence = int(confidences[0, step])
            assert confidence == min(int(chance * CONFIDENCES), CONFIDENCES - 1)
            reached *= float(rates[confidence])
            again = whole.draft_greedily(*prompt, [4], [6], rates, [1.001 * reached], 0)
            assert again.num_drafted.tolist() == [step + 1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_whose_key_lies_elsewhere_sees_what_is_before_its_position(kind: str, ids: Tensor) -> None:
    """Two tokens at one position: neither sees the other, and the second may be brought to where the first is."""
    runner, alone = (KINDS[kind](make("qwen2")) for _ in range(2))
    prompt, first, second, following = ids[:1, :6], ids[:1, 6:7], ids[:1, 7:8], ids[:1, 8:9]

    def at(positions: list[int], keys: list[int] | None = None) -> Window:
        stored = None if keys is None else torch.tensor([keys])
        return Window(slice(0, 1), torch.tensor([positions]), 32, keys=stored)

    with torch.inference_mode():
        for one in (runner, alone):
            one.forward(at(list(range(6))), prompt, 1)
        both = runner.forward(at([6, 6], [6, 7]), torch.cat([first, second], 1), 2)
        torch.testing.assert_close(both[:, :1], alone.forward(at([6]), first, 1))
        torch.testing.assert_close(both[:, 1:], alone.forward(at([6]), second, 1))
        runner.move_keys(torch.tensor([7]), torch.tensor([6]))
        torch.testing.assert_close(runner.forward(at([7]), following, 1), alone.forward(at([7]), following, 1))


@pytest.mark.parametrize("model", ["llama", "heads of 80"])
@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_natively_a_token_beside_a_chain_is_computed_as_in_its_place_to_the_last_bit(
    dtype: torch.dtype, instructions: str, model: str, ids: Tensor
) -> None:
    runner, alone = (natively(instructions)(make(**MODELS[model]).to(dtype)) for _ in range(2))
    chain, beside = ids[0, 17:21], ids[0, 21:26]
    instead_of = [18, 19, 19, 20, 21]

    def window(positions: list[int], keys: list[int]) -> Window:
        return Window(slice(0, 1), torch.tensor([positions]), 32, keys=torch.tensor([keys]))

    with torch.inference_mode():
        for one in (runner, alone):
            one.forward(window(list(range(17)), list(range(17))), ids[:1, :17], 1)
        tree = window([*range(17, 21), *instead_of], list(range(17, 26)))
        logits = runner.forward(tree, torch.cat([chain, beside])[None], 9)[0]
        for token, position, found in zip(beside, instead_of, logits[4:], strict=True):
            path = [*chain[: position - 17], token]
            places = list(range(17, position + 1))
            assert torch.equal(alone.forward(window(places, places), torch.stack(path)[None], 1)[0, 0], found)
