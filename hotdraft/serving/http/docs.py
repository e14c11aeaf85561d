"""`GET /docs`: the API as a page to read and try. Swagger UI comes with a package, and nothing from elsewhere."""

import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

import fastapi_offline
from fastapi import APIRouter
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import FileResponse, HTMLResponse

from hotdraft.serving.http.errors import ApiError

ASSETS = Path(fastapi_offline.__file__).with_name("static")
SCRIPT, STYLE, ICON = "swagger-ui-bundle.js", "swagger-ui.css", "favicon.png"


def docs_router(title: str) -> APIRouter:
    """The page finds `openapi.json` and its own files beside it, whatever path a proxy puts before them."""
    router = APIRouter(include_in_schema=False)
    page = get_swagger_ui_html(
        openapi_url="openapi.json",
        title=title,
        swagger_js_url=f"docs/{SCRIPT}",
        swagger_css_url=f"docs/{STYLE}",
        swagger_favicon_url=f"docs/{ICON}",
        swagger_ui_parameters={"validatorUrl": None},
    ).body
    headers = {"Content-Security-Policy": _policy(bytes(page).decode()), "X-Content-Type-Options": "nosniff"}

    @router.get("/docs")
    async def docs() -> HTMLResponse:
        return HTMLResponse(bytes(page), headers=headers)

    @router.get("/docs/{name}")
    async def asset(name: str) -> FileResponse:
        if name not in (SCRIPT, STYLE, ICON):
            raise ApiError(404, f"There is no {name} of the documentation.", code="not_found")
        return FileResponse(ASSETS / name, headers={"X-Content-Type-Options": "nosniff"})

    return router


def _policy(page: str) -> str:
    """Of scripts, our own and the few lines in the page; Swagger UI styles its elements itself."""
    inline = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digests = " ".join(f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in inline)
    return (
        f"default-src 'none'; script-src 'self' {digests}; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
