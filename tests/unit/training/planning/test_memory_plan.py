import json
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import get_peft_model_state_dict
from rich.console import Console
from torch.autograd.graph import saved_tensors_hooks
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from hotdraft.pipeline.config.learning import LoraSection
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.loading import ModelError
from hotdraft.pipeline.replay.sample import ReplaySample
from hotdraft.training.batches.packing import pack
from hotdraft.training.drafts.model_size import Widths, meta_model, read_config
from hotdraft.training.fit.lora import build_lora
from hotdraft.training.planning.machine import Available, memory_limits, ram_bytes
from hotdraft.training.planning.memory_plan import RUNTIME, Run, plan_memory
from hotdraft.training.planning.plan_check import PlanError, changed, check
from hotdraft.training.planning.plan_table import plan_predistill, print_plan
from hotdraft.training.planning.plan_time import Speed, hours, tokens_per_second
from hotdraft.training.planning.training_memory import NF4, Parameters, layer_bytes
from hotdraft.training.scoring.forward import OutputHead, hidden_states

YI_6B = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 64000, "tie_word_embeddings": False,
}  # fmt: skip
GB = 10**9


@pytest.fixture
def target(tmp_path: Path) -> str:
    """A folder that holds a configuration and no weights."""
    folder = tmp_path / "yi"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(YI_6B))
    return str(folder)


def settings(
    target: str, *, engine: dict | None = None, replay: dict | None = None, **predistill
) -> HotdraftConfig:
    return HotdraftConfig(
        target=target,
        device="cuda",
        dtype="bfloat16",
        engine={"max_model_len": 2048} | (engine or {}),
        replay={"max_bytes": 10**12} | (replay or {}),
        predistill={"layers": 8, "feed_forward": 7168, "batch_tokens": 8192, "num_slots": 64} | predistill,
    )


def plan_of(config: HotdraftConfig):
    return plan_predistill(config, elsewhere=True)


def room_for(plan_bytes: int) -> Available:
    """A device that just holds so much."""
    return Available(int(plan_bytes / 0.95) + 1000, None, "a test's")


def tiny(layers: int, **changes) -> LlamaForCausalLM:
    sizes = {
        "vocab_size": 128, "hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 8,
        "num_key_value_heads": 2,
    }  # fmt: skip
    config = LlamaConfig(num_hidden_layers=layers, **(sizes | changes))
    torch.manual_seed(0)
    return LlamaForCausalLM(config)


def test_parameters_are_those_that_transformers_counts(target):
    plan = plan_of(settings(target))
    run = plan.run
    assert run.target.num_parameters() == 6_061_035_520
    assert all(parameter.is_meta for parameter in run.target.parameters())
    config = read_config(target)
    config.num_hidden_layers, config.intermediate_size = 8, 7168
    with torch.device("meta"):
        draft = AutoModelForCausalLM.from_config(config)
    assert run.parameters.total == draft.num_parameters()
    assert run.parameters.trainable == sum(
        p.numel() for name, p in draft.named_parameters() if "embed_tokens" not in name and "lm_head" not in name
    )
    assert run.parameters.frozen_bytes == 2 * 2 * 64000 * 4096
    assert (
        Parameters.of(draft, run.settings, torch.float32, freeze_shared=False).trainable == draft.num_parameters()
    )


def test_training_state_of_each_method(target):
    parts = plan_of(settings(target)).training[1].parts
    trainable = plan_of(settings(target)).run.parameters.trainable
    assert parts["trained weights, float32"] == parts["gradients"] == 4 * trainable
    assert parts["AdamW state"] == 8 * trainable

    lora = plan_of(settings(target, method="lora"))
    qlora = plan_of(settings(target, method="qlora"))
    assert lora.run.parameters.trainable == qlora.run.parameters.trainable < trainable / 20
    total = lora.run.parameters.total
    assert lora.training[1].parts["frozen weights"] == 2 * total
    quantized = 8 * (2 * 4096 * 4096 + 2 * 4096 * 512 + 3 * 4096 * 7168)
    assert qlora.training[1].parts["frozen weights"] == pytest.approx(2 * total + 0.5159 * quantized, rel=1e-4)
    assert qlora.training[1].parts["one layer dequantised"] == 2 * 4096 * 7168


def test_an_adapter_is_as_large_as_peft_makes_it():
    model, lora = tiny(2), LoraSection(rank=4, alpha=8, target_modules=["q_proj", "down_proj"])
    config = HotdraftConfig(target="t", predistill={"method": "lora", "lora": lora.model_dump()})
    state = get_peft_model_state_dict(build_lora(model, lora, "none"))
    made = sum(tensor.numel() for tensor in state.values())
    parameters = Parameters.of(meta_model(model.config), config.predistill, torch.float32, freeze_shared=True)
    assert parameters.trainable == made


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


