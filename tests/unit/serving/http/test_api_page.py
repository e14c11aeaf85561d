"""The page that documents the API, where there is no internet."""

import re

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from hotdraft.serving.http.docs import docs_router
from hotdraft.serving.http.errors import add_error_handlers


@pytest.fixture(scope="module")
def client() -> TestClient:
    app = FastAPI(docs_url=None, redoc_url=None)
    add_error_handlers(app)
    app.include_router(docs_router("hotdraft"))
    return TestClient(app)


def test_the_page_names_no_foreign_host_and_all_it_names_is_here(client: TestClient) -> None:
    page = client.get("/docs").text
    assert "//" not in re.sub(r"<!--.*?-->", "", page, flags=re.DOTALL)
    named = re.findall(r"""(?:src|href)="([^"]+)"|url: '([^']+)'""", page)
    assert len(named) == 4
    for url in ("".join(pair) for pair in named):
        assert client.get(f"/{url}").status_code == 200, url


def test_its_policy_allows_its_own_scripts_alone(client: TestClient) -> None:
    policy = client.get("/docs").headers["content-security-policy"]
    parts = dict(part.split(" ", 1) for part in policy.split("; "))
    assert parts["default-src"] == "'none'"
    assert re.fullmatch(r"'self' 'sha256-[\w+/]{43}='", parts["script-src"])
    assert parts["connect-src"] == "'self'"


@pytest.mark.parametrize("name", ["redoc.standalone.js", "..%2fcore.py"])
def test_nothing_else_is_served(client: TestClient, name: str) -> None:
    assert client.get(f"/docs/{name}").status_code == 404
