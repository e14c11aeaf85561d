"""``hotdraft simulate`` and ``hotdraft demo``: play traffic through the loop and show what it gained."""

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hotdraft.commands.options import ConfigOption, EngineOption, check_writable, waiting

if TYPE_CHECKING:
    from rich.console import Console

    from hotdraft.pipeline.config.settings import HotdraftConfig
    from hotdraft.pipeline.simulation.playback import Defaults, Outcome
    from hotdraft.pipeline.traffic.prompts import Prompt

DemoConfigOption = Annotated[
    Path, typer.Option("--config", "-c", help="YAML configuration file, or one that ships.")
]
ConcurrencyOption = Annotated[int, typer.Option(min=1, help="Requests in flight.")]
MaxTokensOption = Annotated[int, typer.Option(min=1, help="For prompts that do not state their own.")]

SHOWN_ERRORS = 3
TRAFFIC = "traffic.jsonl"
"""What a demo's folder begins with."""


def simulate(
    traffic: Annotated[list[Path], typer.Option(help="JSONL file of prompts; several are played in turn.")],
    config: ConfigOption,
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder for report.json and acceptance.png.")],
    concurrency: ConcurrencyOption = 4,
    url: Annotated[
        str | None, typer.Option(help="A running server; without it, one is started with --config.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="First prompts of each file only.")] = None,
    request_rate: Annotated[
        float,
        typer.Option(min=0.001, help="Requests a second, at most.", show_default="as fast as they are answered"),
    ] = float("inf"),
    max_tokens: MaxTokensOption = 64,
    temperature: Annotated[
        float, typer.Option(min=0, max=2, help="For prompts that do not state their own.")
    ] = 0.0,
    api_key: Annotated[
        str | None, typer.Option(envvar="HOTDRAFT_API_KEY", help="Of the server; by default a key of --config.")
    ] = None,
) -> None:
    """Play prompts through the loop; write how acceptance went. Exit code 1 if a request failed.

    Ctrl-C ends it with a report of what was played.

    Examples:
    $ hotdraft simulate --traffic my.jsonl -c smollm2 --out runs/mine
    $ hotdraft simulate --traffic a.jsonl --traffic b.jsonl --limit 100 \\
        -c smollm2 --url http://127.0.0.1:8000 --out runs/mine

    A line of a file is {"domain": "sql", "prompt": "..."}. The report for
    scripts is report.json in the folder --out.
    """
    from hotdraft.pipeline.simulation.playback import Defaults
    from hotdraft.pipeline.traffic.prompts import read_traffic

    prompts = [prompt for path in traffic for prompt in read_traffic(path)[:limit]]
    defaults = Defaults(max_tokens, temperature)
    run(prompts, config, out, concurrency, defaults, url=url, api_key=api_key, request_rate=request_rate)


def demo(
    out: Annotated[Path, typer.Option(help="Folder for everything the demo makes.")] = Path("runs/demo"),
    config: DemoConfigOption = Path("demo"),
    arithmetic_requests: Annotated[int, typer.Option(min=1, help="Prompts of the first domain.")] = 40,
    sql_requests: Annotated[int, typer.Option(min=1, help="Prompts of the domain that follows.")] = 220,
    concurrency: ConcurrencyOption = 4,
    max_tokens: MaxTokensOption = 64,
    seed: Annotated[int, typer.Option(help="Of the prompts.")] = 0,
    engine: EngineOption = None,
) -> None:
    """The loop on built-in traffic: arithmetic problems, then text-to-SQL arrives as a shift.

    Examples:
    $ hotdraft demo
    $ hotdraft demo --arithmetic-requests 20 --sql-requests 60 --out runs/short
    """
    from hotdraft.pipeline.config.settings import load_config
    from hotdraft.pipeline.simulation.playback import Defaults
    from hotdraft.pipeline.traffic.generators import arithmetic, text_to_sql
    from hotdraft.pipeline.traffic.prompts import write_traffic

    overrides: dict[str, Any] = {"run_dir": out, **({"engine": {"kind": engine}} if engine else {})}
    settings = load_config(config, overrides).apart(out)  # raises what is wrong before anything is moved
    # said, as a variable may name the stores of servers: what the demo learns is not for them
    overrides |= {"replay": {"url": settings.replay_url}, "tracking": {"uri": settings.tracking_uri}}
    if out.exists():
        if not (out / TRAFFIC).exists() and any(out.iterdir()):
            says = f"{out} is no earlier demo, and is not empty: name a new folder"
            raise typer.BadParameter(says, param_hint="--out")
        earlier = out.with_name(f"{out.name}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(out.stat().st_mtime))}")
        out.rename(earlier)
        typer.echo(f"the earlier demo is now in {earlier}")
    out.mkdir(parents=True)
    prompts = [*arithmetic(arithmetic_requests, seed), *text_to_sql(sql_requests, seed)]
    write_traffic(out / TRAFFIC, prompts)
    run(prompts, config, out, concurrency, Defaults(max_tokens), overrides=overrides)


def run(
    prompts: "list[Prompt]",
    config: Path,
    out: Path,
    concurrency: int,
    defaults: "Defaults",
    *,
    url: str | None = None,
    api_key: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    request_rate: float = float("inf"),
) -> None:
    """Play `prompts` at `url` or at a server of our own; write and print the report.

    Raises `typer.Exit` with code 1 when a request failed or no server of our own was to be had, 2 when none answers
    at `url`, 130 after Ctrl-C.
    """
    import asyncio
    import json
    from contextlib import ExitStack, nullcontext
    from functools import partial

    import httpx
    from rich.console import Console

    from hotdraft.pipeline.config.settings import load_config
    from hotdraft.pipeline.loop.jobs import JobRecords
    from hotdraft.pipeline.processes.local_server import ServerError, local_server
    from hotdraft.pipeline.simulation.playback import play
    from hotdraft.pipeline.simulation.progress import SimulationProgress, latest_job
    from hotdraft.pipeline.simulation.report import build_report, draw
    from hotdraft.pipeline.system.log_tail import log_tail
    from hotdraft.serving.http.access import read_api_keys

    settings = load_config(config, dict(overrides or {}))
    out.mkdir(parents=True, exist_ok=True)
    picture = out / "acceptance.png"
    check_writable(out / "report.json", picture)
    console = Console(markup=False)
    log = out / "server.log"
    jobs = JobRecords(settings.run_dir)
    server = nullcontext(url.rstrip("/").removesuffix("/v1")) if url else local_server(config, log, overrides)
    if not url:
        console.print(f"starting the server, log in {log}", highlight=False)
    try:
        with ExitStack() as running:
            with waiting("waiting for the server"):
                base_url = running.enter_context(server)
            if not url:
                page = "/hotdraft/dashboard" if settings.engine.kind == "vllm" else "/"
                console.print(f"dashboard {base_url}{page}", highlight=False)
            trainer_state = partial(latest_job, jobs, since=time.time())
            progress = running.enter_context(SimulationProgress(len(prompts), console, trainer_state))
            key = api_key or next(iter(read_api_keys(settings.server)), None)
            playback = asyncio.run(
                play(
                    base_url,
                    prompts,
                    concurrency=concurrency,
                    defaults=defaults,
                    on_outcome=progress.show,
                    api_key=key,
                    request_rate=request_rate,
                )
            )
    except (ServerError, httpx.HTTPError, httpx.InvalidURL, ImportError) as error:  # the last: a SOCKS proxy
        says = f"{url} does not answer as hotdraft does: {error}" if url else str(error)
        console.print(f"error: {says}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(2 if url else 1) from error
    report = build_report(playback)
    (out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    show_report(console, report)
    console.print(f"report   {out / 'report.json'}", highlight=False)
    picture.unlink(missing_ok=True)
    if report["windows"]:
        draw(playback, report, picture)
        console.print(f"picture  {picture}", highlight=False)
    _show_curves(console, settings)
    if report["failed_requests"]:
        show_failures(console, playback.outcomes)
        if not url and not playback.interrupted:
            console.print(f"the server's last words:\n{log_tail(log)}", markup=False, highlight=False)
    if playback.interrupted:
        raise typer.Exit(130)
    if report["failed_requests"]:
        raise typer.Exit(1)


def _show_curves(console: "Console", settings: "HotdraftConfig") -> None:
    """Say where MLflow has the curves of the newest serving run, if it has any."""
    from shlex import quote

    with waiting("asking MLflow"):
        from hotdraft.pipeline.config.origins import without_password
        from hotdraft.pipeline.store.connection import STORE_ERRORS, StoreError, require_store
        from hotdraft.pipeline.store.tracking import curves_page

        page = None
        with suppress(*STORE_ERRORS, StoreError):
            require_store(settings)
            page = curves_page(settings)
    if page is None:
        return
    uri = without_password(settings.tracking_uri)
    base = uri if settings.has_remote_store else "http://127.0.0.1:5000"
    command = "" if settings.has_remote_store else f"mlflow ui --backend-store-uri {quote(uri)}\n         "
    console.print(f"curves   {command}{base.rstrip('/')}{page}", highlight=False, soft_wrap=True)


def show_report(console: "Console", report: dict[str, Any]) -> None:
    """A table of the domains, first fifth against last fifth, and a line on the whole run."""
    from rich.table import Table

    table = Table("domain", title=f"Acceptance rate (k = {report['k']:.2g})", title_justify="left")
    for heading in ("requests", "first 20 %", "last 20 %", "gain", "tokens a round"):
        table.add_column(heading, justify="right")
    for domain, figures in report["by_domain"].items():
        first, last = figures["acceptance_rate_first"], figures["acceptance_rate_last"]
        length = figures["mean_acceptance_length"]
        table.add_row(
            domain,
            str(figures["requests"]),
            *(
                ["-"] * 3
                if first is None or last is None
                else [f"{first:.3f}", f"{last:.3f}", f"{last - first:+.3f}"]
            ),
            "-" if length is None else f"{length:.2f}",
        )
    console.print(table)
    console.print(
        f"{report['requests']} requests ({report['failed_requests']} failed), {report['tokens']:,} tokens in "
        f"{report['wall_seconds']:.0f} s ({report['tokens_per_second']:.1f}/s), swaps: {report['swaps']}, "
        f"adapters rejected: {report['adapters_rejected']}",
        highlight=False,
    )
    if report["speedup"] is not None:
        console.print(
            f"{report['speedup']:.2f} times as fast as without a draft, by what rounds cost here", highlight=False
        )


def show_failures(console: "Console", outcomes: "list[Outcome]") -> None:
    """The first few errors in full."""
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    for outcome in failed[:SHOWN_ERRORS]:
        console.print(f"request {outcome.request} ({outcome.domain}): {outcome.error}", style="red", markup=False)
    if len(failed) > SHOWN_ERRORS:
        console.print(f"and {len(failed) - SHOWN_ERRORS} more", style="red")
