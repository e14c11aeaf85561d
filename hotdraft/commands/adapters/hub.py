"""``hotdraft adapters push`` and ``pull``: versions on the Hugging Face hub."""

from pathlib import Path
from typing import Annotated

import typer

from hotdraft.commands.adapters.export import ExportFormat, FormatOption, write_version
from hotdraft.commands.options import ConfigOption, VersionArgument, waiting

OUTDATED = ["*.safetensors", "*.safetensors.index.json", "*.gguf", "adapter_config.json", "*.parquet"]
"""Files that a version pushed before, in another format, may have left."""


def push(
    version: VersionArgument,
    config: ConfigOption,
    repo: Annotated[str, typer.Option(help="Repository on the hub, as ORG/NAME; made if there is none.")],
    kind: FormatOption = ExportFormat.MERGED,
    private: Annotated[bool, typer.Option("--private", help="Make it for its owners alone.")] = False,
) -> None:
    """Put VERSION on the Hugging Face hub, as `export` writes it.

    Merged, it is served by `draft: ORG/NAME`; as PEFT's, `adapters pull` makes a version of it.

    It takes the token that `hf auth login` stored, or HF_TOKEN.

    Examples:
    $ hotdraft adapters push 3 -c smollm2 --repo me/my-draft
    """
    from tempfile import TemporaryDirectory

    from huggingface_hub import HfApi

    from hotdraft.pipeline.models.names import ModelError, hub_errors

    with TemporaryDirectory() as name:
        folder = Path(name) / "export"
        write_version(version, config, folder, kind)
        with waiting(f"putting it on the hub as {repo}"), hub_errors(f"{repo} on the hub cannot be written"):
            hub = HfApi()
            page = hub.create_repo(repo, private=private, exist_ok=True)
            if private and not hub.model_info(repo).private:
                raise ModelError(f"{repo} on the hub is public: make it private there, or name another")
            hub.upload_folder(
                repo_id=repo, folder_path=folder, commit_message=f"Version {version}", delete_patterns=OUTDATED
            )
    typer.echo(f"version {version} is at {page}")


def pull(
    repo: Annotated[str, typer.Argument(help="Repository on the hub, as ORG/NAME.")],
    config: ConfigOption,
    revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit; its newest state if left out.")
    ] = None,
) -> None:
    """Make a version of what `push --format peft` put on the hub, for `promote` to serve.

    It has to belong to the draft of the configuration; nothing judges it.

    Examples:
    $ hotdraft adapters pull me/my-draft -c smollm2
    """
    from hotdraft.commands.adapters.pulled import fetch_adapter, register
    from hotdraft.pipeline.config.section import ConfigError
    from hotdraft.pipeline.config.settings import load_config
    from hotdraft.pipeline.store.connection import store_errors

    settings = load_config(config)
    if settings.draft is None:
        raise ConfigError("draft: the configuration names none, so that no adapter belongs to it")
    with waiting(f"fetching {repo}"):
        folder, commit = fetch_adapter(repo, revision)
    with waiting("checking it"), store_errors(settings):
        version = register(settings, settings.draft, folder, f"{repo}@{commit}")
    typer.echo(f"{repo} is version {version} here; `hotdraft adapters promote {version}` serves it")
