"""Weights are exchanged in place, whatever form vLLM keeps them in, and back again if anything fails."""

from typing import Any

import pytest
import torch

from hotdraft.serving.vllm.worker import live_draft
from hotdraft.serving.vllm.worker.live_draft import DraftError, LiveDraft
from tests.unit.serving.vllm.fake_models import HIDDEN, VOCAB, Model, expected_logits, some_weights

IDS = torch.arange(9) % VOCAB
FORMS = pytest.mark.parametrize("packed", [None, "handler", "tensor"])


def logits(draft: LiveDraft) -> torch.Tensor:
    found = draft.logits(IDS, 4)
    assert found is not None
    return found


@FORMS
@torch.inference_mode()
def test_the_live_draft_computes_what_was_exchanged_in_and_then_what_it_did_before(packed: str | None) -> None:
    model = Model(packed=packed)
    draft, before = LiveDraft(model), None
    before = logits(draft)
    addresses = [parameter.data_ptr() for parameter in model.parameters()]
    staged = draft.prepare(some_weights(1))
    assert torch.equal(logits(draft), before)
    draft.exchange(staged)
    torch.testing.assert_close(logits(draft), expected_logits(model, some_weights(1), IDS)[-4:])
    assert [parameter.data_ptr() for parameter in model.parameters()] == addresses
    draft.exchange(staged)
    assert torch.equal(logits(draft), before)
    assert model.do_not_compile is False
    with pytest.raises(AssertionError, match="metadata"):
        model.attn(before, before, before)


def test_each_rank_gets_its_share_by_the_models_own_loading() -> None:
    weights = some_weights(2)
    for rank in range(2):
        model = Model(rank=rank, ranks=2)
        draft = LiveDraft(model)
        weights["layers.0.o_proj.weight"] = weights["layers.0.o_proj.weight"][:, : HIDDEN // 2]
        draft.exchange(draft.prepare(weights))
        half = slice(HIDDEN // 2 * rank, HIDDEN // 2 * (rank + 1))
        expected = torch.cat([weights[f"layers.0.{name}.weight"][half] for name in ("q_proj", "k_proj", "v_proj")])
        assert torch.equal(model.qkv_proj.weight, expected)


def test_what_does_not_fill_the_layers_is_not_staged() -> None:
    draft = LiveDraft(Model())
    some = some_weights(1)
    del some["layers.0.k_proj.weight"]
    with pytest.raises(DraftError, match="do not fill"):
        draft.prepare(some)
    with pytest.raises(DraftError, match="do not fill"):
        draft.prepare({name: weight / 0 for name, weight in some_weights(1).items()})


@FORMS
@torch.inference_mode()
def test_an_exchange_that_fails_half_way_has_changed_nothing(
    packed: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(packed=packed)
    draft = LiveDraft(model)
    before, staged = logits(draft), draft.prepare(some_weights(1))
    exchange_layer, done = live_draft._exchange_layer, []

    def fails(live: Any, other: Any) -> None:
        if live is model.o_proj and not done:
            done.append(live)
            raise MemoryError
        exchange_layer(live, other)

    monkeypatch.setattr(live_draft, "_exchange_layer", fails)
    with pytest.raises(MemoryError):
        draft.exchange(staged)
    assert torch.equal(logits(draft), before)


def test_a_quantised_draft_is_refused_by_name() -> None:
    class Fp8LinearMethod:
        packed = None

    model = Model()
    model.o_proj.quant_method = Fp8LinearMethod()  # type: ignore[assignment]
    with pytest.raises(DraftError, match="Fp8LinearMethod"):
        LiveDraft(model)
