"""Real adapters, trained weights stood in for by random ones, swapped into a live engine."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import PeftModel

from hotdraft.pipeline.config.learning import LoraSection, PredistillConfig
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.adapter_folder import AdapterCard, AdapterError
from hotdraft.pipeline.models.draft_vocabulary import save_vocabulary
from hotdraft.pipeline.models.loading import fingerprint, load_causal_lm
from hotdraft.serving.benchmark.random_adapter import write_random_adapter
from hotdraft.serving.engine.engine import Engine
from hotdraft.serving.engine.load import build_engine, draft_ranking
from hotdraft.serving.models.linear import ServedLinear, cpu_has_bfloat16
from hotdraft.serving.models.trimmed_head import TrimmedHead
from hotdraft.serving.updates.hot_swap import HotSwapper, SwapError
from hotdraft.training.drafts.hidden_state_init import new_hidden_state_draft
from hotdraft.training.fit.lora import build_lora, save_lora, target_modules
from tests.integration.adapters import write_adapter
from tests.models import save, tiny_llama
from tests.unit.serving.clients import ask, greedy, request

RANK = 4
IDS = torch.arange(1, 17)[None]

MakeAdapter = Callable[..., tuple[Path, PeftModel]]


@pytest.fixture
def make_adapter(tmp_path: Path, tiny_draft: str) -> MakeAdapter:
    """An adapter's folder as the trainer writes it, and the PEFT model that it came from."""

    def make(name: str, seed: int, modules: str | list[str] = "all-linear") -> tuple[Path, PeftModel]:
        base = load_causal_lm(tiny_draft)
        section = LoraSection(rank=RANK, alpha=8, target_modules=modules)
        model = build_lora(base, section, "none")
        torch.manual_seed(seed)
        for parameter in model.parameters():
            if parameter.requires_grad:
                torch.nn.init.normal_(parameter, std=0.2)
        names = target_modules(base, modules)
        card = AdapterCard(fingerprint(tiny_draft), "none", RANK, 8, names, 0, 1, 1, {"d": 1}, 0.0)
        save_lora(tmp_path / name, model, card)
        return tmp_path / name, model.eval()

    return make


@pytest.fixture
def swapper(engine: Engine, tiny_draft: str) -> HotSwapper:
    return HotSwapper(engine, fingerprint(tiny_draft))


def weights(engine: Engine) -> dict[str, torch.Tensor]:
    return {name: weight for linear in linears(engine) for name, weight in linear.weights().items()}


def linears(engine: Engine) -> list[ServedLinear]:
    assert engine.decoder.proposer is not None
    return engine.decoder.proposer.runner.linears


def same(some: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(tensor, other[name]) for name, tensor in some.items())


def live_logits(engine: Engine) -> torch.Tensor:
    return engine.decoder.proposer.logits(IDS, IDS.shape[1])


def test_the_live_draft_computes_what_peft_does(engine, swapper, make_adapter):
    folder, trained = make_adapter("a", seed=1)
    before = live_logits(engine)
    event = swapper.swap(swapper.stage(3, folder), "promotion")
    assert (event.version, event.previous_version, event.reason) == (3, 0, "promotion")
    assert engine.draft_version == swapper.live_version == 3
    with torch.no_grad():
        torch.testing.assert_close(live_logits(engine), trained(IDS).logits[0], atol=1e-4, rtol=1e-4)
    assert (live_logits(engine) - before).abs().max() > 0.1


def test_a_version_is_merged_and_packed_part_by_part_between_rounds(engine, swapper, make_adapter, monkeypatch):
    between_rounds, parts = engine.between_rounds, []

    def counted(errand):
        parts.append(between_rounds(errand))
        return parts[-1]

    monkeypatch.setattr(engine, "between_rounds", counted)
    swapper.stage(1, make_adapter("a", seed=1)[0])
    modules, ends = len(weights(engine)), 2
    assert len(parts) == modules + len(linears(engine)) + ends


def test_weights_are_copied_in_place(engine, swapper, make_adapter):
    before = [linear.weight.data_ptr() for linear in linears(engine)]
    swapper.swap(swapper.stage(1, make_adapter("a", seed=1)[0]), "promotion")
    assert [linear.weight.data_ptr() for linear in linears(engine)] == before