def test_recording_holds_the_cache_of_all_slots(target):
    loading, answering = plan_of(settings(target)).recording
    per_token = 2 * 32 * 4 * 128 * 2  # keys and values, layers, heads, channels, bytes
    assert answering.parts["keys and values"] == loading.parts["keys and values"] == 64 * 2048 * per_token
    assert answering.parts["target"] == 2 * 6_061_035_520
    assert loading.parts["layers being stacked"] == 2 * 32 * (4096 * (4096 + 2 * 512) + 2 * 4096 * 11008)
    model = meta_model(read_config(target))
    few = plan_memory(Run(settings(target), model, model, False, "cuda", torch.bfloat16, prompts=3))
    assert few.recording[1].parts["keys and values"] == 3 * 2048 * per_token


def test_texts_and_the_drafts_own_answers_are_scored(target, tiny_draft):
    assert [moment.name for moment in plan_of(settings(target)).recording] == ["loading the target", "answering"]
    scored = plan_of(settings(target, sources=["texts"])).recording[-1]
    assert scored.name == "scoring"
    assert "draft" not in scored.parts
    own = plan_of(settings(target, on_policy_fraction=0.5, draft=tiny_draft))
    assert own.recording[-1].parts["draft"] > 2 * own.run.parameters.total
    assert own.run.answer_tokens == 1.5 * plan_of(settings(target)).run.answer_tokens


def test_checkpointing_and_devices(target):
    plain = plan_of(settings(target)).training[1]
    checkpointed = plan_of(settings(target, activation_checkpointing=True)).training[1]
    assert checkpointed.parts["activations"] < plain.parts["activations"] / 4
    assert checkpointed.parts["AdamW state"] == plain.parts["AdamW state"]

    sharded = plan_of(settings(target, strategy="fsdp", devices=4)).training[1]
    assert sharded.parts["AdamW state"] == plain.parts["AdamW state"] // 4
    assert sharded.parts["gathered by FSDP"] > 2 * 2 * 64000 * 4096
    assert plan_of(settings(target, strategy="ddp", devices=4)).training[1].parts == plain.parts


def test_what_fits_is_let_through(target):
    check(plan_of(settings(target)), Available(80 * GB, 100 * GB, "a GPU"))


ALTERNATIVES = [
    ({"activation_checkpointing": True}, "predistill.activation_checkpointing: true saves"),
    ({"batch_tokens": 512}, "predistill.batch_tokens: 512, predistill.accumulate: 16 saves"),
    (
        {"activation_checkpointing": True, "batch_tokens": 1024},
        "predistill.activation_checkpointing: true, predistill.batch_tokens: 1024, predistill.accumulate: 8 saves",
    ),
    ({"method": "lora"}, "predistill.method: lora saves"),
    ({"method": "lora", "activation_checkpointing": True}, "predistill.method: lora, predistill.activation"),
]


@pytest.mark.parametrize(("held", "named"), ALTERNATIVES)
def test_training_that_does_not_fit_is_refused_with_the_first_change_that_would(small, held, named):
    """A small target and a large draft, so that training is what needs most."""
    plan = small()
    least = small(**held).peak.total
    with pytest.raises(PlanError, match=named) as raised:
        check(plan, room_for(least))
    assert f"training takes {plan.peak.total / 1e9:.1f} GB, {(plan.peak.total - least) / 1e9:.1f} GB more" in str(
        raised.value
    )
    assert f"saves {(plan.peak.total - least) / 1e9:.1f} GB and fits" in str(raised.value)


@pytest.fixture
def small():
    """Plans of a draft of 1.5 B parameters for a target of next to nothing."""
    target = meta_model(tiny(1, vocab_size=64000).config)
    draft = meta_model(LlamaConfig(**YI_6B | {"num_hidden_layers": 8, "intermediate_size": 7168}))

    def make(**predistill):
        config = settings("small", draft="large", num_slots=1, **predistill)
        return plan_memory(Run(config, target, draft, False, "cuda", torch.bfloat16, prompts=1000))

    return make


def test_answering_that_does_not_fit_is_refused_with_the_first_change_that_would(target):
    plan = plan_of(settings(target))
    for change, named in (
        ({"num_slots": 16}, "predistill.num_slots: 16 saves"),
        (
            {"num_slots": 1, "engine": {"max_model_len": 1024}},
            "engine.max_model_len: 1024, predistill.num_slots: 1 saves",
        ),
    ):
        least = max(moment.total for moment in plan_of(settings(target, **change)).recording)
        with pytest.raises(PlanError, match=f"loading the target takes .* {named}"):
            check(plan, room_for(least))


def test_a_cut_may_keep_fewer_layers(target):
    plan = plan_of(settings(target, method="qlora", activation_checkpointing=True, batch_tokens=512))
    fewer = plan_of(settings(target, method="qlora", activation_checkpointing=True, batch_tokens=512, layers=4))
    room = room_for(max(moment.total for moment in fewer.training))
    with pytest.raises(PlanError, match=r"making the draft takes .*predistill\.layers: 4 saves"):
        check(plan, room)
    assert changed(plan.run, {"predistill.layers": 4}).parameters == fewer.run.parameters


