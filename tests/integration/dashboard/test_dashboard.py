"""The dashboard of a real server in a browser: points of traffic, a job that the page starts, the swap it makes."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.dashboard.chromium import DESKTOP, PHONE, chromium, opened, overflow, screenshot
from tests.integration.processes import WORDS, Server, Trickle, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def server(
    browser: Any, write_config: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    config = write_config(tmp_path_factory.mktemp("dashboard"))
    server = Server(config, config.with_name("server.log"))
    yield server
    server.kill()


def test_a_job_started_on_the_page_brings_a_version_and_a_swap(
    browser: Any, server: Server, tmp_path: Path
) -> None:
    with opened(browser, f"{server.url}/dashboard") as page:
        page.locator("#acceptance-chart .empty").wait_for()
        server.ask_many(range(120))
        wait_for("the buffer", lambda: server.metric("hotdraft_recorder_samples_total") >= 120)
        page.locator("#acceptance-chart .main").first.wait_for(timeout=20_000, state="attached")
        page.locator("#start-job").click()
        page.locator("#jobs tbody tr").wait_for(timeout=20_000)
        with Trickle(server, first=500, pause=0.1) as trickle:
            page.locator("#jobs .is-accepted").wait_for(timeout=180_000)
            page.locator("#versions .is-champion").wait_for(timeout=20_000)
            page.locator("#acceptance-chart .mark-label").wait_for(timeout=30_000)
            page.locator("#draft-version").filter(has_text="v1").wait_for(timeout=20_000)
        assert not trickle.failures
        page.get_by_role("button", name="Log of job").click()
        page.locator("#log-text").filter(has_text="accepted").wait_for(timeout=20_000)
        page.locator("#log-close").click()
        assert set(page.locator("#domain-legend button").all_inner_texts()) == set(WORDS)
        assert page.complaints == []
        screenshot(page, tmp_path, "server-light-1280")
    with opened(browser, f"{server.url}/dashboard", PHONE, "dark") as page:
        page.locator("#acceptance-chart .main").first.wait_for(timeout=20_000, state="attached")
        wait_for(
            "the newest point", lambda: f"{newest_rate(server):.3f}" in page.locator("#acceptance").inner_text()
        )
        assert overflow(page) == 0
        assert page.complaints == []
        screenshot(page, tmp_path, "server-dark-390")
    with opened(browser, f"{server.url}/dashboard", DESKTOP) as page:
        page.locator("#rollback").click()
        page.locator("#confirm-yes").click()
        page.locator("#draft-version").filter(has_text="base").wait_for(timeout=20_000)
        page.locator("#k-select").select_option("1")
        page.locator("#k-note").filter(has_text="set by hand").wait_for(timeout=20_000)
        assert server.ask(900).draft_version == 0
        assert page.complaints == []


def newest_rate(server: Server) -> float:
    return httpx.get(f"{server.url}/admin/history").json()["points"][-1]["acceptance_rate"]
