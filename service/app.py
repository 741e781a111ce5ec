"""Builds the app: state, routes, one error shape, OpenAPI with examples."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import anyio
import anyio.to_thread
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from peakcast.service.docs_page import docs_router
from peakcast.service.errors import ErrorCode, ServiceError
from peakcast.service.middleware import Watch
from peakcast.service.openapi import document
from peakcast.service.routes import router
from peakcast.service.settings import Settings
from peakcast.service.state import State


def create_app(settings: Settings | None = None, *, on_load_failure: Callable[[], None] | None = None) -> FastAPI:
    """Build the service. The model loads in the background once the app starts: see `/health/ready`."""
    state = State(settings or Settings(), on_load_failure=on_load_failure)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        # A thread that the process does not wait for when it ends: loops are compiled in it, which takes a minute.
        threading.Thread(target=state.load, name="peakcast-load", daemon=True).start()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, state.link.open)
            yield
            tasks.cancel_scope.cancel()
        state.link.close()

    app = FastAPI(
        title="peakcast", version=_version(), lifespan=lifespan, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    app.state.peakcast = state
    app.include_router(router)
    app.include_router(docs_router)
    app.add_middleware(Watch, state=state)
    for kind in (ServiceError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, _as_reply)

    def openapi() -> dict[str, Any]:
        return document(app, state.example_reply)

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend the document
    return app


async def _as_reply(request: Request, error: Exception) -> Any:
    answer = _as_service_error(request, error)
    request.app.state.peakcast.metrics.errors.labels(answer.code.value).inc()
    return answer.response()


def _as_service_error(request: Request, error: Exception) -> ServiceError:
    if isinstance(error, ServiceError):
        return error
    if isinstance(error, HTTPException):
        if error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "")
            problem = f"{request.method} is not allowed on {request.url.path}: use {allowed}"
            return ServiceError(ErrorCode.METHOD_NOT_ALLOWED, problem, headers=error.headers)
        there = ", ".join(sorted(route.path for route in router.routes if isinstance(route, APIRoute)))
        return ServiceError(ErrorCode.NOT_FOUND, f"nothing at {request.url.path}; there are: {there}, /docs")
    return ServiceError(ErrorCode.INVALID_REQUEST, str(error))


def _version() -> str:
    try:
        return version("peakcast")
    except PackageNotFoundError:  # run from the sources, not installed
        return "0"
