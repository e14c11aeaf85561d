"""A version as other programs load it: a PEFT adapter, or the draft with it merged in, with a model card."""

import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Literal

import torch
import yaml

from hotdraft.pipeline.models.adapter_folder import (
    CONFIG_FILE,
    AdapterBase,
    load_adapter,
    merged_weights,
)
from hotdraft.pipeline.models.draft_folder import new_folder, save_plain
from hotdraft.pipeline.models.gguf_file import write_gguf
from hotdraft.pipeline.models.gguf_vocabulary import write_tokenizer
from hotdraft.pipeline.models.hidden_state_draft import HiddenStateConfig
from hotdraft.pipeline.models.loading import fingerprint, load_causal_lm, load_tokenizer
from hotdraft.pipeline.models.names import ModelError, public_name
from hotdraft.pipeline.store.adapter_version import AdapterVersion
from hotdraft.pipeline.store.lineage import by_domain

Format = Literal["peft", "merged", "gguf"]

CARD = """{front_matter}
# {name}, version {version}

A draft for speculative decoding: it proposes tokens, which `{target}` verifies. {what}
It learned from {requests:,} requests that `{target}` served, with hotdraft. The licence and notices of the draft
apply.

| domain | held-out requests | accepted before | accepted | served requests | accepted in service |
| --- | --- | --- | --- | --- | --- |
{rows}

Accepted is the share of the examined tokens: those up to and including the first that the target refused.
"""
WHAT = {
    "peft": "This is a LoRA of rank {rank} for `{draft}`, in PEFT's form.",
    "merged": "These are the weights of `{draft}` with a LoRA of rank {rank} merged in.",
    "gguf": "These are the weights of `{draft}` with a LoRA of rank {rank} merged in, for llama.cpp.",
}


def write_export(adapter: Path, found: AdapterVersion, out: Path, kind: Format, *, target: str, draft: str) -> None:
    """Write version `found`, whose files are in `adapter`, into the new folder `out`.

    `merged` is in bfloat16, with tokenizer and generation config: transformers and vLLM load it. `gguf` is one file
    of the same, for llama.cpp. `peft` has hotdraft's own files beside PEFT's, so that it can be pulled again.
    Raises `AdapterError` for an adapter of another draft, `ModelError` for a folder that is not empty and for a
    draft that cannot be written as GGUF.
    """
    model = load_causal_lm(draft, dtype=torch.bfloat16)
    if kind == "gguf" and isinstance(model.config, HiddenStateConfig):
        raise ModelError(
            f"{public_name(draft)} reads its target's hidden states, which llama.cpp does not give it: "
            "--format peft or merged, for hotdraft"
        )
    loaded = load_adapter(adapter, AdapterBase.of(model, fingerprint(draft)))
    with new_folder(out) as folder:
        if kind == "peft":
            shutil.copytree(adapter, folder, dirs_exist_ok=True)
            told = json.loads((adapter / CONFIG_FILE).read_text())
            told["base_model_name_or_path"] = public_name(draft)
            (folder / CONFIG_FILE).write_text(json.dumps(told, indent=2) + "\n")
        else:
            weights = model.state_dict()
            model.load_state_dict(weights | dict(merged_weights(weights, loaded)))
            save_plain(folder, model, load_tokenizer(draft))
        if kind == "gguf":
            _as_gguf(folder, f"{Path(public_name(draft)).name}-v{found.version}-bf16.gguf")
        rank, requests = loaded.card.rank, loaded.card.requests
        card = model_card(found, kind, target=target, draft=draft, rank=rank, requests=requests)
        (folder / "README.md").write_text(card, encoding="utf-8")


def _as_gguf(folder: Path, name: str) -> None:
    """The model in `folder` as a file there, in place of all else."""
    others = list(folder.iterdir())
    try:
        write_gguf(folder, folder / name, "bfloat16", partial(write_tokenizer, folder=folder))
    except ValueError as error:
        raise ModelError(
            f"this draft cannot be written as GGUF: {error}; llama.cpp's convert_hf_to_gguf.py takes the folder "
            "that --format merged writes"
        ) from error
    for file in others:
        file.unlink()


def model_card(found: AdapterVersion, kind: Format, *, target: str, draft: str, rank: int, requests: int) -> str:
    """`README.md` with the hub's front matter: what it drafts for, and how much of it was accepted."""
    facts = {
        "base_model": public_name(draft),
        "base_model_relation": "adapter" if kind == "peft" else "merge",
        "library_name": {"peft": "peft", "merged": "transformers", "gguf": "gguf"}[kind],
        "pipeline_tag": "text-generation",
        "tags": ["speculative-decoding", "draft-model", "hotdraft"],
    }
    return CARD.format(
        front_matter=f"---\n{yaml.safe_dump(facts, sort_keys=False)}---\n",
        name=public_name(draft),
        version=found.version,
        target=public_name(target),
        what=WHAT[kind].format(rank=rank, draft=public_name(draft)),
        requests=requests,
        rows="\n".join(_rows(found)) or "| - | | | | | |",
    )


def _rows(found: AdapterVersion) -> Iterator[str]:
    for domain, judged, counts in by_domain(found.tags):
        rate = None if counts is None else counts.acceptance_of_examined
        of_gate = (judged.requests, judged.champion, judged.candidate) if judged else (None, None, None)
        cells = [domain, *of_gate, counts.requests if counts else None, None if rate is None else f"{rate:.3f}"]
        yield "| " + " | ".join("" if cell is None else str(cell) for cell in cells) + " |"
