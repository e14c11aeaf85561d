"""A draft of another family for a target: its weights, the target's tokens: `hotdraft models transplant`.

What the two vocabularies share keeps its rows of embedding and head. Another token of the target is spelled by the
donor's tokens of the same text, and gets the means of their rows. The result is a draft like any other: rejection
sampling keeps the target's distribution at every temperature, as Timor et al. show for the shared tokens alone
("Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for Heterogeneous Vocabularies", 2025).
Where the target cuts text in other places than the donor would, it learns that from traffic.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from hotdraft.pipeline.models.draft_folder import new_folder, save_plain
from hotdraft.pipeline.models.loading import fingerprint, load_causal_lm, load_config_of, load_tokenizer
from hotdraft.pipeline.models.names import ModelError

ROLES = ("eos_token", "bos_token", "unk_token", "pad_token")
"""What a token is for, of which the first counts: one may be for several."""
ANCHOR = "a"
"""A letter before a token's text, because many tokenizers write what begins a text otherwise."""

CARD = """# {donor}, with the tokens of {target}

The weights of `{donor}` ({donor_fingerprint}) under the vocabulary of `{target}`, as its draft: {shared:,} of
{tokens:,} tokens are the donor's own, {spelled:,} are means of the donor's tokens that spell them, {unknown:,} it
cannot write. Made by `hotdraft models transplant`. The donor's licence and notices apply.
"""


class Transplanted(NamedTuple):
    """Tokens of the target by what the donor knows of them."""

    shared: int
    spelled: int
    unknown: int


def transplant(
    donor: str, target: str, folder: Path, on_step: Callable[[str], object] = lambda step: None
) -> Transplanted:
    """Write into `folder`, new or empty, what `donor` becomes with the tokens of `target`.

    `on_step` is told what is being done. Raises `ModelError` for models that cannot be loaded, for vocabularies of
    which no token of the target can be written with the donor's, and for a folder that cannot be written.
    """
    with new_folder(folder) as partial:
        on_step("comparing vocabularies")
        tokenizer = load_tokenizer(target)
        config = load_config_of(target).get_text_config()
        donor_config = load_config_of(donor)
        spelling = spell(tokenizer, load_tokenizer(donor))
        rows = donor_config.get_text_config().vocab_size  # fewer than its tokenizer names, in some
        spelling = [[] if any(one >= rows for one in ids) else ids for ids in spelling]
        spelling += [[] for _ in range(config.vocab_size - len(spelling))]  # embeddings may be padded
        found = Transplanted(
            shared=sum(len(ids) == 1 for ids in spelling),
            spelled=sum(len(ids) > 1 for ids in spelling),
            unknown=sum(not ids for ids in spelling),
        )
        if not found.shared + found.spelled:
            raise ModelError(f"no token of {target!r} can be written with those of {donor!r}")
        on_step(f"loading {donor}")
        dtype: Any = donor_config.dtype or torch.float32
        model = load_causal_lm(donor, dtype=dtype)
        replace_tokens(model, spelling)
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            setattr(model.config.get_text_config(), name, getattr(config, name, None))
        model.generation_config = GenerationConfig.from_model_config(model.config)
        on_step("writing")
        save_plain(partial, model, tokenizer)
        names = {"donor": Path(donor).name, "target": Path(target).name, "tokens": len(spelling)}
        card = CARD.format(**names, donor_fingerprint=fingerprint(donor)[:12], **found._asdict())
        (partial / "README.md").write_text(card, encoding="utf-8")
    return found


def spell(target: PreTrainedTokenizerBase, donor: PreTrainedTokenizerBase) -> list[list[int]]:
    """Of each token id of the target the donor's that mean the same: by name, role or text; none if it has none."""
    named, known = target.get_vocab(), donor.get_vocab()
    ids: list[list[int]] = [[] for _ in range(max(named.values()) + 1)]
    special = set(target.all_special_ids)
    by_text = []
    for token, token_id in named.items():
        if token in known and _says(target, token) == _says(donor, token):
            ids[token_id] = [known[token]]
        elif token_id not in special:
            by_text.append(token_id)
    for role in ROLES:
        mine, other = getattr(target, role, None), getattr(donor, role, None)
        if mine is not None and other is not None and not ids[named[mine]]:
            ids[named[mine]] = [known[other]]
    for token_id, written in zip(by_text, _written(_texts(target, by_text), donor), strict=True):
        ids[token_id] = written
    return ids


def _says(tokenizer: PreTrainedTokenizerBase, token: str) -> str:
    """The text of a token alone, by which what two kinds of tokenizers call alike is told apart."""
    return tokenizer.convert_tokens_to_string([token])


def _texts(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> list[str]:
    """Empty where a token is part of a character."""
    anchor = tokenizer(ANCHOR, add_special_tokens=False).input_ids
    length = len(tokenizer.decode(anchor, clean_up_tokenization_spaces=False))
    pairs = [[*anchor, token_id] for token_id in token_ids]
    texts = tokenizer.batch_decode(pairs, clean_up_tokenization_spaces=False)
    return ["" if "\ufffd" in text else text[length:] for text in texts]


def _written(texts: Sequence[str], donor: PreTrainedTokenizerBase) -> list[list[int]]:
    anchor = donor(ANCHOR, add_special_tokens=False).input_ids
    if not texts:
        return []
    anchored = donor([ANCHOR + text for text in texts], add_special_tokens=False).input_ids
    alone = donor(list(texts), add_special_tokens=False).input_ids
    unknown = donor.unk_token_id
    written = [
        after[len(anchor) :] if after[: len(anchor)] == anchor else begun
        for after, begun in zip(anchored, alone, strict=True)
    ]
    return [[] if unknown in ids else ids for ids in written]


@torch.no_grad()
def replace_tokens(model: PreTrainedModel, spelling: Sequence[Sequence[int]]) -> None:
    """Give a model the vocabulary of which each token is spelled by its present ones."""
    parts = [_means(part, spelling) for part in _by_token(model)]
    model.resize_token_embeddings(len(spelling), mean_resizing=False)
    for part, means in zip(_by_token(model), parts, strict=True):
        part.copy_(means)


def _by_token(model: PreTrainedModel) -> list[Tensor]:
    """Embedding, head where it is another, and its bias: what has a row for each token."""
    embedding: Any = model.get_input_embeddings()
    head: Any = model.get_output_embeddings()
    weights = [embedding.weight] if head.weight is embedding.weight else [embedding.weight, head.weight]
    return weights if getattr(head, "bias", None) is None else [*weights, head.bias]


def _means(rows: Tensor, spelling: Sequence[Sequence[int]]) -> Tensor:
    """Of the spelling's rows; of all rows where there is none."""
    lengths = torch.tensor([len(ids) for ids in spelling])
    wide = rows.float().view(len(rows), -1)
    means = F.embedding_bag(torch.tensor([*chain(*spelling)]), wide, lengths.cumsum(0) - lengths, mode="mean")
    means[lengths == 0] = wide.mean(0)
    return means.view(-1, *rows.shape[1:]).to(rows.dtype)
