"""`/docs`: the OpenAPI document to read and try out. Scripts and styles come from here: it needs no network."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import FileResponse, HTMLResponse

# fastapi-offline ships the files of Swagger UI; only those are used, and only what the page asks for is served.
_STATIC = Path(str(files("fastapi_offline"))) / "static"

docs_router = APIRouter(include_in_schema=False)


@docs_router.get("/docs")
async def docs(request: Request) -> HTMLResponse:
    """Return the page."""
    root = request.scope.get("root_path", "").rstrip("/")
    return get_swagger_ui_html(
        openapi_url=f"{root}{request.app.openapi_url}",
        title=f"{request.app.title} - API",
        swagger_js_url=f"{root}/docs/swagger-ui-bundle.js",
        swagger_css_url=f"{root}/docs/swagger-ui.css",
        swagger_favicon_url=f"{root}/docs/favicon.png",
    )


@docs_router.get("/docs/swagger-ui-bundle.js")
async def script() -> FileResponse:
    """Return Swagger UI."""
    return FileResponse(_STATIC / "swagger-ui-bundle.js", media_type="text/javascript")


@docs_router.get("/docs/swagger-ui.css")
async def style() -> FileResponse:
    """Return its style."""
    return FileResponse(_STATIC / "swagger-ui.css", media_type="text/css")


@docs_router.get("/docs/favicon.png")
async def icon() -> FileResponse:
    """Return its icon."""
    return FileResponse(_STATIC / "favicon.png", media_type="image/png")
