"""An adapter from the hub as a version of this registry."""

import time
from pathlib import Path

import torch
from huggingface_hub import snapshot_download

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.adapter_folder import AdapterBase, load_adapter
from hotdraft.pipeline.models.loading import fingerprint, load_causal_lm
from hotdraft.pipeline.models.names import hub_errors
from hotdraft.pipeline.store.connection import create_run, experiment_id, open_client
from hotdraft.pipeline.store.registry import AdapterRegistry


def fetch_adapter(repo: str, revision: str | None) -> tuple[Path, str]:
    """The files of a repository on the hub, and the commit they are of. Raises `ModelError` if it has none."""
    with hub_errors(f"{repo} on the hub cannot be read"):
        folder = Path(snapshot_download(repo, revision=revision, allow_patterns=["*.json", "*.safetensors"]))
    return folder, folder.name


def register(config: HotdraftConfig, draft: str, folder: Path, origin: str) -> int:
    """Publish the adapter in `folder`, a candidate. Raises `AdapterError` if it does not belong to `draft`."""
    model = load_causal_lm(draft, dtype=torch.bfloat16)
    card = load_adapter(folder, AdapterBase.of(model, fingerprint(draft))).card
    registry, client, began = AdapterRegistry(config), open_client(config), time.time()
    experiment = experiment_id(client, config, config.tracking.training_experiment)
    run_id = create_run(client, experiment, f"pull-{origin}", "hotdraft adapters pull", started=began)
    tags = {"origin": origin, "train_requests": str(card.requests), "train_tokens": str(card.tokens)}
    status = "FAILED"
    try:
        version = registry.publish(folder, run_id=run_id, tags=tags)
        client.set_tag(run_id, "draft_version", str(version))
        status = "FINISHED"
    finally:
        client.set_terminated(run_id, status)
    return version
