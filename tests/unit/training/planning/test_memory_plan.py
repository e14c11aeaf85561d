import json
import shutil
from dataclasses import asdict

import pytest
import torch
from rich.console import Console
from transformers import LlamaConfig

from hotdraft.pipeline.config.learning import PredistillConfig
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.loading import load_config_of
from hotdraft.pipeline.models.names import CUT_FILE, Cut, ModelError
from hotdraft.pipeline.system.resources import ram_bytes
from hotdraft.training.drafts.model_size import Widths, meta_model
from hotdraft.training.planning.machine import Available, available_for
from hotdraft.training.planning.memory_plan import RUNTIME, WIDENED, Run, layer_bytes, plan_memory
from hotdraft.training.planning.plan_check import PlanError, check, check_step
from hotdraft.training.planning.plan_table import plan_predistill, tables
from hotdraft.training.planning.plan_time import Step, describe_time
from hotdraft.training.scoring.forward import CHUNK_LOGITS, STEPS
from hotdraft.training.scoring.target_reader import MOST_BYTES
from tests.unit.training.planning.plans import GB, YI_6B, plan_of, room_for, settings, tiny, total


def test_recording_holds_the_cache_of_all_slots(target):
    recording = plan_of(settings(target)).recording
    per_token = 2 * 32 * 4 * 128 * 2  # keys and values, layers, heads, channels, bytes
    assert recording["keys and values"] == 64 * 2048 * per_token
    assert recording["target"] == 2 * 6_061_035_520
    stacked = 2 * 32 * (4096 * (4096 + 2 * 512) + 2 * 4096 * 11008)
    assert recording["activations, or layers being stacked"] == stacked
    model = meta_model(load_config_of(target))
    few = plan_memory(Run(settings(target), model, model, "cuda", torch.bfloat16, prompts=3))
    assert few.recording["keys and values"] == 3 * 2048 * per_token
    texts = plan_of(settings(target, sources=["texts"], on_policy_fraction=0.5, draft=target))
    assert texts.run.answer_tokens == 1.5 * plan_of(settings(target)).run.answer_tokens


def test_checkpointing_and_devices(target):
    plain = plan_of(settings(target)).training
    checkpointed = plan_of(settings(target, activation_checkpointing=True)).training
    assert checkpointed["activations"] < plain["activations"] / 4
    assert checkpointed["AdamW state"] == plain["AdamW state"]

    sharded = plan_of(settings(target, strategy="fsdp", devices=4)).training
    for part in ("frozen weights", "trained weights, float32", "gradients", "AdamW state"):
        assert sharded[part] == plain[part] // 4
    layer = (plain["frozen weights"] + plain["trained weights, float32"]) // 8
    gathered = (
        4 * 2 * 64000 * 4096 + 3 * layer
    )  # in float32 what is outside of layers, two of these, gradients of one
    assert sharded["gathered by FSDP"] == pytest.approx(gathered)
    assert plan_of(settings(target, strategy="ddp", devices=4)).training == plain


def test_logits_are_there_a_chunk_at_a_time_and_no_more_than_there_are(target):
    many, few = (plan_of(settings(target, batch_tokens=tokens)).training for tokens in (8192, 64))
    assert many["chunk of logits, gradient"] == 2 * 2 * CHUNK_LOGITS + WIDENED
    assert few["chunk of logits, gradient"] == 2 * 2 * 64 * 64000 + WIDENED


ALTERNATIVES = [
    ({"activation_checkpointing": True}, "predistill.activation_checkpointing: true saves"),
    ({"batch_tokens": 512}, "predistill.batch_tokens: 512, predistill.accumulate: 16 saves"),
    (
        {"activation_checkpointing": True, "batch_tokens": 1024},
        "predistill.activation_checkpointing: true, predistill.batch_tokens: 1024, predistill.accumulate: 8 saves",
    ),
    ({"method": "lora"}, "predistill.method: lora saves"),
    (
        {"method": "lora", "activation_checkpointing": True, "batch_tokens": 512},
        "predistill.activation_checkpointing: true, predistill.batch_tokens: 512, predistill.accumulate: 16, "
        "predistill.method: lora saves",
    ),
]


@pytest.mark.parametrize(("held", "named"), ALTERNATIVES)
def test_training_that_does_not_fit_is_refused_with_the_first_change_that_would(small, held, named):
    """A small target and a large draft, so that training is what needs most."""
    taken, least = total(small().training), total(small(**held).training)
    with pytest.raises(PlanError, match=f"training takes {taken / 1e9:.1f} GB .*{named}") as raised:
        check(small(), room_for(least))
    assert f"saves {(taken - least) / 1e9:.1f} GB" in str(raised.value)
    check(small(), room_for(least), training=False)


