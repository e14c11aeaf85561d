"""A trainable LoRA on a frozen draft, in full precision or on NF4 (QLoRA, Dettmers et al., 2023)."""

import copy
import shutil
import time
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from transformers import PreTrainedModel

from hotdraft.pipeline.config.learning import LoraSection
from hotdraft.pipeline.models.adapter_folder import (
    PEFT_PREFIX,
    PROBE_POSITIONS,
    PROBE_TOKENS,
    AdapterCard,
    LoadedAdapter,
    Quantization,
    adapted_modules,
    merged_weights,
    write_card,
    write_probe,
)
from hotdraft.pipeline.models.hidden_state_draft import probe_inputs
from hotdraft.pipeline.replay.rows import ReplayRows

NF4_PARAMETERS = 500_000_000
"""Of a draft from which on `auto` quantises it on a GPU."""


class LoraError(ValueError):
    """A LoRA that the draft cannot carry."""


def resolve_quantization(choice: Literal["auto", "none", "nf4"], draft: PreTrainedModel) -> Quantization:
    """`auto` is NF4 for a draft of `NF4_PARAMETERS` or more on CUDA.

    Below, it saves little and costs acceptance; on a CPU it costs time.
    """
    if choice != "auto":
        return choice
    is_large = draft.num_parameters() >= NF4_PARAMETERS
    return "nf4" if draft.device.type == "cuda" and is_large else "none"


def target_modules(model: PreTrainedModel, choice: str | list[str]) -> list[str]:
    """Last parts of the names of the linear layers to adapt; `all-linear` leaves out the output head.

    Raises `LoraError` for a name that no linear layer of the model has, or if it has none at all.
    """
    head = model.get_output_embeddings()
    linears = {
        name.rsplit(".", 1)[-1]
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head
    }
    if not linears:
        raise LoraError(f"{type(model).__name__} has no linear layer that an adapter could go on")
    if choice == "all-linear":
        return sorted(linears)
    names = [choice] if isinstance(choice, str) else choice
    unknown = sorted(set(names) - linears)
    if unknown:
        raise LoraError(f"lora.target_modules: the draft has no linear layer {unknown}; it has {sorted(linears)}")
    return sorted(names)


def build_lora(
    base: PreTrainedModel,
    section: LoraSection,
    quantization: Quantization,
    *,
    initial: LoadedAdapter | None = None,
) -> PeftModel:
    """A PEFT model with float32 adapters over a structural copy of `base`, whose tensors stay shared.

    `base` is untouched and may be evaluated meanwhile. With "nf4" the adapted layers hold their own
    quantised copies. The adapter starts from `initial`, or as the identity.

    Never run an NF4 model in eval mode without gradients: on a CPU bitsandbytes then packs the weights
    for inference, and a later backward pass returns no gradient, silently.
    """
    model = structural_copy(base)
    names = target_modules(model, section.target_modules)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    if quantization == "nf4":
        _quantize(model, names)
    config = LoraConfig(
        task_type="CAUSAL_LM", r=section.rank, lora_alpha=section.alpha, target_modules=names, lora_dropout=0.0
    )
    peft_model = get_peft_model(model, config, autocast_adapter_dtype=True)
    if initial is not None:
        own = dict(peft_model.named_parameters())
        with torch.no_grad():
            for module, pair in initial.lora.items():
                for part, tensor in zip("AB", pair, strict=True):
                    own[f"{PEFT_PREFIX}{module}.lora_{part}.default.weight"].copy_(tensor)
    return peft_model


def merged_model(base: PreTrainedModel, adapter: LoadedAdapter) -> PreTrainedModel:
    """A copy of `base` with the adapter merged in, as a server runs it; all other tensors are shared."""
    model = structural_copy(base)
    weights = dict(base.named_parameters())
    for name, weight in merged_weights(weights, adapter):
        module = model.get_submodule(name.removesuffix(".weight"))
        module.weight = nn.Parameter(weight, requires_grad=False)
    return model


def card_of(
    base: PreTrainedModel,
    base_fingerprint: str,
    section: LoraSection,
    quantization: Quantization,
    learned: ReplayRows,
    parent_version: int = 0,
) -> AdapterCard:
    """Of an adapter that `build_lora` made and `learned` taught."""
    return AdapterCard(
        base_fingerprint=base_fingerprint,
        quantization=quantization,
        rank=section.rank,
        alpha=section.alpha,
        target_modules=target_modules(base, section.target_modules),
        parent_version=parent_version,
        requests=len(learned),
        tokens=int(learned.column("output_tokens").sum()),
        domains=dict(Counter(learned["domain"])),
        created_at=time.time(),
    )


@torch.no_grad()
def save_lora(folder: Path, model: PeftModel, card: AdapterCard) -> None:
    """Write the adapter folder. Its probe is of tokens drawn at random: who is given it learns nobody's text."""
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(str(folder), save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)  # PEFT's model card, a form left empty
    write_card(folder, card)
    drawn = torch.randint(model.config.vocab_size, (1, PROBE_TOKENS), generator=torch.Generator().manual_seed(0))
    input_ids = drawn.to(model.device)
    model.eval()
    if card.quantization == "nf4":
        from bitsandbytes.nn import Linear4bit

        for module in model.modules():
            if isinstance(module, Linear4bit):
                module.train()  # in eval mode it would pack its weight and compute in bfloat16
    given = probe_inputs(model.get_base_model(), PROBE_TOKENS)  # type: ignore[arg-type]  # of `build_lora`
    logits = model(input_ids=input_ids, logits_to_keep=PROBE_POSITIONS, **given).logits[0]
    write_probe(folder, input_ids, logits)


def structural_copy(model: PreTrainedModel) -> PreTrainedModel:
    """A deep copy of the modules that shares every parameter and buffer."""
    shared: dict[int, Tensor] = {id(t): t for t in chain(model.parameters(), model.buffers())}
    return copy.deepcopy(model, memo=dict(shared))


def _quantize(model: PreTrainedModel, names: list[str]) -> None:
    """Replace the linear layers to adapt by NF4 ones with double quantisation."""
    import bitsandbytes as bnb

    parameters = dict(model.named_parameters())
    for module in adapted_modules(parameters, names):
        linear: Any = model.get_submodule(module)  # an nn.Linear: `target_modules` saw to it
        compute = torch.float32 if linear.weight.dtype == torch.float32 else torch.bfloat16
        quantized: Any = bnb.nn.Linear4bit(
            linear.in_features,
            linear.out_features,
            bias=linear.bias is not None,
            compute_dtype=compute,
            compress_statistics=True,
            quant_type="nf4",
            device="meta",
        )
        packed: Any = bnb.nn.Params4bit(
            linear.weight.detach().clone(),
            requires_grad=False,
            compress_statistics=True,
            quant_type="nf4",
            blocksize=64,
            module=quantized,
        )
        quantized.weight = packed.to(linear.weight.device)
        quantized.bias = linear.bias
        model.set_submodule(module, quantized)
    setattr(model, "is_loaded_in_4bit", True)  # noqa: B010 --  PEFT chooses its 4-bit layer by it
