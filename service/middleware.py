"""Around every request: host check, request id, metrics, one log line, and an answer even where the code fails."""

from __future__ import annotations

import time
import uuid

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from peakcast.service.errors import ErrorCode, ServiceError
from peakcast.service.state import State

log = structlog.get_logger("peakcast.service")

_CLIENT_GONE = 499  # nginx's number for a client that closed first; counted, never sent


class Exchange:
    """One request and its reply, watched as they pass."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        self.scope = scope
        self.host = headers.get("host", "")
        self.request_id = uuid.uuid4().hex
        self.status: int | None = None
        self._receive = receive
        self._send = send
        self._body_is_open = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"

    async def receive(self) -> Message:
        """Pass the next message on, noting where the body ends."""
        message = await self._receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            self._body_is_open = False
        return message

    async def send(self, message: Message) -> None:
        """Pass the reply on, with the request's id."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(raw=message["headers"])
            headers["X-Request-ID"] = self.request_id
            if self._body_is_open:
                # Answered before the body was read: without this the peer would go on sending all of it.
                headers["Connection"] = "close"
        await self._send(message)

    @property
    def route(self) -> str:
        """Return the template of the matched route; one name for all that match none."""
        return getattr(self.scope.get("route"), "path", None) or "unmatched"


class Watch:
    """ASGI middleware; must be the outermost one."""

    def __init__(self, app: ASGIApp, state: State) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        exchange = Exchange(scope, receive, send)
        structlog.contextvars.bind_contextvars(request_id=exchange.request_id)
        try:
            await self._answer(exchange)
        finally:
            seconds = time.perf_counter() - started
            status = exchange.status or _CLIENT_GONE
            self._state.metrics.observe_request(exchange.route, scope["method"], status, seconds)
            log.info(
                "request",
                method=scope["method"],
                route=exchange.route,
                status=status,
                elapsed_ms=round(seconds * 1000, 2),
            )
            structlog.contextvars.unbind_contextvars("request_id")

    async def _answer(self, exchange: Exchange) -> None:
        try:
            if not self._state.settings.host_is_allowed(exchange.host):
                raise ServiceError(
                    ErrorCode.HOST_FORBIDDEN, "this service does not answer for that Host: see PEAKCAST_ALLOWED_HOSTS"
                )
            await self._app(exchange.scope, exchange.receive, exchange.send)
        except ClientDisconnect:
            log.info("client_gone")
        except ServiceError as error:
            await self._reply(exchange, error)
        except Exception:
            log.exception("request_failed")
            if exchange.status is not None:
                raise  # the reply has begun: only closing the connection tells the peer
            problem = f"the prediction failed unexpectedly; the log has it under request id {exchange.request_id}"
            await self._reply(exchange, ServiceError(ErrorCode.INTERNAL, problem))

    async def _reply(self, exchange: Exchange, error: ServiceError) -> None:
        self._state.metrics.errors.labels(error.code.value).inc()
        await error.response()(exchange.scope, exchange.receive, exchange.send)
