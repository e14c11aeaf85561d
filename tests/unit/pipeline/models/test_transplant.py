"""A model under another vocabulary: the same where the two agree, spelled where they do not."""

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoConfig,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from typer.testing import CliRunner

from hotdraft.cli import app
from hotdraft.pipeline.models.loading import check_same_vocabulary, load_causal_lm, load_tokenizer
from hotdraft.pipeline.models.names import ModelError
from hotdraft.pipeline.models.transplant import Transplanted, replace_tokens, spell, transplant
from tests.models import tiny_llama

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGES = [("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("Ġ", "a"), ("i", "n")]
OTHERS = [("i", "n"), ("in", "g"), ("Ġ", "t"), ("o", "n")]


def tokenizer(merges: Sequence[tuple[str, str]], ends: str, *, shuffled: bool = False) -> PreTrainedTokenizerFast:
    names = [*BYTES, *map("".join, merges), ends]
    if shuffled:
        random.Random(0).shuffle(names)
    backend = Tokenizer(models.BPE(vocab={name: at for at, name in enumerate(names)}, merges=list(merges)))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=ends)


def written(tokens: PreTrainedTokenizerFast, folder: Path, model: object = None) -> str:
    (model or tiny_llama(2, 1, vocab_size=len(tokens))).save_pretrained(folder)  # type: ignore[attr-defined]
    tokens.save_pretrained(folder)
    return str(folder)


def test_tokens_are_found_by_name_by_role_and_by_text() -> None:
    mine, donor = tokenizer(MERGES, "<end>"), tokenizer(OTHERS, "</s>", shuffled=True)
    found = dict(zip(mine.convert_ids_to_tokens(range(len(mine))), spell(mine, donor), strict=True))
    known = donor.get_vocab()
    assert all(found[name] == [known[name]] for name in [*BYTES, "Ġt", "in"])
    assert found["<end>"] == [known["</s>"]]
    assert found["Ġthe"] == [known["Ġt"], known["h"], known["e"]]
    assert found["he"] == [known["h"], known["e"]]


def test_an_end_that_is_padding_too_is_the_donors_end() -> None:
    mine, donor = tokenizer(MERGES, "<end>"), tokenizer([*OTHERS, ("o", "f")], "</s>")
    mine.pad_token, donor.pad_token = "<end>", "of"
    assert spell(mine, donor)[mine.eos_token_id] == [donor.eos_token_id]


def test_equal_names_of_other_text_are_not_taken_for_each_other() -> None:
    """A byte is called by a letter where tokens are of bytes, and elsewhere that letter is itself."""
    letters = Tokenizer(models.BPE(vocab={"é": 0, "a": 1, "</s>": 2}, merges=[]))
    letters.decoder = decoders.Fuse()
    mine = PreTrainedTokenizerFast(tokenizer_object=letters, eos_token="</s>")
    donor = tokenizer([], "</s>")
    known = donor.get_vocab()
    assert spell(mine, donor) == [[known["Ã"], known["©"]], [known["a"]], [known["</s>"]]]


@torch.no_grad()
def test_where_all_is_shared_it_says_the_same(tmp_path: Path) -> None:
    donor, target = tokenizer(MERGES, "</s>"), tokenizer(MERGES, "</s>", shuffled=True)
    names = [written(one, tmp_path / name) for one, name in ((donor, "donor"), (target, "target"))]
    assert transplant(*names, tmp_path / "draft") == Transplanted(len(target), 0, 0)
    draft = load_causal_lm(str(tmp_path / "draft"))
    text = "the thing in a hat"
    logits = draft(torch.tensor([target(text).input_ids])).logits
    expected = load_causal_lm(names[0])(torch.tensor([donor(text).input_ids])).logits
    order = [donor.get_vocab()[name] for name in target.convert_ids_to_tokens(range(len(target)))]
    torch.testing.assert_close(logits, expected[..., order])
    check_same_vocabulary("target", target, "draft", load_tokenizer(str(tmp_path / "draft")))


def qwen2(size: int) -> Qwen2ForCausalLM:
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=size, num_key_value_heads=2, tie_word_embeddings=True, **shape))


def gpt2(size: int) -> GPT2LMHeadModel:
    return GPT2LMHeadModel(GPT2Config(vocab_size=size, n_embd=32, n_layer=1, n_head=4))


@pytest.mark.parametrize("make", [qwen2, gpt2, lambda size: tiny_llama(1, 1, vocab_size=size)])
@torch.no_grad()
def test_other_tokens_are_the_mean_of_what_spells_them(make) -> None:
    model = make(6)
    before = model.get_input_embeddings().weight.clone()
    head = model.get_output_embeddings().weight.clone()
    replace_tokens(model, [[3], [1, 2], [], [5], [0], [4], [2, 3, 4], [1]])
    after = model.get_input_embeddings().weight
    torch.testing.assert_close(after[[0, 3, 4]], before[[3, 5, 0]])
    torch.testing.assert_close(after[1], before[[1, 2]].mean(0))
    torch.testing.assert_close(after[2], before.mean(0))
    torch.testing.assert_close(model.get_output_embeddings().weight[6], head[[2, 3, 4]].mean(0))
    assert model(torch.tensor([[7, 0, 2]])).logits.shape[-1] == model.config.vocab_size == 8


def test_the_draft_ends_as_the_target_does_and_has_rows_for_padding_too(tmp_path: Path) -> None:
    mine = tokenizer(MERGES, "<end>")
    model = tiny_llama(1, 2, vocab_size=len(mine) + 10)
    model.config.eos_token_id = mine.eos_token_id
    target = written(mine, tmp_path / "target", model)
    donor = written(tokenizer(OTHERS, "</s>"), tmp_path / "donor")
    done = CliRunner().invoke(
        app, ["models", "transplant", donor, "--to", target, "--out", str(tmp_path / "draft"), "--json"]
    )
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["shared"], told["spelled"], told["unknown"]) == (len(BYTES) + 3, 3, 10)
    config = AutoConfig.from_pretrained(tmp_path / "draft")
    assert (config.vocab_size, config.eos_token_id) == (len(mine) + 10, mine.eos_token_id)
    assert "cannot write" in (tmp_path / "draft" / "README.md").read_text()


def test_what_a_donors_tokenizer_names_beyond_its_rows_it_does_not_know(tmp_path: Path) -> None:
    donor_tokens = tokenizer(OTHERS, "</s>")
    donor_tokens.add_special_tokens({"pad_token": "<pad>"})
    donor = written(donor_tokens, tmp_path / "donor", tiny_llama(1, 1, vocab_size=len(donor_tokens) - 1))
    mine = tokenizer(MERGES, "</s>")
    mine.add_special_tokens({"pad_token": "<pad>"})
    found = transplant(donor, written(mine, tmp_path / "target"), tmp_path / "draft")
    assert found.unknown == 1


def test_nothing_in_common_is_an_error_and_a_misfit_says_what_to_do(tmp_path: Path) -> None:
    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "zebra": 1}, unk_token="[UNK]"))
    words = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")
    donor = written(words, tmp_path / "donor")
    target = written(tokenizer(MERGES, "</s>"), tmp_path / "target")
    with pytest.raises(ModelError, match=r"no token of .* can be written"):
        transplant(donor, target, tmp_path / "draft")
    assert not (tmp_path / "draft").exists()
    with pytest.raises(ModelError, match="hotdraft models transplant"):
        check_same_vocabulary("t", load_tokenizer(target), "d", load_tokenizer(donor))
