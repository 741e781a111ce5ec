"""The endpoints: `POST /predict`, `POST /peaks`, `GET /health/live`, `GET /health/ready`, `GET /metrics`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Depends, Request, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel

from peakcast.models.prediction import Prediction
from peakcast.service.answers import Answers
from peakcast.service.auth import Scope
from peakcast.service.body import Body
from peakcast.service.errors import ErrorReply
from peakcast.service.peaks_query import PeakKept
from peakcast.service.state import State
from peakcast.service.store.link import Status

# A question by graph_id is a few hundred bytes: parsed in the event loop, it needs no thread.
_INLINE_BYTES = 4096

router = APIRouter()
_bearer = HTTPBearer(auto_error=False, description="a token of PEAKCAST_TOKEN or PEAKCAST_TOKENS, where some are set")


def state_of(request: Request) -> State:
    """Return the state of the app that a request came to."""
    state: State = request.app.state.peakcast
    return state


def name_for(scope: Scope) -> Callable[..., Awaitable[str]]:
    """Return a dependency that gives the name of the caller's token, and refuses who may not do this."""

    # async: a function that compares a few strings needs no thread.
    async def name_of(
        request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
    ) -> str:
        given = credentials.credentials if credentials is not None else ""
        return state_of(request).tokens.name_of(given, scope)

    return name_of


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": ErrorReply, "description": "error"} for status in statuses}


class Health(BaseModel):
    """A health reply."""

    status: str
    model_version: str | None = None
    store: Status | None = None


@router.post(
    "/predict",
    dependencies=[Depends(name_for("predict"))],
    response_model=Prediction,
    responses=_errors(401, 403, 404, 408, 413, 415, 422, 429, 500, 503),
    summary="Predict the peak memory of a training step or inference call",
)
async def predict(request: Request) -> Response:
    """Predict from `graph`, or from the `graph_id` of a graph sent before. The body may be gzipped."""
    state = state_of(request)
    answers = state.answers
    with state.predictions_admitted.place():
        body = Body(request.headers, state.settings, state.pending_bytes)
        try:
            content = await body.read(request.stream())
            state.metrics.body_bytes.observe(len(content))
            reply = await _reply(answers, content, state)
        finally:
            body.close()
            state.metrics.pending_bytes.set(state.pending_bytes.held_bytes)
    return Response(reply, media_type="application/json")


async def _reply(answers: Answers, content: bytes, state: State) -> bytes:
    if len(content) > _INLINE_BYTES:
        return await anyio.to_thread.run_sync(lambda: answers.compute(answers.parse(content)), limiter=state.workers)
    asked = answers.parse(content)
    known = answers.known(asked)
    if known is not None:
        return known
    return await anyio.to_thread.run_sync(answers.compute, asked, limiter=state.workers)


@router.post(
    "/peaks",
    response_model=PeakKept,
    responses=_errors(401, 403, 404, 408, 409, 413, 415, 422, 429, 500, 503),
    summary="Report the peak memory that a step was measured to take",
)
async def peaks(request: Request, reporter: Annotated[str, Depends(name_for("peaks"))]) -> Response:
    """Keep a measured peak of `graph`, or of the `graph_id` of a graph sent before. Answers once it is on the disk."""
    state = state_of(request)
    with state.peaks_admitted.place():
        body = Body(request.headers, state.settings, state.pending_bytes)
        try:
            content = await body.read(request.stream())
            reply = await anyio.to_thread.run_sync(state.peaks.take, content, reporter, limiter=state.peak_workers)
        finally:
            body.close()
            state.metrics.pending_bytes.set(state.pending_bytes.held_bytes)
    return Response(reply, media_type="application/json")


@router.get("/health/live", responses=_errors(403), summary="Whether the process runs")
async def live() -> Health:
    """Answer as soon as the process listens."""
    return Health(status="live")


@router.get("/health/ready", responses=_errors(403, 503), summary="Whether predictions are answered")
async def ready(request: Request) -> Health:
    """Answer 200 once the artefact was verified and a warm-up prediction ran, 503 before.

    `store` says how the store was when it was last used; predictions do without it.
    """
    state = state_of(request)
    assert state.answers is not None
    return Health(status="ready", model_version=state.model_version, store=state.link.status)


@router.get(
    "/metrics",
    dependencies=[Depends(name_for("metrics"))],
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}}, **_errors(401, 403)},
    summary="Prometheus metrics",
)
async def metrics(request: Request) -> Response:
    """Return every metric in the Prometheus text format."""
    return Response(state_of(request).metrics.exposition(), media_type=CONTENT_TYPE_LATEST)
