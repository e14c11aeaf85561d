"""What a server says of itself once it listens: where to look, what is recorded, and what to run next."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from shlex import quote

from hotdraft.pipeline.config.origins import without_password
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.loop.controls import Controls
from hotdraft.pipeline.system.version import installed_version
from hotdraft.serving.http.access import local_url
from hotdraft.serving.models.runner import Computation


def banner(
    config: HotdraftConfig,
    config_path: Path,
    *,
    controls: Controls,
    port: int,
    trainer_log: Path | None,
    computations: Mapping[str, Computation],
) -> str:
    """Some ten lines; `trainer_log` is None where no trainer runs beside the server."""
    url = local_url(config.server.host, port)
    facts = list(_facts(config, config_path, controls, url, trainer_log))
    facts[-2:-2] = [("computed by", "; ".join(f"{model}: {by}" for model, by in computations.items()))]
    width = max(len(name) for name, _ in facts)
    head = f"hotdraft {installed_version()} serves {config.served_model_name}"
    return "\n".join([head, *(f"  {name:<{width}}  {says}" for name, says in facts)])


def _facts(
    config: HotdraftConfig, config_path: Path, controls: Controls, url: str, trainer_log: Path | None
) -> Iterator[tuple[str, str]]:
    path = quote(str(config_path))
    elsewhere = f"HOTDRAFT_RUN_DIR={quote(str(config.run_dir))} " if "HOTDRAFT_RUN_DIR" in os.environ else ""
    hotdraft = f"{elsewhere}hotdraft"
    yield "API", f"{url}/v1"
    yield "dashboard", f"{url}/"
    yield "API docs", f"{url}/docs"
    if config.draft is None:
        apart_from_traffic, out = (quote(str(config.run_dir / name)) for name in ("predistill", "draft"))
        make = f"HOTDRAFT_RUN_DIR={apart_from_traffic} hotdraft predistill --config {path} --out {out}"
        yield "draft", f"none: tokens are guessed from text alone; `{make}` makes one"
    else:
        k = config.engine.k if controls.k is None else f"{controls.k} by `hotdraft k`, not {config.engine.k}"
        yield "draft", f"{config.draft}, k {k}"
        apart = f"none: `{hotdraft} distill --config {path} --follow`, or serve with --self-improve"
        yield "trainer", apart if trainer_log is None else f"beside it, log in {trainer_log}"
        if not controls.loop_enabled:
            yield "loop", f"off: no job begins by itself until `{hotdraft} loop on --config {path}`"
    if config.recorder.enabled:
        most = f"{config.replay.max_bytes / 1e9:g} GB at most"
        yield "recorded", f"prompts and answers, in {without_password(config.replay_url)} ({most})"
    else:
        yield "recorded", "nothing"
    yield "settings", f"{path}; `{hotdraft} doctor --config {path}` looks it over"
    yield "to end", f"Ctrl-C, or SIGTERM to process {os.getpid()}"
