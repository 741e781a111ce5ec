"""Posts to a peakcast service over HTTP: by graph_id first, with retries inside one total time limit."""

from __future__ import annotations

import datetime as dt
import gzip
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

import httpx
import orjson
import stamina
from pydantic import ValidationError
from stamina.instrumentation import RetryDetails, RetryHook, get_on_retry_hooks, set_on_retry_hooks

from peakcast.client.errors import AskError, ServerError, ServerUnreachableError
from peakcast.client.facts import with_lines
from peakcast.featurizer.spec import GraphSpec
from peakcast.models.prediction import Prediction

# Answers that say "later": too many requests, and a server that is starting or shutting down.
_LATER: Final = frozenset({429, 502, 503, 504})
# Level 6 packs GPT-2 small's 0.3 MB in 10 ms; 9 takes twice that for 2 %.
_GZIP_LEVEL: Final = 6
_MAX_REPLY_BYTES: Final = 16 << 20
# A busy server frees a place within one prediction, some 50 ms.
_FIRST_WAIT_SECONDS: Final = 0.1
_LONGEST_WAIT_SECONDS: Final = 2.0


class _LaterError(Exception):
    """Carry an answer that is worth asking again after `wait_seconds`."""

    def __init__(self, error: AskError, wait_seconds: float | None) -> None:
        super().__init__(str(error))
        self.error = error
        self.wait_seconds = wait_seconds


def _report_others(hook: RetryHook) -> RetryHook:
    def report(details: RetryDetails) -> AbstractContextManager[None] | None:
        return None if isinstance(details.caused_by, _LaterError) else hook(details)

    return report


# stamina has one list of hooks for the process, by default one that prints. A library's own retries are no news to the
# program that uses it; what that program retries itself is reported as before.
set_on_retry_hooks([_report_others(hook) for hook in get_on_retry_hooks()])


