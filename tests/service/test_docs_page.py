"""`/docs` works without a network: everything the page loads is served by the service."""

from __future__ import annotations

import re

import httpx
import pytest


def test_the_page_loads_only_from_here(http: httpx.Client) -> None:
    """Every script, style, icon and document the page names is a path of this service, and is there."""
    page = http.get("/docs")
    assert page.status_code == 200
    assert "://" not in page.text
    named = re.findall(r"""(?:src|href)="([^"]+)"|url: '([^']+)'""", page.text)
    paths = {first or second for first, second in named}
    assert paths == {"/docs/swagger-ui-bundle.js", "/docs/swagger-ui.css", "/docs/favicon.png", "/openapi.json"}
    for path in paths:
        assert http.get(path).status_code == 200, path


@pytest.mark.parametrize(
    ("path", "kind", "holds"),
    [
        ("/docs/swagger-ui-bundle.js", "text/javascript; charset=utf-8", "SwaggerUIBundle"),
        ("/docs/swagger-ui.css", "text/css; charset=utf-8", ".swagger-ui"),
    ],
)
def test_the_files_are_swagger_ui(http: httpx.Client, path: str, kind: str, holds: str) -> None:
    """Script and style have the media types a browser insists on."""
    reply = http.get(path)
    assert reply.headers["content-type"] == kind
    assert holds in reply.text


def test_no_other_file_is_served(http: httpx.Client) -> None:
    """Only what the page needs: no other file of the package, none outside it."""
    for path in ("/docs/redoc.standalone.js", "/docs/..%2fcore.py", "/docs/"):
        assert http.get(path).status_code == 404, path