def test_what_trains_on_one_device_may_be_shared_out_to_the_fewest_that_hold_it(target):
    small = {"draft": target, "method": "lora", "activation_checkpointing": True, "batch_tokens": 512}
    one, alike, two, four = (
        plan_of(settings(target, **small, strategy=strategy, devices=devices))
        for strategy, devices in (("ddp", 1), ("ddp", 2), ("fsdp", 2), ("fsdp", 4))
    )
    for plan, other, devices in ((one, two, 2), (one, four, 4), (two, four, 4), (alike, two, 2)):
        told = rf"training takes [^;]*: predistill\.strategy: fsdp, predistill\.devices: {devices} saves"
        with pytest.raises(PlanError, match=told):
            check(plan, room_for(total(other.training)))
    with pytest.raises(PlanError) as refused:
        check(plan_of(settings(target, **small | {"method": "qlora"})), room_for(total(two.training)))
    assert "fsdp" not in str(refused.value), "it cannot share out NF4 weights"


def test_nf4_weights_are_never_advised_as_they_take_more_than_an_adapter_alone(small):
    for less in ({}, {"activation_checkpointing": True, "batch_tokens": 512}):
        assert total(small(method="qlora", **less).training) > total(small(method="lora", **less).training)


def test_a_step_that_was_too_large_is_refused_with_a_change_that_saves_enough(small):
    plan, room = small(), room_for(20 * GB)
    check_step(plan, room, 19 * GB)
    with pytest.raises(PlanError, match=r"took 22\.0 GB, of 20\.0 GB .*activation_checkpointing: true saves"):
        check_step(plan, room, 22 * GB)
    with pytest.raises(PlanError, match=r"took 31\.0 GB, of 20\.0 GB .*batch_tokens.* saves"):
        check_step(plan, room, 31 * GB)
    with pytest.raises(PlanError, match=r"took more than there is, of .*activation_checkpointing: true saves"):
        check_step(plan, Available(total(plan.training), None, "a GPU"), None)


@pytest.fixture
def small():
    """Plans of a draft of 1.5 B parameters for a target of next to nothing."""
    target = meta_model(tiny(1, vocab_size=64000).config)
    draft = meta_model(LlamaConfig(**YI_6B | {"num_hidden_layers": 8, "intermediate_size": 7168}))

    def make(**predistill):
        config = settings("small", draft="large", num_slots=1, **predistill)
        return plan_memory(Run(config, target, draft, "cuda", torch.bfloat16, prompts=1000))

    return make


def test_answering_that_does_not_fit_is_refused_with_the_first_change_that_would(target):
    least = total(plan_of(settings(target, num_slots=16)).recording)
    plan = plan_of(settings(target))
    with pytest.raises(PlanError, match=r"recording takes .*: predistill\.num_slots: 16 saves"):
        check(plan, room_for(least))
    check(plan, Available(80 * GB, 100 * GB, "a GPU"))
    with pytest.raises(PlanError, match=r"nothing that can be set makes it fit; at most 8\..* can be saved"):
        check(plan, Available(8 * GB, None, "a GPU"))


def test_float32_may_become_bfloat16(target):
    config = settings(target, num_slots=1, engine={"max_model_len": 512}).model_copy(update={"dtype": "float32"})
    narrow = config.model_copy(update={"dtype": "bfloat16"})
    with pytest.raises(PlanError, match=r"recording takes .*: dtype: bfloat16 saves"):
        check(plan_of(config), room_for(total(plan_of(narrow).recording)))


