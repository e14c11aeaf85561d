"""Pages in a headless Chromium of the system, driven by Playwright; tests skip where either is missing."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

DESKTOP = {"width": 1280, "height": 900}
TABLET = {"width": 900, "height": 1100}
PHONE = {"width": 390, "height": 844}


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser; skips the test where there is none."""
    api = pytest.importorskip("playwright.sync_api")
    executable = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if executable is None:
        pytest.skip("no Chromium on this system")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def opened(browser: Any, url: str, viewport: dict[str, int] = DESKTOP, scheme: str = "light") -> Iterator[Any]:
    """A page at `url`; what it complains of, and any request that leaves the server, is in `page.complaints`."""
    context = browser.new_context(viewport=viewport, color_scheme=scheme)
    page = context.new_page()
    page.complaints = []
    page.on("console", lambda said: said.type in ("error", "warning") and page.complaints.append(said.text))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    origin = url.split("/dashboard")[0]
    page.on("request", lambda asked: asked.url.startswith(origin) or page.complaints.append(asked.url))
    page.goto(url)
    yield page
    context.close()


def overflow(page: Any) -> int:
    """Pixels by which the page is wider than its window."""
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


def screenshot(page: Any, folder: Path, name: str) -> None:
    """To `folder`, or where HOTDRAFT_SCREENSHOTS says."""
    into = Path(os.environ.get("HOTDRAFT_SCREENSHOTS", folder))
    page.screenshot(path=into / f"{name}.png", full_page=True)
