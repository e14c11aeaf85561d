"""`hotdraft serve`: the OpenAI-compatible server, with the loop beside it if asked."""

import logging
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from hotdraft.commands.options import DtypeOption, EngineOption, HostOption, KOption, PortOption, serving_overrides
from hotdraft.pipeline.system.resources import usable_cores

FLAGS_FILE = "serve.yaml"
"""In the run directory: what was said by flags alone, as a file that every other command takes."""

logger = logging.getLogger(__name__)


def serve(
    target: Annotated[
        str | None, typer.Argument(help="Model to serve: hub id, folder, or smollm2; else the file's.")
    ] = None,
    draft: Annotated[
        str | None, typer.Option(help="Draft that speeds it up: hub id, folder, or smollm2-draft.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", envvar="HOTDRAFT_CONFIG", help="YAML file, or one that ships, as smollm2."),
    ] = None,
    self_improve: Annotated[
        bool, typer.Option("--self-improve", help="Run the trainer beside the server and serve what it improves.")
    ] = False,
    host: HostOption = None,
    port: PortOption = None,
    k: KOption = None,
    dtype: DtypeOption = None,
    max_model_len: Annotated[
        int | None, typer.Option(help="Prompt and output tokens of one request, at most.")
    ] = None,
    max_num_seqs: Annotated[int | None, typer.Option(help="Requests decoded together.")] = None,
    served_model_name: Annotated[str | None, typer.Option(help="Name that clients use for the model.")] = None,
    api_key: Annotated[list[str] | None, typer.Option(help="Key that /v1 asks for. Repeatable.")] = None,
    log_requests: Annotated[bool, typer.Option("--log-requests", help="Log a line for each HTTP request.")] = False,
    speculative_config: Annotated[
        str | None, typer.Option(help='As vLLM has it: \'{"model": DRAFT, "num_speculative_tokens": 3}\'.')
    ] = None,
    engine: EngineOption = None,
    show_command: Annotated[
        bool, typer.Option("--show-command", help="With vllm: print what would be run, and end.")
    ] = False,
    vllm_flags: Annotated[
        list[str] | None, typer.Argument(help="Flags of vLLM, after --.", metavar="[-- FLAGS]")
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Folder for what is recorded and learned; runs/TARGET without a file.")
    ] = None,
) -> None:
    """Serve TARGET, sped up by a draft; record what the draft got wrong.

    What no flag says is as the file has it, and else by default: 127.0.0.1:8000,
    k auto, 8 requests decoded together, of 1024 tokens at most.

    Examples:
    $ hotdraft serve --config smollm2 --self-improve
    $ hotdraft serve path/to/target --draft path/to/draft --max-model-len 4096
    $ hotdraft serve --config smollm2 --host 0.0.0.0 --port 9000
    $ HOTDRAFT_ENGINE__NUM_SLOTS=16 hotdraft serve -c smollm2 --k 3
    $ hotdraft serve -c smollm2 --self-improve --engine vllm -- --tensor-parallel-size 2
    """
    from rich.console import Console

    from hotdraft.doctor.preflight import check_ready_to_serve
    from hotdraft.pipeline.config.settings import load_config, merged
    from hotdraft.pipeline.models.names import is_to_be_fetched
    from hotdraft.pipeline.system.run_lock import run_lock

    flags = vllm_flags or []
    if target is not None and target.startswith("-"):  # after --, with no TARGET before it
        flags, target = [target, *flags], None
    if target is None and config is None and "HOTDRAFT_TARGET" not in os.environ:
        raise typer.BadParameter("name a TARGET, such as smollm2, or a file by --config")
    overrides = serving_overrides(
        speculative=speculative_config,
        target=target,
        draft=draft,
        run_dir=run_dir,
        dtype=dtype,
        server={
            "host": host,
            "port": port,
            "served_model_name": served_model_name,
            "api_keys": ",".join(api_key) if api_key else None,
            "log_requests": log_requests or None,
        },
        engine={"kind": engine, "k": k, "max_model_len": max_model_len, "num_slots": max_num_seqs},
        vllm={"self_improve": True} if self_improve else None,
    )
    settings = load_config(config, overrides)
    on_vllm = settings.engine.kind == "vllm"
    if flags and not on_vllm:
        raise typer.BadParameter("flags after -- are vLLM's: add --engine vllm")
    if show_command and not on_vllm:
        raise typer.BadParameter("--show-command is of --engine vllm")
    if self_improve and None in (settings.engine.threads, settings.distill.threads):
        overrides = merged(overrides, _shared_cores(settings.engine.threads, settings.distill.threads))
        settings = load_config(config, overrides)
    console = Console(stderr=True)
    with console.status("looking for what could be in the way") as status, ExitStack() as held:
        check_ready_to_serve(settings)
        # vLLM's process takes the lock itself
        lock = None if on_vllm else held.enter_context(run_lock(settings.run_dir, "server"))
        if is_to_be_fetched(settings.target):
            from hotdraft.pipeline.models.fetch import fetch

            fetch(settings.target, status.update)
        config_path = config or _write_flags(settings.run_dir, overrides)
        status.update("importing torch")
        if on_vllm:
            from hotdraft.serving.vllm.launch import vllm_command

            path = config_path.absolute() if config_path.is_file() else config_path
            command = vllm_command(settings, path, overrides, flags)
            status.stop()
            if show_command:
                typer.echo(command)
                return
            command.run()

        from hotdraft.serving.service import serve as run

        def tell(says: str) -> None:
            status.stop()
            console.print(says, highlight=False, markup=False, soft_wrap=True)

        run(
            settings,
            config_path=config_path,
            overrides=overrides,
            self_improve=self_improve,
            lock=lock,
            on_step=status.update if console.is_terminal else logger.info,
            on_listening=tell if settings.server.log_format == "text" else logger.info,
        )


def _shared_cores(serving: int | None, training: int | None) -> dict[str, Any]:
    """Threads for server and trainer, who would else fight for every core, where the configuration does not say.

    Of two cores the server has both: while a job trains its forwards go by one thread, which is as many as half.
    """
    cores = usable_cores()
    training = training or max(1, cores - serving if serving else cores // 2)
    return {
        "engine": {"threads": serving or max(min(cores, 2), cores - training)},
        "distill": {"threads": training},
    }


def _write_flags(run_dir: Path, overrides: dict[str, Any]) -> Path:
    """Keep what the flags said, but for keys, where trainer, jobs and other commands can read it."""
    import yaml

    from hotdraft.pipeline.system.whole_file import appearing

    server = {name: value for name, value in overrides.get("server", {}).items() if name != "api_keys"}
    path = run_dir / FLAGS_FILE
    said = {**overrides, "run_dir": str(run_dir), "server": server}
    content = b"# What `hotdraft serve` was told by flags.\n" + yaml.safe_dump(said, sort_keys=False).encode()
    if not (path.is_file() and path.read_bytes() == content):  # else a full disk would keep it from starting again
        with appearing(path) as temporary:
            temporary.write_bytes(content)
    return path