def test_a_rehearsal_changes_nothing_that_is_served(engine, swapper):
    """It runs by itself on a GPU alone."""
    runner = engine.decoder.proposer.runner
    before = [weight.clone() for linear in runner.linears for weight in linear.weights().values()]
    swapper._rehearse_staging()
    engine.between_rounds(swapper._rehearse_swap).result(10)
    after = [weight for linear in runner.linears for weight in linear.weights().values()]
    assert all(map(torch.equal, before, after))
    assert swapper.live_version == engine.draft_version == 0


def test_another_adapter_leaves_no_trace_of_the_first(engine, swapper, make_adapter):
    first, _ = make_adapter("a", seed=1)
    second, trained = make_adapter("b", seed=2, modules=["q_proj"])
    swapper.swap(swapper.stage(1, first), "promotion")
    swapper.swap(swapper.stage(2, second), "promotion")
    with torch.no_grad():
        torch.testing.assert_close(live_logits(engine), trained(IDS).logits[0], atol=1e-4, rtol=1e-4)


def test_version_0_is_the_draft_itself_to_the_bit(engine, swapper, make_adapter):
    base = weights(engine)
    swapper.swap(swapper.stage(1, make_adapter("a", seed=1)[0]), "promotion")
    assert not same(weights(engine), base)
    event = swapper.swap(swapper.stage(0, None), "rollback")
    assert (event.version, event.previous_version) == (0, 1)
    assert same(weights(engine), base)
    assert engine.draft_version == 0


def test_a_probe_that_differs_puts_the_old_weights_back(engine, swapper, make_adapter):
    swapper.swap(swapper.stage(1, make_adapter("a", seed=1)[0]), "promotion")
    first = weights(engine)
    staged = swapper.stage(2, make_adapter("b", seed=2)[0])
    torch.manual_seed(0)
    other = (3 * torch.randn_like(staged.probe_probs)).softmax(-1)
    for probs in (other, torch.full_like(staged.probe_probs, torch.nan)):
        with pytest.raises(SwapError, match="version 2: the live draft's output"):
            swapper.swap(replace(staged, probe_probs=probs), "promotion")
        assert same(weights(engine), first)
        assert engine.draft_version == swapper.live_version == 1
    swapper.swap(staged, "promotion")
    assert engine.draft_version == 2


@pytest.mark.parametrize("part", ["_probe", "_copy"])
def test_whatever_fails_in_a_swap_the_old_weights_are_put_back(engine, swapper, make_adapter, monkeypatch, part):
    swapper.swap(swapper.stage(1, make_adapter("a", seed=1)[0]), "promotion")
    first = weights(engine)
    staged = swapper.stage(2, make_adapter("b", seed=2)[0])
    real = getattr(swapper, part)

    def fails(given):
        if given is staged:
            real(given)
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(given)

    with monkeypatch.context() as patch:
        patch.setattr(swapper, part, fails)
        with pytest.raises(torch.OutOfMemoryError):
            swapper.swap(staged, "promotion")
    assert same(weights(engine), first)
    assert engine.draft_version == swapper.live_version == 1
    swapper.swap(staged, "promotion")
    assert engine.draft_version == 2


def test_an_adapter_of_another_rank_serves(engine, swapper, tiny_draft, tmp_path):
    folder = write_adapter(tmp_path / "ranked", tiny_draft, rank=RANK + 3, scale=0.2)
    swapper.swap(swapper.stage(1, folder), "promotion")
    assert engine.draft_version == 1


def test_an_adapter_of_another_base_never_reaches_the_draft(engine, make_adapter):
    base = weights(engine)
    folder, _ = make_adapter("a", seed=1)
    with pytest.raises(AdapterError, match="another base"):
        HotSwapper(engine, "0" * 64).stage(1, folder)
    assert same(weights(engine), base)