def test_the_disk_and_what_the_replay_buffer_keeps(target):
    plan = plan_of(settings(target, replay={"max_bytes": 10**8}, builtin_prompts=40_000, max_tokens=512))
    recorded, run = plan.disk["recorded answers"], plan.run
    assert plan.disk["the draft"] == 2 * run.draft.num_parameters()
    assert plan.disk["checkpoints"] == 2 * (12 + 4) * run.trainable
    needed = -(-recorded // GB) * GB
    with pytest.raises(PlanError, match=rf"the oldest above 0\.1 GB: replay\.max_bytes: {needed} keeps"):
        check(plan, Available(200 * GB, None, "a GPU"))
    free = total(plan.disk) - recorded // 3
    with pytest.raises(PlanError, match=r"disk takes .* recorder\.top_k: 32 saves"):
        check(plan, Available(200 * GB, free, "a GPU"))


def test_on_a_cpu_the_answers_are_read_into_its_memory(tiny_target):
    config = HotdraftConfig(target=tiny_target, device="cpu", predistill={"layers": 1, "builtin_prompts": 1000})
    plan = plan_predistill(config)
    assert plan.training["recorded answers"] == 1000 * 96 * (25 + 6 * 64)
    assert plan.training["runtime"] == RUNTIME["cpu"]
    machine = available_for(config)
    assert machine.memory == ram_bytes()
    check(plan, machine)
    check_step(plan, room_for(2 * GB), 1 * GB)
    with pytest.raises(PlanError, match="took 2"):
        check_step(plan, room_for(2 * GB), 2 * GB - 10)
    two = plan_predistill(
        config.model_copy(update={"predistill": config.predistill.model_copy(update={"devices": 2})})
    )
    check_step(two, room_for(2 * GB), GB - plan.training["recorded answers"])
    with pytest.raises(PlanError, match="took 2"):
        check_step(two, room_for(2 * GB), GB)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_here_needs_its_memory_told(target):
    with pytest.raises(ModelError, match="sees no CUDA device; with its memory given"):
        plan_predistill(settings(target))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_where_the_device_is_not_named_a_plan_for_elsewhere_is_for_one_as_here(target):
    assert plan_of(settings(target).model_copy(update={"device": "auto"})).run.device == "cpu"


def test_a_draft_that_reads_states_trains_beside_its_target(target, capsys):
    reading = PredistillConfig(hidden_states=[8, 20, 32], batch_tokens=8192, num_slots=64)
    plan = plan_of(settings(target).model_copy(update={"predistill": reading}))
    assert plan.training["target"] == plan.recording["target"]
    assert plan.training["target's states"] == MOST_BYTES
    layer = 8192 * layer_bytes(Widths.of(plan.run.draft.config), 2, residual=2, adapted=False)
    assert plan.training["activations"] == STEPS * layer
    Console(width=160).print(tables(plan, available_for(plan.run.config, memory_gb=80)))
    assert f"one layer on states of {target}" in capsys.readouterr().out
    with pytest.raises(PlanError, match="training takes") as refused:
        check(plan, room_for(total(plan.training) // 2))
    assert "activation_checkpointing" not in str(refused.value)


def test_a_draft_that_exists_trains_its_embedding_too(target, tiny_draft):
    exists = plan_of(settings(target, draft=tiny_draft)).run
    assert exists.trainable == exists.draft.num_parameters()


def test_a_draft_that_was_cut_from_its_target_keeps_what_the_two_share(target, tiny_draft, tmp_path):
    cut = shutil.copytree(tiny_draft, tmp_path / "cut")
    (cut / CUT_FILE).write_text(json.dumps(asdict(Cut("target", "fingerprint", [0]))))
    run = plan_of(settings(target, draft=str(cut))).run
    assert run.trainable < run.draft.num_parameters()


@pytest.mark.parametrize("config", [{}, {"model_type": "t5"}, {"model_type": "no-such-type"}])
def test_a_folder_without_the_configuration_of_a_causal_lm(tmp_path, config):
    if config:
        (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError):
        plan_of(settings(str(tmp_path)))


def test_hours_at_a_measured_speed(target):
    plan = plan_of(settings(target, builtin_prompts=1000, max_tokens=360, max_steps=900, accumulate=4))
    step = Step(tokens_per_second=8192, peak=30 * GB)
    assert "Time: 2.0 h: 1.0 h for the answers at 100 tokens/s, 1.0 h for training at" in describe_time(
        plan, step, 100
    )
    assert "Time: 1.0 h for training at 8,192 tokens/s, 30.00 GB at its peak; " in describe_time(plan, step)
    limited = plan_of(settings(target, max_steps=9000, max_seconds=7200))
    assert "Time: 2.0 h for training" in describe_time(limited, Step(8192, 1))
    short = plan_of(settings(target, max_steps=9000, max_seconds=90))
    assert "Time: 1.5 min for training" in describe_time(short, Step(8192, 1))
    assert "Time: not measured" in describe_time(plan)


def test_the_plan_is_printed(target, capsys):
    plan = plan_of(settings(target))
    Console(width=160).print(tables(plan, available_for(plan.run.config, memory_gb=80)))
    told = capsys.readouterr().out
    assert "draft: 1.53 B parameters" in told
    assert "1.01 B train" in told
    assert "of 80.00 (as given)" in told
    assert "free" not in told, "of another machine that cannot be told"
    Console(width=160).print(tables(plan, Available(80 * GB, 123 * GB, "a GPU")))
    assert "Disk in GB, of 123.00 free or its own" in " ".join(capsys.readouterr().out.split())
    for part in (plan.recording, plan.training, plan.disk):
        assert f"{total(part) / 1e9:.2f}" in told
