"""One enum of errors, one table of statuses, one JSON shape: `{"error": {"code", "message", ...}}`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import orjson
from pydantic import BaseModel, Field
from starlette.responses import Response


class ErrorCode(StrEnum):
    """What went wrong, for machines. Append only: clients switch on these."""

    UNAUTHORIZED = "unauthorized"
    HOST_FORBIDDEN = "host_forbidden"
    NOT_FOUND = "not_found"
    GRAPH_UNKNOWN = "graph_unknown"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    BODY_TIMEOUT = "body_timeout"
    BODY_TOO_LARGE = "body_too_large"
    BODY_TOO_COMPLEX = "body_too_complex"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    INVALID_ENCODING = "invalid_encoding"
    INVALID_JSON = "invalid_json"
    INVALID_REQUEST = "invalid_request"
    INVALID_GRAPH = "invalid_graph"
    BUSY = "busy"
    INTERNAL = "internal"
    NOT_READY = "not_ready"
    FORBIDDEN = "forbidden"
    KEY_CONFLICT = "key_conflict"
    QUOTA_EXCEEDED = "quota_exceeded"
    STORE_UNAVAILABLE = "store_unavailable"


STATUS: Final[Mapping[ErrorCode, int]] = {
    ErrorCode.UNAUTHORIZED: 401,
    ErrorCode.HOST_FORBIDDEN: 403,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.GRAPH_UNKNOWN: 404,
    ErrorCode.METHOD_NOT_ALLOWED: 405,
    ErrorCode.BODY_TIMEOUT: 408,
    ErrorCode.BODY_TOO_LARGE: 413,
    ErrorCode.BODY_TOO_COMPLEX: 413,
    ErrorCode.UNSUPPORTED_MEDIA_TYPE: 415,
    ErrorCode.INVALID_ENCODING: 422,
    ErrorCode.INVALID_JSON: 422,
    ErrorCode.INVALID_REQUEST: 422,
    ErrorCode.INVALID_GRAPH: 422,
    ErrorCode.BUSY: 429,
    ErrorCode.INTERNAL: 500,
    ErrorCode.NOT_READY: 503,
    ErrorCode.FORBIDDEN: 403,
    ErrorCode.KEY_CONFLICT: 409,
    ErrorCode.QUOTA_EXCEEDED: 429,
    ErrorCode.STORE_UNAVAILABLE: 503,
}


class ErrorDetail(BaseModel):
    """The inside of every error reply."""

    code: ErrorCode
    message: str = Field(description="what was wrong, what is allowed, what to do")
    path: str | None = Field(default=None, description="where in the body, where that is known")
    reason: str | None = Field(default=None, description="finer code of an invalid graph")


class ErrorReply(BaseModel):
    """Every error reply of every route."""

    error: ErrorDetail


class ServiceError(Exception):
    """An answer other than success.

    Args:
        code: one of `ErrorCode`; gives the status.
        message: what was wrong, what is allowed, what to do.
        path: where in the body (`graph.traces.eager.op`), if anywhere.
        reason: finer code, for `invalid_graph`.
        headers: further headers of the reply.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        path: str | None = None,
        reason: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.path = path
        self.reason = reason
        self.headers = dict(headers or {})

    @property
    def status(self) -> int:
        """Return the HTTP status of this error."""
        return STATUS[self.code]

    def body(self) -> bytes:
        """Return the JSON body."""
        detail: dict[str, Any] = {"code": self.code.value, "message": self.message}
        if self.path is not None:
            detail["path"] = self.path
        if self.reason is not None:
            detail["reason"] = self.reason
        # Messages may quote what was sent; lone surrogates cannot be encoded and must not break the reply.
        detail = {key: value.encode("utf-8", "replace").decode() for key, value in detail.items()}
        return orjson.dumps({"error": detail})

    def response(self) -> Response:
        """Return the reply."""
        headers = dict(self.headers)
        if self.code is ErrorCode.UNAUTHORIZED:
            headers["WWW-Authenticate"] = 'Bearer realm="peakcast"'
        return Response(self.body(), status_code=self.status, headers=headers, media_type="application/json")


def json_kind(value: object) -> str:
    """Return what a parsed JSON value is called in JSON."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, str):
        return "a string"
    if isinstance(value, int | float):
        return "a number"
    return "an object" if isinstance(value, dict) else "a list"
