"""``hotdraft adapters export``: a version as other programs load it."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from hotdraft.commands.options import ConfigOption, waiting


class ExportFormat(StrEnum):
    PEFT = "peft"
    MERGED = "merged"


def export(
    version: Annotated[int, typer.Argument(min=1, help="Version number, as `list` shows it.")],
    config: ConfigOption,
    out: Annotated[Path, typer.Option(help="New or empty folder to write to.")],
    kind: Annotated[
        ExportFormat, typer.Option("--format", help="A PEFT adapter, or the draft with it merged in.")
    ] = ExportFormat.MERGED,
) -> None:
    """Write VERSION, with a model card, for vLLM, transformers or PEFT to load.

    For llama.cpp, give the merged folder to its convert_hf_to_gguf.py.

    Examples:
    $ hotdraft adapters export 3 --config configs/smollm2.yaml --out my-draft
    $ hotdraft adapters export 3 -c configs/smollm2.yaml --format peft \\
        --out my-lora
    """
    from hotdraft.pipeline.config.section import ConfigError
    from hotdraft.pipeline.config.settings import load_config
    from hotdraft.pipeline.models.draft_folder import check_out

    settings = load_config(config)
    if settings.draft is None:
        raise ConfigError("draft: the configuration names none, so that there is nothing to export")
    check_out(out)
    with waiting("asking the registry"):
        from hotdraft.commands.adapters.exported import write_export
        from hotdraft.pipeline.store.connection import store_errors
        from hotdraft.pipeline.store.registry import AdapterRegistry

        with store_errors(settings):
            registry = AdapterRegistry(settings)
            found, folder = registry.version(version), registry.download(version)
    with waiting("writing it"):
        write_export(folder, found, out, kind.value, target=settings.target, draft=settings.draft)
    typer.echo(f"version {version} is in {out}")
