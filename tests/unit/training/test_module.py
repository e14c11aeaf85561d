import lightning
import pytest
import torch

from pipeline.config import LoraSection
from pipeline.replay import ReplayBuffer
from training.data import ReplayDataModule
from training.lora import build_lora
from training.module import DistillationModule, NonFiniteLossError


@pytest.fixture
def data(make_llama, serve, tmp_path):
    buffer = ReplayBuffer(str(tmp_path / "replay"))
    buffer.append(serve(make_llama(1, scale=0.3), 30))
    return ReplayDataModule(
        buffer.load(), held_out_fraction=0.2, batch_tokens=200, window_requests=100,
        older_fraction=0.0, rejected_weight=2.0, seed=0,
    )  # fmt: skip


def fit(module, data, steps, **options):
    trainer = lightning.Trainer(
        accelerator="cpu", max_steps=steps, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, limit_val_batches=0,
    )  # fmt: skip
    trainer.fit(module, data, **options)
    return trainer


def build(make_llama, **options):
    torch.manual_seed(5)
    model = build_lora(make_llama(0, scale=0.1), LoraSection(rank=4, alpha=8), "none")
    return DistillationModule(model, learning_rate=1e-2, max_steps=8, **options).train()


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
def test_a_loss_that_is_not_finite_ends_the_run(make_llama, data):
    module = build(make_llama)
    with torch.no_grad():
        next(p for p in module.parameters() if p.requires_grad).fill_(torch.nan)
    with pytest.raises(NonFiniteLossError, match="step 0"):
        fit(module, data, 2)
