"""``hotdraft adapters export`` and ``push``: a version as other programs load it, in a folder or on the hub."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from hotdraft.commands.options import ConfigOption, waiting


class ExportFormat(StrEnum):
    PEFT = "peft"
    MERGED = "merged"


VersionArgument = Annotated[int, typer.Argument(min=1, help="Version number, as `list` shows it.")]
FormatOption = Annotated[
    ExportFormat, typer.Option("--format", help="A PEFT adapter, or the draft with it merged in.")
]


def export(
    version: VersionArgument,
    config: ConfigOption,
    out: Annotated[Path, typer.Option(help="New or empty folder to write to.")],
    kind: FormatOption = ExportFormat.MERGED,
) -> None:
    """Write VERSION, with a model card, for vLLM, transformers or PEFT to load.

    For llama.cpp, give the merged folder to its convert_hf_to_gguf.py.

    Examples:
    $ hotdraft adapters export 3 --config configs/smollm2.yaml --out my-draft
    $ hotdraft adapters export 3 -c configs/smollm2.yaml --format peft \\
        --out my-lora
    """
    from hotdraft.pipeline.models.draft_folder import check_out

    check_out(out)
    _write(version, config, out, kind)
    typer.echo(f"version {version} is in {out}")


def push(
    version: VersionArgument,
    config: ConfigOption,
    repo: Annotated[str, typer.Option(help="Repository on the hub, as ORG/NAME; made if there is none.")],
    kind: FormatOption = ExportFormat.MERGED,
    private: Annotated[bool, typer.Option("--private", help="Make it for its owners alone.")] = False,
) -> None:
    """Put VERSION on the Hugging Face hub, as `export` writes it; a merged one is a draft by the name ORG/NAME.

    It takes the token that `hf auth login` stored, or HF_TOKEN.

    Examples:
    $ hotdraft adapters push 3 -c configs/smollm2.yaml --repo me/my-draft
    """
    from tempfile import TemporaryDirectory

    from httpx import HTTPError
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    from hotdraft.pipeline.models.names import ModelError

    with TemporaryDirectory() as name:
        folder = Path(name) / "export"
        _write(version, config, folder, kind)
        try:
            with waiting(f"putting it on the hub as {repo}"):
                hub = HfApi()
                page = hub.create_repo(repo, private=private, exist_ok=True)
                hub.upload_folder(repo_id=repo, folder_path=folder, commit_message=f"Version {version}")
        except (HfHubHTTPError, HFValidationError, HTTPError) as error:
            [says, *_] = str(error).strip().splitlines() or [type(error).__name__]
            raise ModelError(f"{repo} on the hub cannot be written: {says}") from error
    typer.echo(f"version {version} is at {page}")


def _write(version: int, config: Path, out: Path, kind: ExportFormat) -> None:
    from hotdraft.pipeline.config.section import ConfigError
    from hotdraft.pipeline.config.settings import load_config

    settings = load_config(config)
    if settings.draft is None:
        raise ConfigError("draft: the configuration names none, so that there is nothing to export")
    with waiting("asking the registry"):
        from hotdraft.commands.adapters.exported import write_export
        from hotdraft.pipeline.store.connection import store_errors
        from hotdraft.pipeline.store.registry import AdapterRegistry

        with store_errors(settings):
            registry = AdapterRegistry(settings)
            found, folder = registry.version(version), registry.download(version)
    with waiting("writing it"):
        write_export(folder, found, out, kind.value, target=settings.target, draft=settings.draft)