def test_requests_under_way_go_on_unchanged(engine, swapper, make_adapter, tiny_target):
    staged = [swapper.stage(n, make_adapter(f"a{n}", seed=n)[0]) for n in (1, 2)]
    prompts = [(1, 2, 3), (9, 8)]
    clients = [ask(engine, request(f"r{n}", prompt, max_tokens=110)) for n, prompt in enumerate(prompts)]
    assert clients[0].first.wait(30)
    for adapter in staged:
        swapper.swap(adapter, "promotion")
    assert not clients[0].done.is_set(), "the swaps came too late to show anything"
    for prompt, client in zip(prompts, clients, strict=True):
        assert client.wait().stats.draft_version == 2
        assert client.ids == greedy(tiny_target, prompt, 110)


def test_a_trimmed_head_takes_on_the_adapters_vocabulary(config, make_adapter, tiny_draft):
    engine = started(config, draft_vocab_size=16)
    own_ranking = torch.arange(40, 60)
    swapper = HotSwapper(engine, fingerprint(tiny_draft), own_ranking)
    ranked, trained = make_adapter("ranked", seed=1)
    save_vocabulary(ranked, torch.arange(256, 200, -1))
    plain, also_trained = make_adapter("plain", seed=2)
    expected = [(1, ranked, trained, range(241, 257)), (2, plain, also_trained, range(40, 56))]
    for version, folder, model, vocabulary in expected:
        swapper.swap(swapper.stage(version, folder), "promotion")
        assert engine.decoder.proposer.vocabulary.tolist() == list(vocabulary)
        with torch.no_grad():
            logits = model(IDS).logits[0, :, list(vocabulary)]
        torch.testing.assert_close(live_logits(engine), logits, atol=1e-4, rtol=1e-4)
    swapper.swap(swapper.stage(1, ranked), "promotion")
    swapper.swap(swapper.stage(0, None), "rollback")
    assert engine.decoder.proposer.vocabulary.tolist() == list(range(40, 56))
    engine.stop()


def test_a_refused_probe_puts_the_old_vocabulary_back(config, make_adapter, tiny_draft):
    engine = started(config, draft_vocab_size=16)
    swapper = HotSwapper(engine, fingerprint(tiny_draft))
    before = live_logits(engine)
    folder, _ = make_adapter("a", seed=1)
    save_vocabulary(folder, torch.arange(256, 200, -1))
    staged = swapper.stage(1, folder)
    torch.manual_seed(0)
    other = (3 * torch.randn_like(staged.probe_probs)).softmax(-1)
    with pytest.raises(SwapError):
        swapper.swap(replace(staged, probe_probs=other), "promotion")
    assert isinstance(engine.decoder.proposer.runner.head, TrimmedHead)
    assert engine.decoder.proposer.vocabulary.tolist() == list(range(16))
    assert torch.equal(live_logits(engine), before)
    engine.stop()


@pytest.mark.skipif(not cpu_has_bfloat16(), reason="this CPU has no bfloat16 in oneDNN")
@pytest.mark.parametrize(
    "form", [{"instructions": "none"}, {"draft_weights": "dtype"}, {"draft_weights": "auto"}], ids=str
)
def test_packed_weights_are_swapped_and_put_back_to_the_bit(config, make_adapter, tiny_draft, form):
    changed = {"dtype": "bfloat16", "engine": config.engine.model_copy(update=form)}
    engine = started(config.model_copy(update=changed))
    swapper = HotSwapper(engine, fingerprint(tiny_draft))
    held = [linear.weight for linear in linears(engine)]
    base, before = weights(engine), live_logits(engine)
    folder, trained = make_adapter("a", seed=1)
    swapper.swap(swapper.stage(1, folder), "promotion")
    with torch.no_grad():
        expected = trained(IDS).logits[0].softmax(-1)
    live = live_logits(engine).float().softmax(-1)
    assert (live - expected).abs().sum(-1).mean() / 2 < 0.05
    assert (live - before.float().softmax(-1)).abs().sum(-1).mean() / 2 > 0.2
    swapper.swap(swapper.stage(0, None), "rollback")
    assert same(weights(engine), base)
    assert torch.equal(live_logits(engine), before)
    assert all(linear.weight is weight for linear, weight in zip(linears(engine), held, strict=True))
    engine.stop()


