"""The serving process: engine, HTTP face, tracking and the loop, started and stopped together."""

import gc
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from threading import Event
from typing import Any

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.loop.controls import ControlFile
from hotdraft.pipeline.models.loading import fingerprint, weights_id
from hotdraft.pipeline.processes.stop_signals import stop_signals
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.system.array_ring import forget_served_states
from hotdraft.pipeline.system.run_lock import RunLock
from hotdraft.serving.engine.load import build_engine, draft_ranking
from hotdraft.serving.http.access import read_admin_keys, read_api_keys
from hotdraft.serving.http.app import create_app
from hotdraft.serving.http.banner import banner
from hotdraft.serving.http.client_identity import are_apart
from hotdraft.serving.http.connections import Connections, connection_limit
from hotdraft.serving.http.drain import DrainingServer
from hotdraft.serving.http.logs import configure_logging
from hotdraft.serving.loop_parts import LoopParts, Part
from hotdraft.serving.updates.hot_swap import HotSwapper
from hotdraft.serving.updates.k_override import KOverride


def serve(
    config: HotdraftConfig,
    *,
    config_path: Path,
    overrides: Mapping[str, Any],
    self_improve: bool,
    lock: RunLock | None = None,
    on_step: Callable[[str], object] = lambda step: None,
    on_listening: Callable[[str], object] = lambda says: None,
) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP. With `self_improve` a trainer runs beside and its champions serve.

    `lock` is what the run directory is held by. `on_step` is told what is being done until it listens, and
    `on_listening` then what there is to know.
    Raises ValueError subclasses, before anything is started, for a configuration that cannot serve.
    """
    told_to_end = Event()

    def end(*_: object) -> None:
        told_to_end.set()  # what is run when it comes may drop the exception, as a callback from C does
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)  # until the server runs
    if signal.SIGHUP in stop_signals():
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))  # its terminal was closed
    configure_logging(config.server.log_format, log_requests=config.server.log_requests)
    api_keys, admin_keys = read_api_keys(config.server), read_admin_keys(config.server)
    connections = Connections(config.server, connection_limit(config.server.max_connections))
    buffer = ReplayBuffer.of(config, may_be_away=True)
    forget_served_states(config)
    engine = build_engine(config, buffer, on_step)
    on_step("opening the stores")
    if engine.k_choice.guessing is not None and not are_apart(config):
        engine.k_choice.guessing.recall(buffer, weights_id(config.target), engine.decoder.vocab_size)
    controls = ControlFile(config.run_dir)
    k_override = KOverride(engine, controls)
    swapper = None
    if config.draft is not None:
        swapper = HotSwapper(engine, fingerprint(config.draft), draft_ranking(config))
        if config.engine.k != "auto":
            engine.between_rounds(engine.k_choice.measure_costs)  # whatever k is, the speed-up over k = 0 is told
    loop = LoopParts(
        engine,
        config,
        config_path,
        overrides,
        swapper=swapper,
        self_improve=self_improve,
        recorder=engine.recorder,
        writer=buffer,
        connections=connections,
        lock=lock,
        k_override=k_override,
    )
    app = create_app(
        engine, config, metrics=loop.metrics, api_keys=api_keys, admin_keys=admin_keys, routers=loop.routers
    )
    trainer_log = loop.supervisor.log_path if loop.supervisor else None
    server = DrainingServer(
        app,
        config.server,
        engine,
        connections,
        on_listening=lambda port: on_listening(
            banner(
                config,
                config_path,
                controls=controls.read(),
                port=port,
                trainer_log=trainer_log,
                computations=engine.computations,
            )
        ),
    )

    recorder = nullcontext() if engine.recorder is None else closing(engine.recorder)
    graphs = "" if engine.decoder.round_graphs is None else "recording the graphs of rounds, and "
    on_step(f"{graphs}measuring what a round costs")
    learning = _running(engine, k_override, *loop.after_engine)
    with _running(*loop.before_engine), recorder, learning, _set_aside():
        if told_to_end.is_set():
            sys.exit(0)
        server.run()
    if engine.fatal_error is not None:
        sys.exit(f"the server ends, as its engine did: {engine.fatal_error}")


@contextmanager
def _running(*parts: Part) -> Iterator[None]:
    """Starts them, and stops what was begun to be started, the last first."""
    started: list[Part] = []
    try:
        for part in parts:
            started.append(part)  # first: a signal may come while it starts
            part.start()
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # we are about to end
        for part in reversed(started):
            part.stop()


@contextmanager
def _set_aside() -> Iterator[None]:
    """Collections of garbage pass over all that there is: to look through what was loaded takes half a second, in
    which every stream stands still."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()  # what is left when Python ends some libraries call a leak
