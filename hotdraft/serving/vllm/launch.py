"""`hotdraft serve --engine vllm`: the command that starts vLLM's own server with the loop in it."""

import json
import math
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from hotdraft.pipeline.config.section import ConfigError
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.draft_folder import new_folder, save_plain
from hotdraft.pipeline.models.hidden_state_draft import HiddenStateConfig
from hotdraft.pipeline.models.loading import (
    choose_device,
    choose_dtype,
    fingerprint,
    load_causal_lm,
    load_config_of,
    load_tokenizer,
)
from hotdraft.pipeline.models.names import local_folder, read_cut
from hotdraft.pipeline.processes.command_line import MODULE
from hotdraft.pipeline.processes.supervisor import environment_of
from hotdraft.serving.http.access import read_api_keys
from hotdraft.serving.vllm.versions import installed, is_cpu_build

EXTENSION = "hotdraft.serving.vllm.worker.extension.WorkerExtension"
KEY = "VLLM_API_KEY"
PLUGINS = "VLLM_PLUGINS"
LOADED_UNTOLD = ("general", "io_processor", "platform", "stat_logger")
"""Kinds of plugins of which vLLM loads all unless told which."""
ONLY_IF_NAMED = {"lora_hf_hub_resolver"}
"""Its name there allows downloads."""
MOST_DRAFTED = 3
"""Tokens a step where `engine.k` is auto: vLLM's number is fixed."""


@dataclass(frozen=True)
class Command:
    arguments: list[str]
    environment: dict[str, str]
    """What is to be set beside the rest."""

    def __str__(self) -> str:
        """As a shell takes it, but for a key."""
        shown = {**self.environment, **({KEY: "..."} if KEY in self.environment else {})}
        return " ".join(
            [*(f"{name}={shlex.quote(value)}" for name, value in shown.items()), shlex.join(self.arguments)]
        )

    def run(self) -> None:
        """Become it."""
        os.execvpe(self.arguments[0], self.arguments, {**os.environ, **self.environment})


def check(config: HotdraftConfig) -> None:
    """Raise `VllmVersionError` for a vLLM that is not known, and `ConfigError` for what vLLM has no way of."""
    if config.draft is None:
        raise ConfigError("engine.kind vllm: name a draft: there is nothing to improve without one")
    if isinstance(load_config_of(config.draft), HiddenStateConfig):
        raise ConfigError(
            f"draft {config.draft}: it reads its target's hidden states, which only hotdraft's own engine gives "
            "it: set engine.kind hotdraft, or name a draft of another kind"
        )
    installed()
    if config.engine.k == 0:
        raise ConfigError("engine.k 0: vLLM drafts at least 1 token a step: set another k")
    if len(read_api_keys(config.server)) > 1:
        raise ConfigError(
            "server.api_keys: vLLM takes one key from its environment: leave one, or give --api-key after --"
        )


def vllm_command(
    config: HotdraftConfig, config_path: Path, overrides: Mapping[str, Any], flags: Sequence[str]
) -> Command:
    """What starts vLLM for `config`, `flags` of its own last. Writes the draft's folder if vLLM could not read it.

    Raises as `check` does.
    """
    check(config)
    server, engine = config.server, config.engine
    k = min(MOST_DRAFTED, engine.max_k) if engine.k == "auto" else engine.k
    speculative = {"method": "draft_model", "model": str(plain_folder(config)), "num_speculative_tokens": k}
    told = {
        "--host": server.host,
        "--port": str(server.port),
        "--served-model-name": config.served_model_name,
        "--dtype": str(choose_dtype(config.dtype, choose_device(config.device))).removeprefix("torch."),
        "--max-model-len": str(engine.max_model_len),
        "--max-num-seqs": str(engine.num_slots),
        "--shutdown-timeout": str(math.ceil(server.drain_seconds)),
        "--generation-config": "auto" if server.sampling_defaults == "model" else "vllm",
        "--speculative-config": json.dumps(speculative),
        "--worker-extension-cls": EXTENSION,
    }
    environment = {PLUGINS: ",".join([*other_plugins(), "hotdraft"]), "HOTDRAFT_CONFIG": str(config_path)}
    environment |= dict(environment_of({key: value for key, value in overrides.items() if key != "server"}))
    if keys := read_api_keys(server):
        [environment[KEY]] = keys
    if config.vllm.runner != "auto":
        environment["VLLM_USE_V2_MODEL_RUNNER"] = str(int(config.vllm.runner == "v2"))
    if is_cpu_build():
        vllm = ["vllm.entrypoints.openai.api_server", "--model"]
    else:
        vllm = ["vllm.entrypoints.cli.main", "serve"]
        if "--headless" not in flags:
            told["--api-server-count"] = "1"  # by default one an engine, of which one alone has the loop
    start = [*MODULE, *vllm, str(local_folder(config.target))]
    return Command([*start, *(part for pair in told.items() for part in pair), *flags], environment)


def other_plugins() -> list[str]:
    """Those that vLLM is told to load, or loads untold: to name one, as ours has to be, would turn off the rest."""
    if (told := os.environ.get(PLUGINS)) is not None:
        return [name for name in told.split(",") if name]
    found = {plugin.name for kind in LOADED_UNTOLD for plugin in entry_points(group=f"vllm.{kind}_plugins")}
    return sorted(found - ONLY_IF_NAMED)


def plain_folder(config: HotdraftConfig) -> Path:
    """A folder with the draft as vLLM reads it: its own, or for a cut one another that is written once."""
    assert config.draft is not None
    own = local_folder(config.draft)
    if read_cut(own) is None:
        return own
    folder = (config.run_dir / f"vllm-draft-{fingerprint(config.draft)[:12]}").absolute()
    if not folder.is_dir():
        with new_folder(folder) as partial:
            dtype = choose_dtype(config.dtype, choose_device(config.device))
            save_plain(partial, load_causal_lm(config.draft, dtype=dtype), load_tokenizer(config.draft))
    return folder