def test_nothing_helps_a_target_that_is_too_large(target):
    with pytest.raises(PlanError, match="nothing that can be set makes it fit; the least would take 2"):
        check(plan_of(settings(target)), Available(8 * GB, None, "a GPU"))


def test_float32_may_become_bfloat16(target):
    config = settings(target, num_slots=1, engine={"max_model_len": 512}).model_copy(update={"dtype": "float32"})
    narrow = config.model_copy(update={"dtype": "bfloat16"})
    plan, least = plan_of(config), max(moment.total for moment in plan_of(narrow).recording)
    with pytest.raises(PlanError, match=r"loading the target takes .*: dtype: bfloat16 saves"):
        check(plan, room_for(least))


def test_the_disk_and_what_the_replay_buffer_keeps(target):
    plan = plan_of(settings(target, replay={"max_bytes": 10**8}, builtin_prompts=40_000, max_tokens=512))
    recorded, draft = plan.disk.parts["recorded answers"], plan.run.parameters
    assert plan.disk.parts["the draft"] == 2 * draft.total
    assert plan.disk.parts["checkpoints"] == 2 * (12 + 4) * draft.trainable
    needed = -(-recorded // GB) * GB
    with pytest.raises(PlanError, match=rf"the oldest above 0\.1 GB: replay\.max_bytes: {needed} keeps"):
        check(plan, Available(200 * GB, None, "a GPU"))
    free = plan.disk.total - recorded // 3
    with pytest.raises(PlanError, match=r"disk takes .* recorder\.top_k: 32 saves"):
        check(plan, Available(200 * GB, free, "a GPU"))


def test_on_a_cpu_the_answers_are_read_into_its_memory(tiny_target):
    config = HotdraftConfig(target=tiny_target, device="cpu", predistill={"layers": 1, "builtin_prompts": 1000})
    plan = plan_predistill(config)
    step = plan.training[1].parts
    assert step["gaps in the heap"] > step["activations"] / 2
    assert step["recorded answers"] == 1000 * 96 * (25 + 6 * 64)
    assert plan.training[2].parts["checkpoint being written"] == 12 * plan.run.parameters.trainable
    assert plan.peak.parts["runtime"] == RUNTIME["cpu"]
    check(plan, Available(ram_bytes(), None, "the machine's memory"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_here_needs_its_memory_told(target):
    with pytest.raises(ModelError, match="sees no CUDA device; with its memory given"):
        plan_predistill(settings(target))


def test_a_draft_that_exists_trains_its_embedding_too(target, tiny_draft):
    exists = plan_of(settings(target, draft=tiny_draft)).run
    assert exists.parameters.trainable == exists.parameters.total
    assert not exists.freeze_shared


@pytest.mark.parametrize("config", [{}, {"model_type": "t5"}, {"model_type": "no-such-type"}])
def test_a_folder_without_the_configuration_of_a_causal_lm(tmp_path, config):
    if config:
        (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError):
        plan_of(settings(str(tmp_path)))


def test_memory_limits_of_control_groups(tmp_path):
    def limit(folder: str, name: str, text: str) -> None:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / name).write_text(text)

    own = tmp_path / "cgroup"
    own.write_text("0::/pod/box\n")
    limit("pod/box", "memory.max", "max\n")
    limit("pod", "memory.max", "3000\n")
    assert list(memory_limits(tmp_path, own)) == [3000]
    own.write_text("4:memory:/job\n3:cpuset:/pod\n")
    limit("memory/job", "memory.limit_in_bytes", "2000\n")
    limit("memory", "memory.limit_in_bytes", "9000\n")
    assert list(memory_limits(tmp_path, own)) == [2000, 9000]
    assert list(memory_limits(tmp_path, tmp_path / "absent")) == []


def test_hours_at_a_measured_speed(target):
    plan = plan_of(settings(target, builtin_prompts=1000, max_tokens=360, max_steps=100, accumulate=4))
    needed = hours(plan, Speed(answer_tokens_per_second=100, train_tokens_per_second=8192))
    assert (needed.answering, needed.training) == (1.0, 400 / 3600)
    limited = plan_of(settings(target, builtin_prompts=0, max_steps=100, accumulate=4, max_seconds=36))
    assert hours(limited, Speed(100, 8192)).total == 0.01

    ticks = iter([0.0, 3.0])
    tokens = iter([7, 100, 200, 300])
    assert tokens_per_second(lambda: next(tokens), steps=3, clock=lambda: next(ticks)) == 200


def test_the_plan_is_printed_before_it_is_refused(target, capsys):
    console = Console(width=160)
    plan = plan_of(settings(target))
    print_plan(plan, memory_gb=80, console=console)
    told = capsys.readouterr().out
    assert "draft: 1.53 B parameters" in told
    assert "1.01 B train" in told
    assert f"{plan.peak.total / 1e9:.2f}" in told
    assert "Time: not measured" in told
    with pytest.raises(PlanError):
        print_plan(plan, memory_gb=20, speed=Speed(1000, 10000), console=console)
    told = capsys.readouterr().out
    assert "of 20.0 (as given)" in told
    assert "h for training at 10,000 tokens/s" in told
