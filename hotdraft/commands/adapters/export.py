"""``hotdraft adapters export``: a version as other programs load it."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from hotdraft.commands.options import ConfigOption, VersionArgument, waiting


class ExportFormat(StrEnum):
    PEFT = "peft"
    MERGED = "merged"
    GGUF = "gguf"


FormatOption = Annotated[
    ExportFormat,
    typer.Option("--format", help="A PEFT adapter, or the draft with it merged in: a folder, or llama.cpp's file."),
]


def export(
    version: VersionArgument,
    config: ConfigOption,
    out: Annotated[Path, typer.Option(help="New or empty folder to write to.")],
    kind: FormatOption = ExportFormat.MERGED,
) -> None:
    """Write VERSION, with a model card, for vLLM, transformers, PEFT or llama.cpp to load.

    Examples:
    $ hotdraft adapters export 3 --config smollm2 --out my-draft
    $ hotdraft adapters export 3 -c smollm2 --format peft \\
        --out my-lora
    """
    from hotdraft.pipeline.models.draft_folder import check_out

    check_out(out)
    write_version(version, config, out, kind)
    typer.echo(f"version {version} is in {out}")


def write_version(version: int, config: Path, out: Path, kind: ExportFormat) -> None:
    """Write `version` into the new folder `out`. Raises `ConfigError` where there is no draft to speak of."""
    from hotdraft.pipeline.config.section import ConfigError
    from hotdraft.pipeline.config.settings import load_config

    settings = load_config(config)
    if settings.draft is None:
        raise ConfigError("draft: the configuration names none, so that there is nothing to export")
    with waiting("asking the registry"):
        from hotdraft.commands.adapters.exported import write_export
        from hotdraft.pipeline.store.connection import require_store, store_errors
        from hotdraft.pipeline.store.registry import AdapterRegistry

        require_store(settings)
        with store_errors(settings):
            registry = AdapterRegistry(settings)
            found, folder = registry.version(version), registry.download(version)
    with waiting("writing it"):
        write_export(folder, found, out, kind.value, target=settings.target, draft=settings.draft)
