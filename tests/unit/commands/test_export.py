"""An exported version computes what it computed in service, wherever it is loaded."""

from pathlib import Path

import pytest
import torch
import yaml
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from hotdraft.commands.adapters.exported import Format, write_export
from hotdraft.pipeline.config.learning import PredistillConfig
from hotdraft.pipeline.models.adapter_folder import AdapterBase, AdapterError, load_adapter, merged_weights
from hotdraft.pipeline.models.hidden_state_draft import probe_inputs
from hotdraft.pipeline.models.loading import fingerprint, load_causal_lm
from hotdraft.pipeline.models.names import ModelError
from hotdraft.pipeline.store.adapter_version import AdapterVersion
from hotdraft.training.drafts.hidden_state_init import new_hidden_state_draft
from tests.integration.adapters import write_adapter
from tests.models import save

IDS = torch.arange(3, 40)[None]


@pytest.fixture
def adapter(tiny_draft: str, tmp_path: Path) -> Path:
    return write_adapter(tmp_path / "adapter", tiny_draft, scale=0.2)


def version() -> AdapterVersion:
    tags = {"gate_by_domain": '{"sql": {"requests": 12, "champion": 0.3, "candidate": 0.45}}'}
    return AdapterVersion(
        version=3, status="champion", aliases=(), created_at=0.0, run_id="r", tags=tags, served=None, pinned=False
    )


def exported(adapter: Path, draft: str, out: Path, kind: Format) -> dict:
    write_export(adapter, version(), out, kind, target="org/target", draft=draft)
    card = (out / "README.md").read_text()
    assert "| sql | 12 | 0.3 | 0.45 |  |  |" in card
    return yaml.safe_load(card.split("---")[1])


def expected(adapter: Path, draft: str, **given: torch.Tensor) -> torch.Tensor:
    model = load_causal_lm(draft, dtype=torch.bfloat16)
    weights = model.state_dict()
    loaded = load_adapter(adapter, AdapterBase.of(model, fingerprint(draft)))
    model.load_state_dict(weights | dict(merged_weights(weights, loaded)))
    with torch.inference_mode():
        return model(IDS, **given).logits


def test_merged_it_is_the_model_that_served(adapter: Path, tiny_draft: str, tmp_path: Path) -> None:
    facts = exported(adapter, tiny_draft, tmp_path / "out", "merged")
    assert facts["base_model_relation"] == "merge"
    assert "speculative-decoding" in facts["tags"]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.bfloat16)
    with torch.inference_mode():
        assert torch.equal(model(IDS).logits, expected(adapter, tiny_draft))
    assert AutoTokenizer.from_pretrained(tmp_path / "out").eos_token == "<eos>"


def test_as_an_adapter_peft_makes_the_same_of_it(adapter: Path, tiny_draft: str, tmp_path: Path) -> None:
    facts = exported(adapter, tiny_draft, tmp_path / "out", "peft")
    again = load_adapter(tmp_path / "out", AdapterBase.of(load_causal_lm(tiny_draft), fingerprint(tiny_draft)))
    assert again.card.requests == 1
    assert facts["library_name"] == "peft"
    model = PeftModel.from_pretrained(load_causal_lm(tiny_draft), str(tmp_path / "out"))
    with torch.inference_mode():
        logits = model(IDS).logits
    torch.testing.assert_close(logits, expected(adapter, tiny_draft).float(), atol=0.3, rtol=0.05)
    plain = load_causal_lm(tiny_draft)
    with torch.inference_mode():
        assert (plain(IDS).logits - logits).abs().max() > 1


def test_as_gguf_it_is_the_same_model_in_one_file(adapter: Path, tiny_draft: str, tmp_path: Path) -> None:
    facts = exported(adapter, tiny_draft, tmp_path / "out", "gguf")
    assert facts["library_name"] == "gguf"
    [card, file] = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert (card, file) == ("README.md", f"{Path(tiny_draft).name}-v3-bf16.gguf")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", gguf_file=file, dtype=torch.bfloat16)
    with torch.inference_mode():
        torch.testing.assert_close(model(IDS).logits, expected(adapter, tiny_draft), atol=0.3, rtol=0.05)


def test_what_cannot_be_written_as_gguf_is_one_line(tiny_neox_target: str, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "neox", tiny_neox_target)
    with pytest.raises(ModelError, match=r"only Llama models .* --format merged"):
        exported(adapter, tiny_neox_target, tmp_path / "out", "gguf")
    assert not (tmp_path / "out").exists()


def test_nothing_is_written_over_and_nothing_of_another_draft_is_exported(
    adapter: Path, tiny_draft: str, tiny_target: str, tmp_path: Path
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("")
    with pytest.raises(ModelError, match="not empty"):
        exported(adapter, tiny_draft, tmp_path / "full", "merged")
    with pytest.raises(AdapterError, match="another base"):
        exported(adapter, tiny_target, tmp_path / "out", "merged")
    assert not (tmp_path / "out").exists()


def test_a_draft_that_reads_states_is_exported_for_hotdraft_alone(tiny_target: str, tmp_path: Path) -> None:
    target = load_causal_lm(tiny_target)
    draft = save(new_hidden_state_draft(target, PredistillConfig(hidden_states=[1, 2])), tmp_path / "draft")
    adapter = write_adapter(tmp_path / "adapter", draft, scale=0.2)
    with pytest.raises(ModelError, match=r"which llama\.cpp does not give it"):
        exported(adapter, draft, tmp_path / "gguf", "gguf")
    exported(adapter, draft, tmp_path / "merged", "merged")
    merged = load_causal_lm(str(tmp_path / "merged"), dtype=torch.bfloat16)
    states = probe_inputs(merged, IDS.shape[1])
    with torch.inference_mode():
        live = merged(IDS, **states).logits
        assert torch.equal(live, expected(adapter, draft, **states))
        assert not torch.equal(live, load_causal_lm(draft, dtype=torch.bfloat16)(IDS, **states).logits)
