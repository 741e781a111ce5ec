"""The endpoints: `POST /predict`, `GET /health/live`, `GET /health/ready`, `GET /metrics`."""

from __future__ import annotations

import hmac
from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Depends, Request, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel

from peakcast.models.prediction import Prediction
from peakcast.service.answers import Answers
from peakcast.service.body import Body
from peakcast.service.errors import ErrorCode, ErrorReply, ServiceError
from peakcast.service.state import State

# A question by graph_id is a few hundred bytes: parsed in the event loop, it needs no thread.
_INLINE_BYTES = 4096

router = APIRouter()
_bearer = HTTPBearer(auto_error=False, description="the token of PEAKCAST_TOKEN, where one is set")


def state_of(request: Request) -> State:
    """Return the state of the app that a request came to."""
    state: State = request.app.state.peakcast
    return state


def check_token(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> None:
    """Refuse requests without the token, where one is set. Takes the same time whatever was sent."""
    token = state_of(request).settings.token
    if token is None:
        return
    given = credentials.credentials if credentials is not None else ""
    if not hmac.compare_digest(given.encode(), token.get_secret_value().encode()):
        raise ServiceError(ErrorCode.UNAUTHORIZED, "send the token: `Authorization: Bearer <token>`")


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": ErrorReply, "description": "error"} for status in statuses}


class Health(BaseModel):
    """A health reply."""

    status: str
    model_version: str | None = None


@router.post(
    "/predict",
    dependencies=[Depends(check_token)],
    response_model=Prediction,
    responses=_errors(401, 403, 404, 408, 413, 415, 422, 429, 500, 503),
    summary="Predict the peak memory of a training step or inference call",
)
async def predict(request: Request) -> Response:
    """Predict from `graph`, or from the `graph_id` of a graph sent before. The body may be gzipped."""
    state = state_of(request)
    answers = state.answers
    with state.admitted():
        body = Body(request.headers, state.settings, state.pending_bytes)
        try:
            content = await body.read(request.stream())
            state.metrics.body_bytes.observe(len(content))
            reply = await _reply(answers, content, state)
        finally:
            body.close()
    return Response(reply, media_type="application/json")


async def _reply(answers: Answers, content: bytes, state: State) -> bytes:
    if len(content) > _INLINE_BYTES:
        return await anyio.to_thread.run_sync(lambda: answers.compute(answers.parse(content)), limiter=state.workers)
    asked = answers.parse(content)
    known = answers.known(asked)
    if known is not None:
        return known
    return await anyio.to_thread.run_sync(answers.compute, asked, limiter=state.workers)


@router.get("/health/live", responses=_errors(403), summary="Whether the process runs")
async def live() -> Health:
    """Answer as soon as the process listens."""
    return Health(status="live")


@router.get("/health/ready", responses=_errors(403, 503), summary="Whether predictions are answered")
async def ready(request: Request) -> Health:
    """Answer 200 once the artefact was verified and a warm-up prediction ran, 503 before."""
    state = state_of(request)
    assert state.answers is not None
    return Health(status="ready", model_version=state.model_version)


@router.get(
    "/metrics",
    dependencies=[Depends(check_token)],
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}}, **_errors(401, 403)},
    summary="Prometheus metrics",
)
async def metrics(request: Request) -> Response:
    """Return every metric in the Prometheus text format."""
    return Response(state_of(request).metrics.exposition(), media_type=CONTENT_TYPE_LATEST)
