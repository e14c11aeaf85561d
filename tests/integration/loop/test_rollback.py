"""A bad adapter that a gate let into service: the watchdog takes it out, over real HTTP."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hotdraft.pipeline.config.settings import load_config
from hotdraft.pipeline.store.adapter_version import ROLLED_BACK
from hotdraft.pipeline.store.connection import experiment_id, open_client
from hotdraft.pipeline.store.registry import AdapterRegistry
from tests.integration.adapters import write_adapter
from tests.integration.processes import Server, acceptance_rate, wait_for

REQUESTS_UNTIL_ROLLBACK = 50
AT_ONCE = 4


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_bad_adapter_is_rolled_back_within_fifty_requests(
    write_config: Callable[..., Path], tmp_path: Path
) -> None:
    path = write_config(tmp_path)
    config = load_config(path)
    assert config.draft is not None
    bad = write_adapter(tmp_path / "bad", config.draft, scale=1.0)
    server = Server(path, tmp_path / "server.log")
    try:
        before = server.ask_many(range(60))
        client, registry = open_client(config), AdapterRegistry(config)
        run = client.create_run(experiment_id(client, config, config.tracking.training_experiment))
        version = registry.publish(bad, run_id=run.info.run_id, tags={})
        registry.promote(version, reason="by a gate that errs")
        wait_for("the swap", lambda: server.draft_version == version, 20)

        after = []
        while server.draft_version == version and len(after) < 200:
            start = 1000 + len(after)
            after += server.ask_many(range(start, start + AT_ONCE), AT_ONCE)
        drafted_by_it = [answer for answer in after if answer.draft_version == version]
        print(f"{acceptance_rate(before):.3f} before, {acceptance_rate(drafted_by_it):.3f} after; "
              f"rolled back after {len(after)} requests")  # fmt: skip
        assert acceptance_rate(drafted_by_it) < acceptance_rate(before) - 0.1
        assert len(after) <= REQUESTS_UNTIL_ROLLBACK
        assert server.draft_version == registry.champion() == 0
        found = registry.version(version)
        assert found.status == ROLLED_BACK
        assert "served acceptance fell from" in found.tags["reason"]
        assert server.metric("hotdraft_rollbacks_total") == 1
    finally:
        server.kill()
