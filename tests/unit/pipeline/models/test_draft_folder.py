import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from hotdraft.pipeline.models.draft_folder import check_out, new_folder, save_draft
from hotdraft.pipeline.models.loading import load_causal_lm
from hotdraft.pipeline.models.names import Cut, ModelError
from tests.models import CHAT_TEMPLATE, disturbed, save, tiny_llama, tiny_tokenizer

IDS = torch.arange(1, 9)[None]


def test_a_folder_appears_whole(tmp_path):
    out = tmp_path / "a" / "draft"
    with new_folder(out) as folder:
        (folder / "weights").write_text("half")
        assert not out.exists()
    assert (out / "weights").read_text() == "half"
    assert [path.name for path in out.parent.iterdir()] == ["draft"]


def test_a_folder_whose_writing_failed_never_appears(tmp_path):
    out = tmp_path / "draft"

    def write() -> None:
        with new_folder(out) as folder:
            (folder / "weights").write_text("half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write()
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_left_is_not_taken_over(tmp_path):
    (tmp_path / ".draft.tmp").mkdir()
    (tmp_path / ".draft.tmp" / "old").touch()
    (tmp_path / "draft").mkdir()  # empty: it may be filled
    with new_folder(tmp_path / "draft") as folder:
        (folder / "new").touch()
    assert [path.name for path in (tmp_path / "draft").iterdir()] == ["new"]


def test_places_that_cannot_be_written_to(tmp_path):
    check_out(tmp_path / "new" / "deep")
    assert not (tmp_path / "new").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "README.md").write_text("mine")
    with pytest.raises(ModelError, match="full is not empty"):
        check_out(tmp_path / "full")
    with pytest.raises(ModelError, match=r"README\.md is a file"):
        check_out(tmp_path / "full" / "README.md")
    with pytest.raises(ModelError, match=r"README\.md is not a folder with permission"):
        check_out(tmp_path / "full" / "README.md" / "draft")
    with pytest.raises(ModelError, match="full is not empty"), new_folder(tmp_path / "full"):
        pass
    assert (tmp_path / "full" / "README.md").read_text() == "mine"


@pytest.mark.parametrize("tied", [False, True])
def test_transformers_loads_the_plain_form_by_itself(tmp_path, tied):
    model = tiny_llama(layers=2, seed=1)
    model.config.tie_word_embeddings = tied
    model = type(model)(model.config).to(torch.bfloat16)
    save_draft(tmp_path, model, tiny_tokenizer())
    loaded, loading = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    assert loaded.dtype == torch.bfloat16
    assert {name: t.tolist() for name, t in loaded.state_dict().items()} == {
        name: t.tolist() for name, t in model.state_dict().items()
    }
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.get_vocab() == tiny_tokenizer().get_vocab()
    assert tokenizer.chat_template == CHAT_TEMPLATE
    assert len({path.stat().st_mode for path in tmp_path.iterdir()}) == 1  # who may serve it may read all of it
    assert str(tmp_path) not in "".join(path.read_text() for path in tmp_path.glob("*.json"))


def test_sampling_options_of_the_target_stay_with_it(tmp_path):
    model = tiny_llama(layers=1, seed=1)
    # As some published models have it: temperature without sampling, which transformers refuses to save.
    model.generation_config = GenerationConfig(eos_token_id=[255, 256], do_sample=False, temperature=0.6)
    save_draft(tmp_path, model, tiny_tokenizer())
    saved = GenerationConfig.from_pretrained(tmp_path)
    assert saved.eos_token_id == [255, 256]
    assert saved.temperature in (None, 1.0)


@torch.no_grad()
def test_transformers_assisted_generation_takes_it(tmp_path):
    target = tiny_llama(layers=3, seed=1)
    save_draft(tmp_path, disturbed(target, 0.02), tiny_tokenizer())
    assistant = AutoModelForCausalLM.from_pretrained(tmp_path)
    drafted = []
    assistant.register_forward_hook(lambda *_: drafted.append(1))
    options = {"attention_mask": torch.ones_like(IDS), "max_new_tokens": 24, "do_sample": False, "pad_token_id": 0}
    plain = target.generate(IDS, **options)
    assert torch.equal(target.generate(IDS, assistant_model=assistant, **options), plain)
    assert drafted


def test_only_a_cut_is_slim(tmp_path, tiny_target):
    model = load_causal_lm(tiny_target)
    with pytest.raises(ModelError, match="cut from a target has a slim form"):
        save_draft(tmp_path / "a", model, tiny_tokenizer(), slim=True)
    assert not (tmp_path / "a").exists()
    save_draft(tmp_path / "b", model, tiny_tokenizer(), Cut(tiny_target, "0" * 64, [0, 1, 2]), slim=True)
    assert {path.name for path in (tmp_path / "b").iterdir()} == {"config.json", "cut.json", "model.safetensors"}
    assert save(model, tmp_path / "c")
    assert (tmp_path / "b" / "model.safetensors").stat().st_size < (
        tmp_path / "c" / "model.safetensors"
    ).stat().st_size
