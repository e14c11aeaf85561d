from types import SimpleNamespace

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from hotdraft.pipeline.config.learning import LoraSection
from hotdraft.pipeline.models.adapter_folder import AdapterBase, AdapterCard, load_adapter
from hotdraft.training.batches.replay_data import pack
from hotdraft.training.fit.lora import (
    LoraError,
    build_lora,
    merged_model,
    resolve_quantization,
    save_lora,
    target_modules,
)
from hotdraft.training.scoring.forward import hidden_states
from hotdraft.training.scoring.kept_prompts import KeptPrompts
from hotdraft.training.scoring.losses import distillation_loss
from tests.unit.training.masked import draft_logits

SECTION = LoraSection(rank=4, alpha=8)
LINEARS = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]


def card(quantization):
    return AdapterCard("f", quantization, 4, 8, LINEARS, 0, 1, 1, {"d": 1}, 0.0)


def train(model, batch, steps):
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=1e-2)
    losses = []
    model.train()
    for _ in range(steps):
        targets = (batch.top_ids, batch.top_logprobs, batch.tail_logprob)
        loss = distillation_loss(draft_logits(model, batch), *targets, loss="forward_kl").mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_all_linear_leaves_out_the_output_head(make_llama):
    assert target_modules(make_llama(0), "all-linear") == LINEARS
    assert target_modules(make_llama(0), ["v_proj", "q_proj"]) == ["q_proj", "v_proj"]
    with pytest.raises(LoraError, match="c_attn"):
        target_modules(make_llama(0), ["c_attn"])
    of_conv1d = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=1, n_head=4))
    with pytest.raises(LoraError, match="GPT2LMHeadModel has no linear layer"):
        target_modules(of_conv1d, "all-linear")


@pytest.mark.parametrize(
    ("parameters", "device", "chosen"),
    [
        (1_530_000_000, "cuda", "nf4"),
        (500_000_000, "cuda", "nf4"),
        (494_000_000, "cuda", "none"),
        (135_000_000, "cuda", "none"),
        (1_530_000_000, "cpu", "none"),
    ],
)
def test_auto_is_nf4_for_large_drafts_on_a_gpu(parameters, device, chosen):
    draft = SimpleNamespace(device=torch.device(device), num_parameters=lambda: parameters)
    assert resolve_quantization("auto", draft) == chosen
    assert [resolve_quantization(choice, draft) for choice in ("nf4", "none")] == ["nf4", "none"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("quantization", ["none", "nf4"])
def test_training_reaches_every_layer_and_lowers_the_loss(make_llama, serve, quantization, dtype):
    batch = pack(serve(make_llama(1, scale=0.3), 8), max_length=1000)
    base = make_llama(0, scale=0.1).to(dtype)
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    model = build_lora(base, SECTION, quantization)
    losses = train(model, batch, 15)
    assert losses[-1] < 0.9 * losses[0]
    gradients = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    assert len(gradients) == 2 * 2 * len(LINEARS)
    assert all(gradient.abs().max() > 0 for gradient in gradients.values())
    assert all(p.dtype == torch.float32 for p in model.parameters() if p.requires_grad)
    assert all(torch.equal(tensor, before[name]) for name, tensor in base.state_dict().items())


@pytest.mark.parametrize("quantization", ["none", "nf4"])
def test_gradients_reach_every_layer_after_prompts_that_were_read_without(make_llama, serve, quantization):
    batch = pack(serve(make_llama(1, scale=0.3), 4), max_length=1000)
    model = build_lora(make_llama(0, scale=0.1).bfloat16(), SECTION, quantization).train()
    prompts = KeptPrompts(steps=2)
    for prompts.step in range(4):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            hidden_states(model, batch, prompts).float().square().sum().backward()
        gradients = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
        assert all(gradient.any() for name, gradient in gradients.items() if "lora_B" in name)


@pytest.mark.parametrize("quantization", ["none", "nf4"])
def test_a_saved_adapter_merges_into_what_was_trained(make_llama, serve, tmp_path, quantization):
    samples = serve(make_llama(1, scale=0.3), 4)
    base = make_llama(0, scale=0.1)
    model = build_lora(base, SECTION, quantization)
    train(model, pack(samples, max_length=1000), 5)
    save_lora(tmp_path, model, card(quantization))
    adapter = load_adapter(tmp_path, AdapterBase.of(base, "f"))
    merged = merged_model(base, adapter)
    with torch.no_grad():
        logits = merged(input_ids=adapter.probe_ids).logits[0, -8:]
        untrained = base(input_ids=adapter.probe_ids).logits[0, -8:]
    torch.testing.assert_close(logits, adapter.probe_logits, rtol=1e-3, atol=1e-3)
    assert (untrained - adapter.probe_logits).abs().max() > 0.05


def test_training_goes_on_from_a_saved_adapter(make_llama, serve, tmp_path):
    samples = serve(make_llama(1, scale=0.3), 4)
    batch = pack(samples, max_length=1000)
    base = make_llama(0, scale=0.1)
    model = build_lora(base, SECTION, "none")
    train(model, batch, 10)
    save_lora(tmp_path, model, card("none"))
    continued = build_lora(base, SECTION, "none", initial=load_adapter(tmp_path, AdapterBase.of(base, "f")))
    with torch.no_grad():
        torch.testing.assert_close(draft_logits(continued, batch), draft_logits(model, batch))
