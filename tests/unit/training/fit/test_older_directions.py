import lightning
import pytest
import torch

from hotdraft.pipeline.config.learning import LoraSection
from hotdraft.training.batches.packing import pack
from hotdraft.training.fit.lora import build_lora, target_modules
from hotdraft.training.fit.module import DistillationModule
from hotdraft.training.fit.older_directions import OlderDirections, find_directions
from hotdraft.training.scoring.forward import hidden_states
from tests.unit.training.masked import draft_logits

OLDER, NEW = range(32), range(32, 64)
LORA = LoraSection(rank=4, alpha=8)


@pytest.fixture
def older(make_llama, serve):
    return pack(serve(make_llama(1, scale=0.3), 20, tokens=OLDER))


@pytest.fixture
def new(make_llama, serve):
    return pack(serve(make_llama(2, scale=0.3), 20, tokens=NEW))


def inputs_of(model, batch):
    """By name of a linear layer, what it is given [T, I]."""
    found = {}
    hooks = [
        module.register_forward_pre_hook(lambda _, given, name=name: found.update({name: given[0].flatten(0, -2)}))
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and name != "lm_head"
    ]
    with torch.no_grad():
        hidden_states(model, batch)
    for hook in hooks:
        hook.remove()
    return found


def learned(draft, directions, batch, steps=12, *, fresh=True):
    torch.manual_seed(3)
    model = build_lora(draft, LORA, "none")
    if not fresh:
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(parameter, std=0.02)
    beside = OlderDirections(model, directions)
    if fresh:
        beside.clear()
    start = {name: one.detach().clone() for name, one in model.named_parameters() if one.requires_grad}
    trainer = lightning.Trainer(
        accelerator="cpu", max_steps=steps, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[beside],
    )  # fmt: skip
    module = DistillationModule(model, loss="forward_kl", learning_rate=2e-2, max_steps=steps)
    trainer.fit(module.train(), torch.utils.data.DataLoader([batch] * steps, batch_size=None))
    return model, start


def test_directions_hold_as_much_of_each_layers_inputs_as_any_so_many_could(make_llama, older):
    draft = make_llama(0, scale=0.3)
    names = target_modules(draft, "all-linear")
    directions, inputs = find_directions(draft, names, older, 6), inputs_of(draft, older)
    assert directions.keys() == inputs.keys()
    for name, found in directions.items():
        torch.testing.assert_close(found.T @ found, torch.eye(6))
        most = torch.linalg.svdvals(inputs[name])[:6].square().sum()
        assert (inputs[name] @ found).square().sum() > 0.85 * most  # of a model that is nothing but noise


def test_of_a_narrow_layer_half_is_left_alone_at_most(make_llama, older):
    draft = make_llama(0)
    directions = find_directions(draft, ["q_proj", "down_proj"], older, 1000)
    widths = {name: found.shape for name, found in directions.items()}
    assert widths["model.layers.1.self_attn.q_proj"] == (64, 32)
    assert widths["model.layers.1.mlp.down_proj"] == (128, 64)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("fresh", [True, False], ids=["fresh", "goes on"])
def test_what_an_adapter_learns_is_nothing_in_these_directions(make_llama, older, new, fresh):
    draft = make_llama(0, scale=0.3)
    directions = find_directions(draft, target_modules(draft, "all-linear"), older, 16)
    model, start = learned(draft, directions, new, fresh=fresh)
    for name, before in start.items():
        if "lora_A" not in name:
            continue
        factor = model.get_parameter(name)
        moved = factor.detach() - before
        assert moved.norm() > 1e-2
        of = directions[name.removeprefix("base_model.model.").removesuffix(".lora_A.default.weight")]
        assert (moved @ of).norm() < 1e-5 * moved.norm() * 64
        assert not fresh or (factor @ of).norm() < 1e-4


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_it_forgets_less_of_what_is_older_and_learns_what_is_new(make_llama, older, new):
    draft = make_llama(0, scale=0.3)
    directions = find_directions(draft, target_modules(draft, "all-linear"), older, 16)

    @torch.no_grad()
    def moved(model, batch):
        told, before = (draft_logits(one, batch).log_softmax(-1) for one in (model, draft))
        return (before.exp() * (before - told)).sum(-1).mean().item()

    held, free = (learned(draft, found, new)[0] for found in (directions, {}))
    assert moved(held, older) < 0.6 * moved(free, older)
    assert moved(held, new) > 0.5 * moved(free, new)
