"""Training a tiny draft by each method, as pre-distillation does."""

import copy
import os
import shutil
import signal
from dataclasses import replace

import pytest
import torch

from hotdraft.pipeline.config.learning import PredistillConfig
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.store.connection import open_client
from hotdraft.training.batches.replay_data import ReplayDataModule
from hotdraft.training.drafts.draft_init import freeze_shared
from hotdraft.training.fit import validation
from hotdraft.training.fit.module import DistillationModule
from hotdraft.training.fit.processes import DeviceError, check_devices
from hotdraft.training.fit.resume import JobInterruptedError, ResumePoint
from hotdraft.training.fit.run import RunPlace
from hotdraft.training.predistill.train_draft import train_draft
from hotdraft.training.scoring.evaluate import by_request, expected_acceptance_by_position
from hotdraft.training.scoring.forward import DraftForward
from tests.models import disturbed, tiny_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning")]

SETTINGS = {
    "max_steps": 30, "batch_tokens": 256, "accumulate": 2, "learning_rate": 1e-2, "warmup_steps": 3,
    "validation_steps": 10, "validation_requests": 8, "checkpoint_steps": 7, "lora": {"rank": 4, "alpha": 8},
}  # fmt: skip


@pytest.fixture
def target(make_llama):
    return make_llama(1, layers=1, scale=0.3)


@pytest.fixture
def client(tmp_path, empty_mlflow_db):
    shutil.copy(empty_mlflow_db, tmp_path)
    return open_client(HotdraftConfig(target="unused", run_dir=tmp_path))


@pytest.fixture
def place(client, tmp_path):
    experiment = client.create_experiment("e", artifact_location=str(tmp_path / "artifacts"))
    run = client.create_run(experiment)
    return RunPlace(f"sqlite:///{tmp_path}/mlflow.db", run.info.run_id, tmp_path / "checkpoints", progress=False)


@pytest.fixture
def rows(target, serve, tmp_path):
    buffer = ReplayBuffer(str(tmp_path / "replay"))
    buffer.append(serve(target, 60))
    return buffer.load()


def overlap(model, data):
    chances = expected_acceptance_by_position(model, data.validation_samples, batch_tokens=256)
    return float(by_request(chances).mean())


def curve(client, place, name):
    return {metric.step: metric.value for metric in client.get_metric_history(place.run_id, name)}


@pytest.mark.parametrize(
    ("method", "dtype", "checkpointing"),
    [
        ("full", torch.float32, False),
        ("full", torch.bfloat16, True),
        ("lora", torch.bfloat16, False),
        ("qlora", torch.float32, True),
    ],
)
def test_a_draft_learns_and_the_best_is_kept(method, dtype, checkpointing, target, rows, client, place, tmp_path):
    rate = {"learning_rate": 3e-3 if method == "full" else 1e-2}
    settings = PredistillConfig(**SETTINGS | rate, method=method, activation_checkpointing=checkpointing)
    draft = disturbed(target, 0.3).to(dtype)
    freeze_shared(draft)
    frozen = draft.model.embed_tokens.weight.clone()
    data = ReplayDataModule.for_predistill(rows, settings, 0.3)
    before = overlap(copy.deepcopy(draft), data)
    trained, metrics = train_draft(draft, data, settings, tiny_tokenizer(), place)

    assert {parameter.dtype for parameter in trained.parameters()} == {dtype}
    assert not trained.training
    assert torch.equal(trained.model.embed_tokens.weight, frozen)
    looks = curve(client, place, "validation/overlap")
    assert list(looks) == [10, 20, 30]
    assert metrics["steps"] == 30
    assert looks[metrics["best_step"]] == max(looks.values())
    assert overlap(trained, data) > before + 0.03
    assert overlap(trained, data) == pytest.approx(max(looks.values()), abs=0.02 if method == "qlora" else 0.01)
    assert len(curve(client, place, "validation/greedy_agreement")) == 3
    assert curve(client, place, "tokens_per_second")
    shown = (tmp_path / "artifacts").rglob("step-*.txt")
    texts = {path.name: path.read_text() for path in shown}
    assert sorted(texts) == [f"step-{step:07d}.txt" for step in (10, 20, 30)]
    assert texts["step-0000030.txt"].count("draft: ") == 3


def test_the_last_step_is_looked_at_and_the_bar_counts_to_it(target, rows, client, place, capsys):
    settings = PredistillConfig(**SETTINGS | {"max_steps": 25})
    data = ReplayDataModule.for_predistill(rows, settings, 0.3)
    train_draft(target, data, settings, tiny_tokenizer(), replace(place, progress=True))
    assert list(curve(client, place, "validation/overlap")) == [10, 20, 25]
    shown = capsys.readouterr().out
    for part in ("50/50", "loss:", "overlap:", "held out:", "tokens/s:"):
        assert part in shown


