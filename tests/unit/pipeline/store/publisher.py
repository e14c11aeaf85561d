"""A trainer's part in the registry."""

from pathlib import Path

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.store.connection import experiment_id, open_client
from hotdraft.pipeline.store.registry import AdapterRegistry


class Publisher:
    """A trainer's part: a training run, and adapter folders of one small file."""

    def __init__(self, config: HotdraftConfig, folder: Path) -> None:
        self.config = config
        self.registry = AdapterRegistry(config)
        client = open_client(config)
        experiment = experiment_id(client, config, config.tracking.training_experiment)
        self.client, self.run_id = client, client.create_run(experiment).info.run_id
        self.folder = folder
        self.folder.mkdir()

    def publish(self, content: str = "weights") -> int:
        (self.folder / "adapter_model.safetensors").write_text(content)
        return self.registry.publish(self.folder, run_id=self.run_id, tags={"parent": "0", "gain": "0.1"})

    def statuses(self) -> dict[int, str]:
        return {version.version: version.status for version in self.registry.versions()}
