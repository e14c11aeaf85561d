"""Two servers of one registry, with engines of their own: together they see what neither could tell alone."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hotdraft.pipeline.config.settings import HotdraftConfig, load_config
from hotdraft.pipeline.models.loading import fingerprint
from hotdraft.pipeline.store.adapter_version import ROLLED_BACK
from hotdraft.pipeline.store.connection import experiment_id, open_client
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.pipeline.watch.trial import Trials
from hotdraft.serving.engine.load import build_engine
from hotdraft.serving.messages.events import SwapEvent
from hotdraft.serving.messages.request import GenerationRequest, OutputDelta, SamplingParams
from hotdraft.serving.updates import adapter_sync
from hotdraft.serving.updates.acceptance_watch import AcceptanceWatch
from hotdraft.serving.updates.adapter_sync import AdapterSync
from hotdraft.serving.updates.hot_swap import HotSwapper
from hotdraft.serving.updates.last_served import LastServedFile
from tests.integration.adapters import write_adapter
from tests.integration.processes import wait_for


class Server:
    """An engine, its watch and the thread that follows the champion."""

    def __init__(self, name: str, config: HotdraftConfig, folder: Path) -> None:
        assert config.draft is not None
        self.name, self.swaps = name, []
        self.engine = build_engine(config, None)
        registry = AdapterRegistry(config)
        watch = AcceptanceWatch(Trials(config, name), registry)
        self.engine.listeners += [watch, self]
        swapper = HotSwapper(self.engine, fingerprint(config.draft))
        self.sync = AdapterSync(swapper, registry, LastServedFile(folder / name), watch)

    def __enter__(self) -> "Server":
        self.engine.start()
        self.sync.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.sync.stop()
        self.engine.stop()

    def on_round(self, *_: object) -> None: ...

    def on_finish(self, *_: object) -> None: ...

    def on_swap(self, event: SwapEvent) -> None:
        self.swaps.append(event.version)

    def ask(self, numbers: range) -> None:
        """Requests one after the other, sampled at temperature 1."""
        for number in numbers:
            ended = threading.Event()

            def told(delta: OutputDelta, ended: threading.Event = ended) -> None:
                if delta.finish_reason is not None:
                    ended.set()

            params = SamplingParams(max_tokens=24, temperature=1.0, seed=number, ignore_eos=True)
            prompt = tuple(random.Random(number).choices(range(10, 100), k=8))
            self.engine.submit(GenerationRequest(f"{self.name}-{number}", prompt, params), told)
            assert ended.wait(60)


@pytest.fixture
def servers(
    write_config: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[HotdraftConfig, Server, Server]]:
    monkeypatch.setattr(adapter_sync, "POLL_SECONDS", 0.1)
    config = load_config(write_config(tmp_path, watchdog={"min_requests": 16}))
    with ExitStack() as stack:
        one, two = (stack.enter_context(Server(name, config, tmp_path)) for name in ("one", "two"))
        yield config, one, two


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_servers_find_together_what_neither_could_tell_alone(servers, tmp_path):
    config, one, two = servers
    client, registry = open_client(config), AdapterRegistry(config)
    run = client.create_run(experiment_id(client, config, config.tracking.training_experiment)).info.run_id
    adapters = [(tmp_path / name, scale) for name, scale in (("good", 0.0), ("bad", 1.0))]
    for number, (folder, scale) in enumerate(adapters, start=1):
        write_adapter(folder, config.draft, scale=scale)
        version = registry.publish(folder, run_id=run, tags={})
        assert version == number
    registry.promote(1, reason="by hand")
    wait_for("the first swap", lambda: one.engine.draft_version == two.engine.draft_version == 1)
    for server, first in ((one, 0), (two, 100)):
        server.ask(range(first, first + 20))
    registry.promote(2, reason="by hand")
    wait_for("the second swap", lambda: one.engine.draft_version == two.engine.draft_version == 2)
    one.ask(range(200, 212))
    wait_for("what the first one tells", lambda: "watch/one/after" in registry.version(2).tags)
    assert registry.champion() == 2, "twelve requests are too few"
    two.ask(range(300, 312))
    wait_for("the rollback", lambda: one.engine.draft_version == two.engine.draft_version == 1)
    found = registry.version(2)
    assert found.status == ROLLED_BACK
    requests = int(found.tags["reason"].split(" over ")[1].split()[0])
    assert requests >= config.watchdog.min_requests > 12
    assert registry.champion() == 1
    assert one.swaps == two.swaps == [1, 2, 1], "one verdict, however many found it"
