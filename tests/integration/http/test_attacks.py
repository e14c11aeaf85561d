"""What one client does, a page in somebody's browser included, that the others hear nothing of."""

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.integration.http.test_bad_input import assert_one_line, hotdraft
from tests.integration.processes import Server, wait_for
from tests.scenarios.attacks import ATTACKS, others, silent_connections

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

FILES = 256
STILL_SECONDS = 10.0
"""What held others up for minutes, or for good, is far from it; two cores that do something else are not."""


@pytest.fixture(scope="module")
def server(write_config: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """May open 256 files, and gives bodies two seconds."""
    folder = tmp_path_factory.mktemp("attacked")
    deadlines = {"header_seconds": 4, "body_seconds": 2}
    config = write_config(folder, server={"allowed_hosts": "hotdraft", **deadlines})
    server = Server(config, folder / "server.log", files=FILES)
    yield server
    assert server.stop() == 0, server.words()


@pytest.mark.parametrize("attack", ATTACKS)
def test_others_are_served_meanwhile_and_the_memory_comes_back(server: Server, attack: str) -> None:
    process = psutil.Process(server.process.pid)
    others(server, 5)
    before = process.memory_info().rss
    with ATTACKS[attack](server) as statuses:
        assert max(others(server, 15)) < STILL_SECONDS
    assert not statuses or set(statuses) <= {200, 400, 413}, "it was answered, or refused"
    wait_for("the slots", lambda: server.metric("vllm:num_requests_running") == 0)
    wait_for("the connections", lambda: server.metric("hotdraft_connections") < 10)
    wait_for("the memory", lambda: process.memory_info().rss < 1.1 * before)


def test_three_hundred_silent_connections_leave_the_log_readable(server: Server) -> None:
    lines = server.log.read_text().count("\n")
    with silent_connections(server, 300):
        others(server, 10)
    log = server.log.read_text()
    assert log.count("\n") - lines < 150, "40 are of the requests answered"
    assert "Too many open files" not in log
    assert "a connection was closed" in log
    assert f"this process may open {FILES} files" in log


PAGE = {"Origin": "http://evil.example", "Content-Type": "text/plain;charset=UTF-8"}
"""What a browser says for `fetch(..., {method: "POST", mode: "no-cors"})` to a host name over plain HTTP."""


@pytest.mark.parametrize(
    ("path", "body"), [("jobs", b""), ("adapters/rollback", b"{}"), ("adapters/1/promote", b"")]
)
def test_a_foreign_page_changes_nothing(server: Server, path: str, body: bytes) -> None:
    port = server.url.rpartition(":")[2]
    named = {"Host": f"hotdraft:{port}"}
    own = {"Content-Type": "application/json", "Origin": f"http://hotdraft:{port}"}
    for headers in (PAGE, {"Origin": PAGE["Origin"]}, {}, {"Content-Type": PAGE["Content-Type"]}):
        reply = httpx.post(f"{server.url}/admin/{path}", headers={**named, **headers}, timeout=30.0)
        assert reply.status_code == (403 if "Origin" in headers else 415)
    assert httpx.get(f"{server.url}/admin/jobs", timeout=30.0).json() == {"jobs": []}
    reply = httpx.put(
        f"{server.url}/admin/loop", content=b'{"enabled": true}', headers={**named, **own}, timeout=30.0
    )
    assert reply.status_code == 200, "our own page may"


def test_a_name_that_leads_here_by_rebinding_reads_nothing(server: Server) -> None:
    for path in ("/admin/status", "/metrics", "/v1/models"):
        reply = httpx.get(f"{server.url}{path}", headers={"Host": "evil.example:8000"}, timeout=30.0)
        assert (reply.status_code, reply.json()["error"]["code"]) == (403, "unknown_host")


def test_the_domain_of_what_is_not_stored_is_told_nobody(server: Server) -> None:
    server.ask(1, store=False, metadata={"domain": "merger-talks"})
    assert 'domain="unrecorded"' in httpx.get(f"{server.url}/metrics", timeout=30.0).text
    for path in ("/metrics", "/admin/history"):
        assert "merger-talks" not in httpx.get(f"{server.url}{path}", timeout=30.0).text


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"host": "0.0.0.0"}, "other machines reach /admin at server.host 0.0.0.0: set server.admin_keys"),
        ({"api_keys": [""]}, "server.api_keys: holds an empty text"),
        ({"admin_key_file": "/nowhere"}, "server.admin_key_file cannot be read"),
    ],
    ids=["open admin", "empty key", "no key file"],
)
def test_what_would_be_open_by_mistake_does_not_start(
    write_config: Callable[..., Path], tmp_path: Path, changes: dict[str, object], told: str
) -> None:
    assert_one_line(hotdraft("serve", "--config", write_config(tmp_path, server=changes)), told)