@pytest.mark.parametrize("instructions", ["auto", "none"])
@pytest.mark.parametrize("head_size", [None, 16, 260])
@pytest.mark.parametrize(("of_target", "of_draft"), [(257, 264), (264, 257)])
def test_a_pair_of_which_one_is_padded_further_serves_and_is_swapped(
    config: HotdraftConfig, tmp_path: Path, of_target: int, of_draft: int, head_size: int | None, instructions: str
) -> None:
    target = save(tiny_llama(3, seed=1, vocab_size=of_target), tmp_path / "target")
    draft = save(tiny_llama(1, seed=2, vocab_size=of_draft), tmp_path / "draft")
    save_vocabulary(tmp_path / "draft", torch.arange(of_draft - 1, 100, -1))
    config = config.model_copy(update={"target": target, "draft": draft})
    engine = started(config, draft_vocab_size=head_size, instructions=instructions)
    swapper = HotSwapper(engine, fingerprint(draft), draft_ranking(config))
    folder = write_adapter(tmp_path / "adapter", draft, scale=0.2)
    save_vocabulary(folder, torch.arange(of_draft - 1, 150, -1))
    swapper.swap(swapper.stage(1, folder), "promotion")
    client = ask(engine, request("r", (1, 2, 3), max_tokens=20))
    client.wait()
    engine.stop()
    assert client.ids == greedy(target, (1, 2, 3), 20)
    covered = engine.decoder.proposer.vocabulary
    assert covered is None or covered.tolist() == [*range(257)][-(head_size or 0) :]


def started(config: HotdraftConfig, **changes: object) -> Engine:
    engine = build_engine(config.model_copy(update={"engine": config.engine.model_copy(update=changes)}), None)
    engine.start()
    return engine


def test_a_request_after_a_swap_is_drafted_for_as_if_no_other_version_had_been(engine, swapper, make_adapter):
    """Its prompt was read by the version before; the target's keys of it are copied, the draft's are not."""
    prompt = tuple(range(1, 102))
    ask(engine, request("before", prompt, max_tokens=9)).wait()
    staged = swapper.stage(1, make_adapter("a", seed=1)[0])
    swapper.swap(staged, "promotion")
    fed = []
    for track in (engine.decoder.target, engine.decoder.proposer):
        forward = track.runner.forward
        track.runner.forward = lambda window, ids, keep, track=track, forward=forward: (
            fed.append((track is engine.decoder.proposer, ids.shape[1])) or forward(window, ids, keep)
        )
    client = ask(engine, request("after", prompt, max_tokens=9))
    client.wait()
    assert sum(length for is_drafts, length in fed if is_drafts and length > 2) == len(prompt) - 2
    assert all(length == 3 for is_drafts, length in fed if not is_drafts)
    drafts = client.deltas[-1].stats.accepted_tokens
    again = ask(engine, request("again", prompt, max_tokens=9))
    assert again.wait().stats.accepted_tokens == drafts


@pytest.mark.parametrize("instructions", ["auto", "none"])
def test_a_draft_that_reads_states_is_swapped_and_probed_with_what_they_go_through(
    config: HotdraftConfig, tiny_target: str, tmp_path: Path, instructions: str
) -> None:
    target = load_causal_lm(tiny_target)
    draft = save(new_hidden_state_draft(target, PredistillConfig(hidden_states=[1, 2])), tmp_path / "draft")
    settings = config.engine.model_copy(update={"instructions": instructions})
    engine = build_engine(config.model_copy(update={"draft": draft, "engine": settings}), None)
    engine.start()
    swapper = HotSwapper(engine, fingerprint(draft))
    write_random_adapter(tmp_path / "random", draft, RANK, torch.float32, seed=1, scale=0.05)
    for number, folder in enumerate((write_adapter(tmp_path / "written", draft), tmp_path / "random"), 1):
        before = weights(engine)
        swapper.swap(swapper.stage(number, folder), "manual")
        assert not torch.equal(weights(engine)["model.fc.weight"], before["model.fc.weight"])
    last = linears(engine)[-1]
    assert last.names == ("model.fc.weight",)
    staged = swapper.stage(3, tmp_path / "written")
    staged.weights[-1].copy_(last.prepare({"model.fc.weight": torch.ones_like(before["model.fc.weight"])}))
    with pytest.raises(SwapError, match="version 3: the live draft's output is"):
        swapper.swap(staged, "manual")
    assert swapper.live_version == 2
    engine.stop()
