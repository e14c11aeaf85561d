"""The dashboard's files and the history route, without a browser; `tests/integration/dashboard` has one."""

import re
import time
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from hotdraft.pipeline.store.history import History, Point, Swap
from hotdraft.serving.http import dashboard
from hotdraft.serving.http.admin.history import history_router
from hotdraft.serving.http.dashboard.router import dashboard_router
from hotdraft.serving.http.errors import add_error_handlers

STATIC = Path(dashboard.__file__).with_name("static")


@pytest.fixture(scope="module")
def client() -> TestClient:
    app = FastAPI(redirect_slashes=False)  # as the server's
    add_error_handlers(app)
    app.include_router(dashboard_router())
    return TestClient(app)


def test_every_file_is_served_with_a_strict_policy(client: TestClient) -> None:
    kinds = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
    for path in STATIC.iterdir():
        url = "/dashboard" if path.name == "index.html" else f"/dashboard/{path.name}"
        response = client.get(url)
        assert response.status_code == 200
        assert response.content == path.read_bytes()
        assert response.headers["content-type"].startswith(kinds[path.suffix])
        policy = dict(part.split(" ", 1) for part in response.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["connect-src"] == policy["style-src"] == "'self'"
        assert "unsafe" not in response.headers["content-security-policy"]
        assert response.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", ["nothing.js", "..%2frouter.py", "%2e%2e/router.py", "index.html"])
def test_nothing_else_is_served(client: TestClient, name: str) -> None:
    assert client.get(f"/dashboard/{name}").status_code == 404


@pytest.mark.parametrize("path", ["/", "/dashboard/"])
def test_whoever_types_its_address_otherwise_finds_it(client: TestClient, path: str) -> None:
    page = client.get(path)
    assert (page.status_code, page.url.path) == (200, "/dashboard")


def test_nothing_comes_from_elsewhere_and_nothing_is_inserted_as_markup() -> None:
    for path in STATIC.iterdir():
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//cdn|@import", text), path.name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", text), path.name
        assert not re.search(r"\son\w+=|style=", text), (
            f"{path.name}: the policy forbids inline handlers and styles"
        )


def test_history_has_the_shape_of_the_contract() -> None:
    points = [
        Point(10.0, 3, 40.0, 0, {}),
        Point(15.0, 9, 60.0, 1, {"math": 0.6, "sql": 0.4}, 0.5, 2.0),
    ]
    history = History(5.0, points, [Swap(12.0, 4, 1, "promotion")])
    app = FastAPI()
    app.include_router(history_router(lambda: history))
    answer = TestClient(app).get("/admin/history").json()
    assert time.time() - answer.pop("time") < 60
    assert answer == {
        "interval_seconds": 5.0,
        "points": [
            {"time": 10.0, "request": 3, "tokens_per_second": 40.0, "draft_version": 0, "domains": {}},
            {
                "time": 15.0,
                "request": 9,
                "acceptance_rate": 0.5,
                "mean_acceptance_length": 2.0,
                "tokens_per_second": 60.0,
                "draft_version": 1,
                "domains": {"math": 0.6, "sql": 0.4},
            },
        ],
        "swaps": [{"time": 12.0, "request": 4, "version": 1, "reason": "promotion"}],
    }
