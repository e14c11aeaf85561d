"""The dashboard in a browser, over an admin API whose answers are made up: what it shows, asks and says."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotdraft.serving.http.errors import ApiError
from tests.integration.dashboard.chromium import DESKTOP, PHONE, TABLET, chromium, opened, overflow, screenshot
from tests.integration.dashboard.fake_admin import FakeAdmin, fake_app, traffic
from tests.served_app import served

pytestmark = pytest.mark.slow

EVIL = '<img src=x onerror="window.owned=1">'


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def admin() -> FakeAdmin:
    return FakeAdmin()


@pytest.fixture
def url(admin: FakeAdmin) -> Iterator[str]:
    with served(fake_app(admin)) as base:
        yield f"{base}/dashboard"


def text(page: Any, selector: str) -> str:
    return page.locator(selector).inner_text()


def lines(cell: Any) -> int:
    """Into how many lines its text is broken."""
    return cell.evaluate(
        "cell => { const range = document.createRange(); range.selectNodeContents(cell);"
        " return new Set(Array.from(range.getClientRects(), (part) => part.top)).size; }"
    )


def until(page: Any, selector: str, words: str) -> None:
    page.locator(selector).filter(has_text=words).first.wait_for(timeout=10_000)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_use_it(browser: Any, admin: FakeAdmin, url: str, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    admin.fill()
    with opened(browser, url, scheme=scheme) as page:
        until(page, "main", "cancelled at step 40")
        found = axe.run(page).response["violations"]
    assert [fault["help"] for fault in found if fault["impact"] in ("serious", "critical")] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESKTOP, TABLET, PHONE], ids=["desktop", "tablet", "phone"])
@pytest.mark.parametrize("filled", [False, True], ids=["empty", "full"])
def test_it_is_whole_at_every_size(
    browser: Any, admin: FakeAdmin, url: str, tmp_path: Path, viewport: dict[str, int], scheme: str, filled: bool
) -> None:
    if filled:
        admin.fill()
    with opened(browser, url, viewport, scheme) as page:
        until(page, "#acceptance-note", "tokens a round" if filled else "no traffic yet")
        until(page, "main", "cancelled at step 40" if filled else "No jobs yet.")
        assert overflow(page) == 0
        screenshot(page, tmp_path, f"{'full' if filled else 'empty'}-{scheme}-{viewport['width']}")
        assert page.locator("#acceptance-chart polyline").count() == int(filled)
        assert page.locator("#acceptance-chart .empty").is_visible() is not filled
        if filled:
            for took in page.locator("#jobs td[data-label=Took]", has_text="2 min").all():
                assert lines(took) == 1
            assert page.locator("#acceptance-chart .mark").count() == 3
            assert page.locator("#domain-chart polyline").count() == 3
            assert page.locator("#versions tbody tr").count() == 3
        assert page.complaints == []


def test_the_curve_is_the_history(browser: Any, admin: FakeAdmin, url: str) -> None:
    admin.fill()
    first, last = admin.history.points[0], admin.history.points[-1]
    with opened(browser, url) as page:
        until(page, "#acceptance", f"{last.acceptance_rate:.3f}")
        places = page.locator("#acceptance-chart polyline").get_attribute("points").split()
        assert len(places) == len(admin.history.points)
        heights = [float(place.split(",")[1]) for place in places]
        assert heights[0] > heights[-1], "higher acceptance stands higher"
        page.locator("#acceptance-chart svg").focus()
        page.keyboard.press("Home")
        assert f"acceptance {first.acceptance_rate:.3f}" in text(page, "#acceptance-chart output")
        page.keyboard.press("ArrowRight")
        assert f"acceptance {admin.history.points[1].acceptance_rate:.3f}" in text(page, "#acceptance-chart output")
        page.get_by_text("by request").click()
        assert page.locator("#acceptance-chart polyline").count() == 1
        page.locator("#domain-legend button", has_text="chat").click()
        assert page.locator("#domain-chart polyline").count() == 2
        newest = replace(last, time=last.time + 5, request=last.request + 1, acceptance_rate=0.111)
        admin.history = replace(admin.history, points=[*admin.history.points, newest])
        until(page, "#acceptance", "0.111")
        assert page.complaints == []


def test_an_idle_server_says_so_and_the_line_breaks(browser: Any, admin: FakeAdmin, url: str) -> None:
    history = traffic(40)
    points = []
    for index, point in enumerate(history.points):
        domains = {"often": 0.4, **({"rare": 0.5} if index % 9 == 0 else {})}
        points.append(replace(point, time=point.time - (900 if index < 20 else 300), domains=domains))
    admin.history = replace(history, points=points)
    with opened(browser, url) as page:
        until(page, "#speed-note", "idle since")
        assert page.locator("#domain-chart polyline").count() == 2 * 2, (
            "a domain served now and then keeps its line"
        )
        assert page.locator("#acceptance-chart polyline").count() == 2


def test_a_running_job_has_a_bar(browser: Any, admin: FakeAdmin, url: str) -> None:
    admin.fill()
    with opened(browser, url) as page:
        until(page, "#jobs", "step 120 of 480 · loss 0.523 · about 62 s left")
        assert page.locator("#jobs progress").evaluate("bar => bar.position") == 0.25
        until(page, "#trainer-note", "a job is running")
        admin.jobs[0]["progress"] |= {"seconds_left": 0}
        until(page, "#jobs", "120 steps · loss 0.523 · being judged")
        assert page.locator("#jobs progress").evaluate("bar => bar.position") == 1
        admin.jobs[0] |= {"state": "rejected"}
        until(page, "#trainer-note", "next job waits: 12 of 24 new requests")


def test_a_server_without_a_trainer_says_so_while_the_loop_is_off(browser: Any, admin: FakeAdmin, url: str) -> None:
    admin.status |= {"loop_enabled": False}
    with opened(browser, url) as page:
        until(page, "#trainer-note", "the loop is switched off")
        admin.status["trainer"] = "absent"
        until(page, "#trainer-note", "the server runs without one")


def test_the_choice_of_k_names_what_is_configured_after_a_restart_with_another(
    browser: Any, admin: FakeAdmin, url: str
) -> None:
    with opened(browser, url) as page:
        until(page, "#k-select", f"as configured ({admin.status['k']})")
        admin.status["k"] = 3
        until(page, "#k-select", "as configured (3)")


def test_what_clients_wrote_is_text(browser: Any, admin: FakeAdmin, url: str) -> None:
    admin.fill()
    admin.history = traffic(30, domains=(EVIL, "plain", "other"))
    admin.adapters[0]["tags"]["reason"] = EVIL
    admin.jobs[0]["reason"] = EVIL
    with opened(browser, url) as page:
        until(page, "#domain-legend", EVIL)
        until(page, "#versions", EVIL)
        until(page, "#jobs", EVIL)
        assert page.evaluate("window.owned") is None
        assert page.complaints == []


def test_actions_ask_first_and_tell_the_server(browser: Any, admin: FakeAdmin, url: str) -> None:
    admin.fill()
    admin.jobs[0] |= {"state": "rejected", "ended_at": admin.jobs[0]["started_at"] + 9}
    with opened(browser, url) as page:
        page.get_by_role("button", name="Promote version 2").click()
        page.locator("#confirm-no").click()
        assert admin.calls == []
        page.get_by_role("button", name="Promote version 2").click()
        page.locator("#reason").fill("it was good")
        page.keyboard.press("Enter")
        page.locator("#confirm").wait_for(state="hidden")
        page.locator("#rollback").click()
        page.locator("#confirm-yes").click()
        until(page, "#pinned", "v1 is pinned by hand")
        page.locator("#unpin").click()
        page.locator("#unpin").wait_for(state="hidden")
        page.locator("#start-job").click()
        page.get_by_role("button", name="Cancel job").click()
        page.locator("#confirm-yes").click()
        until(page, "#jobs", "cancelling")
        page.locator("#loop").focus()
        page.keyboard.press("Space")
        page.locator("#loop[aria-checked=false]").wait_for()
        page.locator("#k-select").select_option("2")
        until(page, "#k-note", "set by hand")
        job = admin.jobs[0]["id"]
        assert admin.calls == [
            ("POST", "/admin/adapters/2/promote", {"reason": "it was good"}),
            ("POST", "/admin/adapters/rollback", {}),
            ("POST", "/admin/adapters/unpin", None),
            ("POST", "/admin/jobs", None),
            ("DELETE", f"/admin/jobs/{job}", None),
            ("PUT", "/admin/loop", {"enabled": False}),
            ("PUT", "/admin/k", {"k": 2}),
        ]
        page.get_by_role("button", name=f"Log of job {job}").click()
        until(page, "#log-text", "step 145")
        assert page.complaints == []


def test_refusals_are_told_in_words(browser: Any, admin: FakeAdmin, url: str) -> None:
    admin.fill()
    admin.errors = {
        "POST /admin/jobs": ApiError(409, "job 7 is running already (origin: loop)"),
        "GET /admin/adapters": ApiError(503, "the adapter registry cannot be reached"),
    }
    with opened(browser, url) as page:
        until(page, "#versions-problem", "the adapter registry cannot be reached")
        page.locator("#start-job").click()
        until(page, "#jobs-problem", "Not now: job 7 is running already (origin: loop)")
        assert page.locator("#jobs tbody tr").count() == 6, "the rest is shown all the same"
        admin.errors = {}
        page.locator("#versions-problem").wait_for(state="hidden")
        assert page.locator("#versions tbody tr").count() == 3


def test_it_asks_for_a_key_and_keeps_it_for_the_tab(browser: Any, admin: FakeAdmin, url: str) -> None:
    admin.key = "secret"
    with opened(browser, url) as page:
        page.locator("#key").fill("wrong")
        page.locator("#key-yes").click()
        until(page, "#key-text", "refused")
        page.locator("#key").fill("secret")
        page.keyboard.press("Enter")
        until(page, "#connection", "up 13 min")
        page.locator("#problem").wait_for(state="hidden")
        assert page.locator("#give-key").is_hidden()
        page.reload()
        until(page, "#connection", "up 13 min")
        assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 1, ""]


def test_a_key_not_given_is_not_asked_for_again(browser: Any, admin: FakeAdmin, url: str) -> None:
    admin.key = "secret"
    with opened(browser, url, PHONE) as page:
        page.locator("#key-no").click()
        until(page, "#problem", "Incorrect API key provided.")
        page.wait_for_timeout(2500)
        assert page.locator("#key-dialog").is_hidden()
        assert text(page, "#connection") == "no access"
        assert overflow(page) == 0
        page.locator("#give-key").click()
        page.locator("#key").fill("secret")
        page.locator("#key-yes").click()
        until(page, "#connection", "up 13 min")


def test_it_outlives_the_server(browser: Any, admin: FakeAdmin) -> None:
    admin.fill()
    app = fake_app(admin)
    with ExitStack() as stack:
        with served(app) as base:
            page = stack.enter_context(opened(browser, f"{base}/dashboard"))
            until(page, "#connection", "up 13 min")
        until(page, "#problem", "The server cannot be reached.")
        assert page.locator("#start-job").is_disabled()
        assert page.locator("#acceptance-chart polyline").count() == 1, "what was known is shown on"
        with served(app, int(base.rsplit(":", 1)[1])):
            until(page, "#connection", "up 13 min")
            page.locator("#problem").wait_for(state="hidden")
            page.locator("#start-job:enabled").wait_for()