def test_a_run_without_gain_ends_and_is_not_begun_again(target, rows, client, place):
    settings = PredistillConfig(**SETTINGS | {"max_steps": 1000, "learning_rate": 1e-30, "patience": 2})
    data = ReplayDataModule.for_predistill(rows, settings, 0.3)
    for _ in range(2):
        _, metrics = train_draft(copy.deepcopy(target), data, settings, tiny_tokenizer(), place)
        assert metrics["steps"] == 30
        assert metrics["best_step"] == 10
    assert list(curve(client, place, "validation/overlap")) == [10, 20, 30]


def test_a_run_broken_within_a_look_takes_it_again(target, rows, client, place, monkeypatch):
    """Checkpoints at 5 and 10, a look at 10: the one at 10 may only be that after the look."""
    settings = PredistillConfig(**SETTINGS | {"max_steps": 20, "checkpoint_steps": 5})
    data = ReplayDataModule.for_predistill(rows, settings, 0.3)
    draft = disturbed(target)

    def go():
        return train_draft(copy.deepcopy(draft), data, settings, tiny_tokenizer(), place)

    greedy = validation.greedy_answers
    monkeypatch.setattr(validation, "greedy_answers", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        go()
    saved = torch.load(place.checkpoints / "last.ckpt", weights_only=True)
    assert saved["global_step"] == 5
    monkeypatch.setattr(validation, "greedy_answers", greedy)
    broken, metrics = go()
    assert metrics["steps"] == 20
    shutil.rmtree(place.checkpoints)
    whole, _ = go()
    for name, tensor in whole.state_dict().items():
        torch.testing.assert_close(broken.state_dict()[name], tensor, msg=name, rtol=0, atol=0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("pressed_at", "step"), [(16, 9), (18, 10), ("look", 10), (59, 30)])
def test_a_run_that_a_signal_ends_keeps_its_steps(
    target, rows, client, place, monkeypatch, number, pressed_at, step
):
    """Within a step, of two batches, in the one that a look follows, within the look, or in the last."""
    settings = PredistillConfig(**SETTINGS)
    data, draft = ReplayDataModule.for_predistill(rows, settings, 0.3), disturbed(target)
    handlers = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]

    def go(place):
        return train_draft(copy.deepcopy(draft), data, settings, tiny_tokenizer(), place)

    whole, _ = go(replace(place, checkpoints=place.checkpoints.with_name("whole"), run_id=None))
    training_step, greedy = DistillationModule.training_step, validation.greedy_answers

    def step_and_press(module, batch, batch_idx):
        if batch_idx == pressed_at:
            os.kill(os.getpid(), number)
        return training_step(module, batch, batch_idx)

    def look_and_press(*told):
        if pressed_at == "look":
            os.kill(os.getpid(), number)
        return greedy(*told)

    with monkeypatch.context() as patch:
        patch.setattr(DistillationModule, "training_step", step_and_press)
        patch.setattr(validation, "greedy_answers", look_and_press)
        with pytest.raises(JobInterruptedError, match=f"asked to stop at step {step}$"):
            go(place)
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert torch.load(place.checkpoints / "last.ckpt", weights_only=True)["global_step"] == step
    resumed, metrics = go(place)
    assert metrics["steps"] == 30
    assert list(curve(client, place, "validation/overlap")) == [10, 20, 30], "each look is taken once"
    for name, tensor in whole.state_dict().items():
        torch.testing.assert_close(resumed.state_dict()[name], tensor, msg=name, rtol=0, atol=0)


def test_ctrl_c_interrupts_a_run_and_does_not_end_the_process_without_a_word(target, rows, place, monkeypatch):
    def press(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(ResumePoint, "on_train_batch_end", press)
    settings = PredistillConfig(**SETTINGS, method="full")
    data, before = ReplayDataModule.for_predistill(rows, settings, 0.3), signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(JobInterruptedError, match="the job got SIGINT"):
            train_draft(target, data, settings, tiny_tokenizer(), place)
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_the_machine_or_the_method_does_not_allow_is_refused():
    cpu = torch.device("cpu")
    sharded = PredistillConfig(devices=2, strategy="fsdp")
    check_devices(sharded, cpu, torch.bfloat16)
    with pytest.raises(DeviceError, match="NF4"):
        check_devices(sharded.model_copy(update={"method": "qlora"}), cpu, torch.bfloat16)
    with pytest.raises(DeviceError, match="float16"):
        check_devices(sharded, cpu, torch.float16)
    with pytest.raises(DeviceError, match=f"torch sees {torch.cuda.device_count()} CUDA"):
        check_devices(PredistillConfig(devices=99), torch.device("cuda"), torch.bfloat16)


def test_generations_are_what_the_model_says_greedily(target, serve):
    samples = serve(target, 3)
    answers = validation.greedy_answers(DraftForward(target), samples, 6)
    for sample, answer in zip(samples, answers, strict=True):
        ids = torch.from_numpy(sample.prompt_ids).long()[None]
        said = target.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False)
        assert answer.tolist() == said[0, ids.shape[1] :].tolist()
