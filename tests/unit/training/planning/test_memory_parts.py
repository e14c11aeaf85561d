"""The parts of a memory plan are what torch, peft and bitsandbytes take."""

import numpy as np
import pytest
import torch
from peft import get_peft_model_state_dict
from torch.autograd.graph import saved_tensors_hooks
from transformers import AutoModelForCausalLM

from hotdraft.pipeline.config.learning import LoraSection
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.loading import load_config_of
from hotdraft.pipeline.replay.sample import ReplaySample
from hotdraft.training.batches.packing import pack
from hotdraft.training.drafts.model_size import Widths, meta_model
from hotdraft.training.fit.lora import build_lora
from hotdraft.training.planning.memory_plan import NF4, Run, layer_bytes
from hotdraft.training.scoring.forward import OutputHead, hidden_states
from tests.unit.training.planning.plans import plan_of, settings, tiny


def test_parameters_are_those_that_transformers_counts(target):
    plan = plan_of(settings(target))
    run = plan.run
    assert run.target.num_parameters() == 6_061_035_520
    assert all(parameter.is_meta for parameter in run.target.parameters())
    config = load_config_of(target)
    config.num_hidden_layers, config.intermediate_size = 8, 7168
    with torch.device("meta"):
        draft = AutoModelForCausalLM.from_config(config)
    assert run.draft.num_parameters() == draft.num_parameters()
    assert run.trainable == sum(
        p.numel() for name, p in draft.named_parameters() if "embed_tokens" not in name and "lm_head" not in name
    )
    assert plan.training["frozen weights"] == 2 * 2 * 64000 * 4096


def test_training_state_of_each_method(target):
    full, lora, qlora = (plan_of(settings(target, method=method)) for method in ("full", "lora", "qlora"))
    trainable = full.run.trainable
    assert full.training["trained weights, float32"] == full.training["gradients"] == 4 * trainable
    assert full.training["AdamW state"] == 8 * trainable
    assert full.training["trained weights, cast"] == 2 * trainable
    wide = plan_of(settings(target, method="full").model_copy(update={"dtype": "float32"}))
    assert "trained weights, cast" not in wide.training, "they are computed with as they are"
    assert lora.run.trainable == qlora.run.trainable < trainable / 20
    total = lora.run.draft.num_parameters()
    assert lora.training["frozen weights"] == 2 * total
    quantized = 8 * (2 * 4096 * 4096 + 2 * 4096 * 512 + 3 * 4096 * 7168)
    assert qlora.training["frozen weights"] == 2 * total + int(NF4 * quantized)


def test_an_adapter_is_as_large_as_peft_makes_it():
    model, lora = tiny(2), LoraSection(rank=4, alpha=8, target_modules=["q_proj", "down_proj"])
    config = HotdraftConfig(target="t", predistill={"method": "lora", "lora": lora.model_dump()})
    state = get_peft_model_state_dict(build_lora(model, lora, "none"))
    made = sum(tensor.numel() for tensor in state.values())
    meta = meta_model(model.config)
    assert Run(config, meta, meta, "cpu", torch.float32, prompts=1).trainable == made


def test_nf4_takes_what_bitsandbytes_stores():
    model = tiny(1, hidden_size=512, intermediate_size=2048)
    name = "model.layers.0.mlp.down_proj"
    lora = build_lora(model, LoraSection(rank=4, target_modules=["down_proj"]), "nf4")
    weight = lora.get_submodule(f"base_model.model.{name}").base_layer.weight
    state = weight.quant_state
    stored = weight.nbytes + state.absmax.nbytes + state.state2.absmax.nbytes
    assert stored == pytest.approx(NF4 * model.get_submodule(name).weight.numel(), rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("grouped", [False, True])
def test_activations_are_what_autograd_keeps(dtype, adapted, grouped):
    tokens, kept = 192, []
    heads = 2 if grouped else 8
    for layers in (1, 2):
        model = tiny(layers, num_key_value_heads=heads).to(dtype)
        if adapted:
            model = build_lora(model, LoraSection(rank=1, alpha=1), "none")
        else:
            for part in (model.get_input_embeddings(), model.get_output_embeddings()):
                part.requires_grad_(False)
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.data = parameter.data.float()
        kept.append(saved_bytes(model, tokens, dtype))
    widths = Widths.of(tiny(1, num_key_value_heads=heads).config)
    size = dtype.itemsize
    predicted = tokens * layer_bytes(widths, size, residual=size, adapted=adapted)
    assert kept[1] - kept[0] == pytest.approx(predicted, rel=0.04)


def saved_bytes(model, tokens: int, dtype: torch.dtype) -> int:
    """Bytes of what the backward pass of `model` on `tokens` tokens will need, but for its parameters."""
    batch = pack([one_sample(tokens)], max_length=tokens)
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    storages = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters and not isinstance(tensor, torch.nn.Parameter):
            storages[storage.data_ptr()] = storage
        return tensor

    with (
        saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", dtype, enabled=dtype != torch.float32),
    ):
        states = hidden_states(model.train(), batch)
        logits = OutputHead(model)(states)
    casts = 2 * sum(p.numel() for name, p in model.named_parameters() if p.requires_grad and p.dim() > 1)
    assert logits.requires_grad
    return sum(storage.nbytes() for storage in storages.values()) - (casts if dtype != torch.float32 else 0)


def one_sample(tokens: int) -> ReplaySample:
    outputs = tokens - 8 + 1
    return ReplaySample(
        request_id="r", created_at=0.0, domain="d", temperature=1.0, prompt_ids=np.zeros(8, np.int32),
        output_ids=np.zeros(outputs, np.int32), target_top_ids=np.zeros((outputs, 1), np.int32),
        target_top_logprobs=np.zeros((outputs, 1), np.float16), target_tail_logprob=np.zeros(outputs, np.float32),
        drafted_ids=np.full(outputs, -1, np.int32), accepted=np.zeros(outputs, bool),
        draft_versions=np.zeros(outputs, np.int32),
    )  # fmt: skip
