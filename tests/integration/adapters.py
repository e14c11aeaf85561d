"""Adapter folders as the trainer writes them, with weights of the test's choosing."""

import time
from pathlib import Path

import torch

from hotdraft.pipeline.config.learning import LoraSection
from hotdraft.pipeline.models.adapter_folder import AdapterCard
from hotdraft.pipeline.models.loading import fingerprint, load_causal_lm
from hotdraft.training.fit.lora import build_lora, save_lora, target_modules


@torch.no_grad()
def write_adapter(folder: Path, draft: str, *, seed: int = 0, rank: int = 4, scale: float = 0.05) -> Path:
    """An adapter for `draft` whose update is random, of about `scale` times the size of an activation."""
    base = load_causal_lm(draft)
    section = LoraSection(rank=rank, alpha=2 * rank)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = build_lora(base, section, "none")
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
    card = AdapterCard(
        base_fingerprint=fingerprint(draft),
        quantization="none",
        rank=rank,
        alpha=section.alpha,
        target_modules=target_modules(base, section.target_modules),
        parent_version=0,
        requests=1,
        tokens=1,
        domains={"test": 1},
        created_at=time.time(),
    )
    save_lora(folder, model, card)
    return folder
