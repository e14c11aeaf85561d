from itertools import islice

import lightning
import pytest
import torch

from hotdraft.pipeline.config.learning import LoraSection
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.training.batches.pools import everything
from hotdraft.training.batches.replay_data import ReplayDataModule, Selection
from hotdraft.training.batches.stream import Batching, PackedBatches
from hotdraft.training.fit.lora import build_lora
from hotdraft.training.fit.module import DistillationModule, NonFiniteLossError
from hotdraft.training.scoring.kept_prompts import KeptPrompts
from hotdraft.training.scoring.losses import distillation_loss
from tests.unit.training.masked import draft_logits


@pytest.fixture
def load(make_llama, serve, tmp_path):
    buffer = ReplayBuffer(str(tmp_path / "replay"))
    buffer.append(serve(make_llama(1, scale=0.3), 30))
    rows = buffer.load()

    def loaded(**options):
        batching = Batching(200, 0, rejected_weight=2.0, **options)
        return ReplayDataModule(rows, lambda train: everything(len(train)), batching, Selection(0.2))

    return loaded


@pytest.fixture
def data(load):
    return load()


def fit(module, data, steps, **options):
    trainer = lightning.Trainer(
        accelerator="cpu", max_steps=steps, logger=False, enable_checkpointing=False, gradient_clip_val=1.0,
        enable_progress_bar=False, enable_model_summary=False, limit_val_batches=0,
        accumulate_grad_batches=data.accumulate,
    )  # fmt: skip
    trainer.fit(module, data, **options)
    return trainer


def build(make_llama, **options):
    torch.manual_seed(5)
    model = build_lora(make_llama(0, scale=0.1), LoraSection(rank=4, alpha=8), "none")
    return DistillationModule(model, loss="forward_kl", learning_rate=1e-2, max_steps=8, **options).train()


def adapter(module):
    return {name: p.detach().clone() for name, p in module.named_parameters() if p.requires_grad}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_resumed_run_ends_where_an_unbroken_one_does(make_llama, data, tmp_path):
    unbroken = build(make_llama)
    trainer = fit(unbroken, data, 8)
    assert {"loss", "overlap", "expected_acceptance", "tokens"} <= set(trainer.callback_metrics)
    first = build(make_llama)
    fit(first, data, 4).save_checkpoint(tmp_path / "half.ckpt")
    resumed = build(make_llama)
    fit(resumed, data, 8, ckpt_path=tmp_path / "half.ckpt", weights_only=True)
    for name, tensor in adapter(unbroken).items():
        torch.testing.assert_close(adapter(resumed)[name], tensor, msg=name)
        assert not torch.equal(adapter(first)[name], tensor)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_kept_prompts_teach_as_much_and_are_read_anew_in_time(make_llama, data, monkeypatch):
    read, itself = [], KeptPrompts._read
    monkeypatch.setattr(KeptPrompts, "_read", lambda kept, *told: read.append(kept.step) or itself(kept, *told))
    ends = {steps: fit(build(make_llama, prompt_steps=steps), data, 8) for steps in (0, 3)}
    assert {step // 3 for step in read} == {0, 1, 2}
    without, kept = (trainer.callback_metrics["loss"].item() for trainer in ends.values())
    assert kept == pytest.approx(without, rel=0.05)
    assert kept != without


def test_checkpoints_hold_the_adapter_only(make_llama):
    module = build(make_llama)
    assert set(module.state_dict()) == set(adapter(module))


def test_the_rate_ends_with_the_nearer_budget(make_llama):
    spent = 0.0
    module = build(make_llama, elapsed_fraction=lambda: spent)
    assert module._rate(0) == pytest.approx(0.2)
    assert module._rate(4) == pytest.approx(0.5)
    spent = 0.75
    assert module._rate(4) == pytest.approx(0.1464, abs=1e-3)
    spent = 1.0
    assert module._rate(4) == pytest.approx(0.02)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_accumulated_batches_are_one_step_over_all_their_positions(make_llama, load):
    data = load(accumulate=3)
    options = {"loss": "forward_kl", "learning_rate": 1e-2, "max_steps": 8}
    module = DistillationModule(make_llama(0, scale=0.1), **options, accumulate=3).train()
    trainer = fit(module, data, 4)

    plain = DistillationModule(make_llama(0, scale=0.1), **options).train()
    parameters = [p for p in plain.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2, betas=(0.9, 0.99), weight_decay=0.0)
    batches = iter(data.batches())
    for step in range(4):
        optimizer.param_groups[0]["lr"] = 1e-2 * plain._rate(step)
        total, weight = 0.0, 0.0
        for batch in islice(batches, 3):
            targets = (batch.top_ids, batch.top_logprobs, batch.tail_logprob)
            losses = distillation_loss(draft_logits(plain.draft.model, batch), *targets, loss="forward_kl")
            total = total + (losses * batch.weight).sum()
            weight += batch.weight.sum()
        optimizer.zero_grad()
        (total / weight).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
    assert trainer.callback_metrics["loss"] == pytest.approx(float(total / weight), rel=1e-5)
    for name, tensor in adapter(plain).items():
        torch.testing.assert_close(adapter(module)[name], tensor, msg=name, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("warmup_steps", "first"), [(0, 1.0), (4, 0.25)])
def test_the_rate_warms_up(make_llama, warmup_steps, first):
    assert build(make_llama, warmup_steps=warmup_steps)._rate(0) == first


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_loss_that_is_not_finite_ends_the_run(make_llama, data):
    module = build(make_llama)
    with torch.no_grad():
        next(p for p in module.parameters() if p.requires_grad).fill_(torch.nan)
    with pytest.raises(NonFiniteLossError, match="step 0"):
        fit(module, data, 2)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_step_whose_positions_weigh_nothing_teaches_nothing(make_llama, data, monkeypatch):
    weigh = PackedBatches.batch

    def weightless(batches, index):
        batch = weigh(batches, index)
        return batch._replace(weight=0 * batch.weight, step_weight=0 * batch.step_weight)

    monkeypatch.setattr(PackedBatches, "batch", weightless)
    module = build(make_llama)
    before = adapter(module)
    assert fit(module, data, 2).callback_metrics["loss"] == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in adapter(module).items())
