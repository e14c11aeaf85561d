"""An adapter with random weights, to swap in when only the swap itself is of interest."""

import json
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from hotdraft.pipeline.models.adapter_folder import (
    CONFIG_FILE,
    PEFT_PREFIX,
    PROBE_POSITIONS,
    PROBE_TOKENS,
    WEIGHTS_FILE,
    AdapterCard,
    write_card,
    write_probe,
)
from hotdraft.pipeline.models.hidden_state_draft import probe_inputs
from hotdraft.pipeline.models.loading import fingerprint, load_causal_lm

SCALE = 1e-3
"""Of B's entries: an update far below the weights, so that acceptance stays what it was."""


@torch.inference_mode()
def write_random_adapter(
    folder: Path, draft: str, rank: int, dtype: torch.dtype, seed: int, scale: float = SCALE
) -> None:
    """A LoRA of `rank` for every linear layer of `draft` but its head, as a trainer would publish it."""
    generator = torch.Generator().manual_seed(seed)
    model = load_causal_lm(draft, dtype=dtype)
    head = model.get_output_embeddings()
    lora = {}
    names = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and module is not head:
            a = torch.randn(rank, module.in_features, generator=generator) / module.in_features**0.5
            b = torch.randn(module.out_features, rank, generator=generator) * scale
            lora[f"{PEFT_PREFIX}{name}.lora_A.weight"], lora[f"{PEFT_PREFIX}{name}.lora_B.weight"] = a, b
            module.weight.copy_((module.weight.float() + b @ a).to(dtype))
            names.append(name.rsplit(".", 1)[-1])
    folder.mkdir(parents=True)
    save_file(lora, folder / WEIGHTS_FILE)
    (folder / CONFIG_FILE).write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": rank}))
    ids = torch.randint(model.config.get_text_config().vocab_size, (1, PROBE_TOKENS), generator=generator)
    given = probe_inputs(model, PROBE_TOKENS)
    write_probe(folder, ids, model(input_ids=ids, logits_to_keep=PROBE_POSITIONS, **given).logits[0])
    write_card(
        folder,
        AdapterCard(
            base_fingerprint=fingerprint(draft),
            quantization="none",
            rank=rank,
            alpha=rank,
            target_modules=sorted(set(names)),
            parent_version=0,
            requests=0,
            tokens=0,
            domains={},
            created_at=time.time(),
        ),
    )