class Poster:
    """Post about one graph to one server; `timeout_seconds` bounds everything together: connecting, retries, reading.

    Args:
        url: where to post, as `endpoint_url` gives it.
        token: bearer token, where the server asks for one.
        transport: how httpx connects, for callers with sockets or certificates of their own.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout_seconds: float = 30.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.url = url
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
        self._timeout_seconds = timeout_seconds
        self._deadline = time.monotonic() + timeout_seconds
        self._transport = transport
        self._tries = 0

    def post(self, fields: dict[str, Any], by_id: dict[str, Any], graph_json: Callable[[], bytes]) -> bytes:
        """Post `fields` with the graph's id, and with the graph where the server does not know that. Returns the reply.

        Args:
            fields: what to send either way.
            by_id: what to send beside it in place of the graph.
            graph_json: gives the graph without its source lines: the server has no use for them.

        Raises:
            ServerError: if the server refuses.
            ServerUnreachableError: if no answer came in time.
            AskError: if the answer is too long to be one.
        """
        with httpx.Client(headers=self._headers, transport=self._transport) as client:
            try:
                return self._post(client, orjson.dumps({**by_id, **fields}))
            except ServerError as error:
                if error.code != "graph_unknown":
                    raise
            body = b'{"graph":' + graph_json() + b"," + orjson.dumps(fields)[1:]
            packed = gzip.compress(body, _GZIP_LEVEL, mtime=0)
            return self._post(client, packed, {"Content-Encoding": "gzip"})

    def _post(self, client: httpx.Client, body: bytes, headers: dict[str, str] | None = None) -> bytes:
        self._tries = 0
        try:
            for attempt in stamina.retry_context(on=self._when_again, attempts=None, timeout=None):
                with attempt:
                    try:
                        return self._post_once(client, body, headers or {})
                    except httpx.UnsupportedProtocol as error:
                        raise self._unreachable(error) from error
                    except httpx.TransportError as error:
                        unreachable = self._unreachable(error)
                        unreachable.__cause__ = error
                        raise _LaterError(unreachable, None) from error
        except _LaterError as last:
            raise last.error from last.error.__cause__
        raise AssertionError("retry_context ends by returning or raising")  # pragma: no cover

    def _unreachable(self, error: httpx.TransportError) -> ServerUnreachableError:
        problem = f"no answer from {self.url} within {self._timeout_seconds:g} s: {_what(error)}"
        return ServerUnreachableError(problem)

    def _when_again(self, error: Exception) -> bool | dt.timedelta:
        """Say when to ask again: at the time the server named, else by doubling; not at all past the deadline."""
        if not isinstance(error, _LaterError):
            return False
        wait_seconds = min(_FIRST_WAIT_SECONDS * 2**self._tries, _LONGEST_WAIT_SECONDS) * random.uniform(0.5, 1.0)
        if error.wait_seconds is not None:
            wait_seconds = error.wait_seconds
        self._tries += 1
        return dt.timedelta(seconds=wait_seconds) if wait_seconds < self._left_seconds() else False

    def _post_once(self, client: httpx.Client, body: bytes, headers: dict[str, str]) -> bytes:
        with client.stream("POST", self.url, content=body, headers=headers, timeout=self._left_seconds()) as reply:
            content = b""
            for chunk in reply.iter_bytes():
                content += chunk
                if time.monotonic() > self._deadline:
                    raise httpx.ReadTimeout("the answer takes too long to arrive")
                if len(content) > _MAX_REPLY_BYTES:
                    raise AskError(
                        f"{self.url} answered with more than {_MAX_REPLY_BYTES:,} bytes: no peakcast service"
                    )
        if reply.status_code == httpx.codes.OK:
            return content
        error = _server_error(reply.status_code, content)
        if reply.status_code in _LATER:
            raise _LaterError(error, _retry_after_seconds(reply.headers))
        raise error

    def _left_seconds(self) -> float:
        # Never zero: httpx and stamina take that for "at once" and "for ever".
        return max(self._deadline - time.monotonic(), 0.001)


class Asker(Poster):
    """One question to one server; arguments as for Poster, `server` is a base URL such as `http://peakcast:8400`."""

    def __init__(
        self,
        server: str,
        *,
        token: str | None = None,
        timeout_seconds: float = 30.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        super().__init__(predict_url(server), token=token, timeout_seconds=timeout_seconds, transport=transport)

    def ask(self, spec: GraphSpec, question: dict[str, Any]) -> Prediction:
        """Return the server's prediction. `question` holds run, device, plans and risk.

        Raises:
            ServerError: if the server refuses.
            ServerUnreachableError: if no answer came in time.
            AskError: if what came is no prediction.
        """
        by_id = {"graph_id": spec.graph_id, "captured_with": dict(spec.captured_with)}
        content = self.post(question, by_id, lambda: spec.redacted().to_json())
        try:
            prediction = Prediction.model_validate_json(content)
        except ValidationError as error:
            raise AskError(f"{self.url} did not answer with a prediction: {error}") from None
        return with_lines(prediction, spec)


def predict_url(server: str) -> str:
    """Return where a server answers questions; ValueError where `server` is no HTTP URL."""
    return endpoint_url(server, "/predict")


def endpoint_url(server: str, path: str) -> str:
    """Return the URL of an endpoint of a server; ValueError where `server` is no HTTP URL."""
    try:
        url = httpx.URL(server)
    except httpx.InvalidURL as error:
        raise ValueError(f"server is {server!r}: {error}; give http://host:port") from None
    if url.scheme not in {"http", "https"} or not url.host:
        raise ValueError(f"server is {server!r}: give http://host:port or https://host")
    return server.rstrip("/") + path


def _retry_after_seconds(headers: httpx.Headers) -> float | None:
    value = headers.get("retry-after", "")
    # The date form is legal and never sent by us: then the usual back-off applies.
    return float(value) if value.isdecimal() else None


def _server_error(status: int, content: bytes) -> ServerError:
    try:
        detail = orjson.loads(content)["error"]
        return ServerError(status, str(detail["code"]), str(detail["message"]), detail.get("path"))
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        text = content[:200].decode("utf-8", "replace").strip() or "no message"
        return ServerError(status, f"http_{status}", text)


def _what(error: httpx.TransportError) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
