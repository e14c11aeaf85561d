"""`GET /dashboard`: a page that shows the served curves, versions and jobs, and acts on them by `/admin`.

It is static and holds no secret: it asks for an API key itself where `/admin` wants one. It loads nothing
from elsewhere, and its policy forbids the browser to.
"""

from importlib.resources import files
from pathlib import PurePath

from fastapi import APIRouter, Response
from fastapi.responses import RedirectResponse

from hotdraft.serving.http.errors import ApiError

_CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def dashboard_router() -> APIRouter:
    router = APIRouter(include_in_schema=False)
    static = files("hotdraft.serving.http.dashboard") / "static"
    contents = {file.name: file.read_bytes() for file in static.iterdir()}
    page_content = contents.pop("index.html")

    def response(name: str, content: bytes) -> Response:
        return Response(content, headers=_HEADERS, media_type=_CONTENT_TYPES[PurePath(name).suffix])

    @router.get("/")
    async def door() -> RedirectResponse:
        return RedirectResponse("dashboard")

    @router.get("/dashboard")
    async def page() -> Response:
        return response("index.html", page_content)

    @router.get("/dashboard/")
    async def with_a_slash() -> RedirectResponse:
        return RedirectResponse("../dashboard")

    @router.get("/dashboard/{name}")
    async def asset(name: str) -> Response:
        if name not in contents:
            raise ApiError(404, f"There is no {name} of the dashboard.", code="not_found")
        return response(name, contents[name])

    return router
