"""Reads a request body under limits: size as it arrives, size as it inflates, nesting, time. Nothing is trusted."""

from __future__ import annotations

import re
import zlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import anyio
import numpy as np
import orjson

from peakcast.service.errors import ErrorCode, ServiceError, json_kind
from peakcast.service.settings import MIB, Settings

# One call of the decompressor puts out no more than this, so that the event loop gets its turn between calls.
_PIECE_BYTES = 256 * 1024

# Strings are skipped whole, so that brackets inside them do not count. Every quote starts a match, if need be to the
# end of the body: a quote that failed to match would be tried again from each later one, in quadratic time.
_BRACKETS = re.compile(rb'"(?:[^"\\]++|\\.?+)*+(?:"|\Z)|[\[\]{}]', re.DOTALL)

# The same counted at once where no quote is escaped, as in almost every graph: the bytes that count, what each does.
_OTHERS = bytes(set(range(256)) - set(b'"[]{}'))
_STEPS = np.zeros(256, np.int32)
_STEPS[list(b"[{")], _STEPS[list(b"]}")] = 1, -1
_MOST_COUNTED = 1 << 20  # bytes that count: more take more memory than the body

# Block-wise compressors write a member for each 64 KiB; more than these is an attack on the time of starting one.
_MAX_GZIP_MEMBERS = 1024


class PendingBytes:
    """Counts the bytes of all bodies held at once, and refuses what would exceed the budget."""

    def __init__(self, limit_bytes: int, retry_after_seconds: int) -> None:
        self._limit_bytes = limit_bytes
        self._retry_after_seconds = retry_after_seconds
        self.held_bytes = 0

    def take(self, size_bytes: int) -> None:
        """Count further bytes.

        Raises:
            ServiceError: BUSY, if they would exceed the budget.
        """
        if self.held_bytes + size_bytes > self._limit_bytes:
            raise ServiceError(
                ErrorCode.BUSY,
                f"the bodies under way already hold {self.held_bytes:,} of {self._limit_bytes:,} bytes: "
                f"ask again in {self._retry_after_seconds} s",
                headers={"Retry-After": str(self._retry_after_seconds)},
            )
        self.held_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Stop counting bytes taken before."""
        self.held_bytes -= size_bytes


class Body:
    """The body of one request while it is read; `close` gives its bytes back to the budget."""

    def __init__(self, headers: Mapping[str, str], settings: Settings, pending: PendingBytes) -> None:
        self._settings = settings
        self._pending = pending
        self._content = bytearray()
        self._sent_bytes = 0
        self._is_gzip = _is_gzip(headers)
        self._members = 1
        self._inflate = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        self._sent_limit_bytes = int(settings.max_compressed_bytes if self._is_gzip else settings.max_body_bytes)
        declared = headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > self._sent_limit_bytes:
            raise self._too_large(f"Content-Length is {int(declared):,} bytes")

    async def read(self, chunks: AsyncIterator[bytes]) -> bytes:
        """Return the decompressed body.

        Raises:
            ServiceError: BODY_TOO_LARGE, BODY_TIMEOUT, BUSY or INVALID_ENCODING, as soon as that is known.
        """
        try:
            with anyio.fail_after(self._settings.body_timeout_seconds):
                async for chunk in chunks:
                    await self._add(chunk)
        except TimeoutError:
            raise ServiceError(
                ErrorCode.BODY_TIMEOUT,
                f"the body did not arrive within {self._settings.body_timeout_seconds:g} s "
                f"({self._sent_bytes:,} bytes came): send it gzipped, or ask by graph_id",
            ) from None
        if self._is_gzip and self._sent_bytes and not self._inflate.eof:
            raise ServiceError(ErrorCode.INVALID_ENCODING, "the gzip body ends early: send it whole")
        return bytes(self._content)

    def close(self) -> None:
        """Give the bytes back to the budget."""
        self._pending.give_back(len(self._content))
        self._content = bytearray()

    async def _add(self, chunk: bytes) -> None:
        self._sent_bytes += len(chunk)
        if self._sent_bytes > self._sent_limit_bytes:
            raise self._too_large(f"more than {self._sent_limit_bytes:,} bytes were sent")
        if not self._is_gzip:
            self._keep(chunk)
            return
        has_more = False  # Output can be left inside the decompressor when its input is used up.
        while chunk or has_more:
            if self._inflate.eof:
                self._start_member()
            try:
                piece = self._inflate.decompress(chunk, _PIECE_BYTES)
            except zlib.error as error:
                raise ServiceError(
                    ErrorCode.INVALID_ENCODING, f"Content-Encoding is gzip, but the body is not valid gzip: {error}"
                ) from None
            self._keep(piece)
            self._check_ratio()
            at_end = self._inflate.eof
            has_more = len(piece) == _PIECE_BYTES and not at_end
            chunk = self._inflate.unused_data if at_end else self._inflate.unconsumed_tail
            await anyio.lowlevel.checkpoint()

    def _start_member(self) -> None:
        self._members += 1
        if self._members > _MAX_GZIP_MEMBERS:
            raise ServiceError(
                ErrorCode.INVALID_ENCODING, f"the gzip body has more than {_MAX_GZIP_MEMBERS} members: send one"
            )
        self._inflate = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)

    def _keep(self, piece: bytes) -> None:
        if len(self._content) + len(piece) > self._settings.max_body_bytes:
            raise self._too_large("the body inflates beyond the limit" if self._is_gzip else "the body goes on")
        self._pending.take(len(piece))
        self._content += piece

    def _check_ratio(self) -> None:
        ratio = len(self._content) / self._sent_bytes
        if len(self._content) > MIB and ratio > self._settings.max_compression_ratio:
            raise self._too_large(
                f"the gzip body inflates {ratio:.0f} times, {self._settings.max_compression_ratio} are allowed"
            )

    def _too_large(self, what: str) -> ServiceError:
        return ServiceError(
            ErrorCode.BODY_TOO_LARGE,
            f"{what}: a body may have {int(self._settings.max_body_bytes):,} bytes, "
            f"gzipped {int(self._settings.max_compressed_bytes):,}. Leave out `lines`, send fewer plans, or raise "
            "PEAKCAST_MAX_BODY_BYTES / PEAKCAST_MAX_COMPRESSED_BYTES",
        )


def _is_gzip(headers: Mapping[str, str]) -> bool:
    media_type = headers.get("content-type", "application/json").split(";")[0].strip().lower()
    # Asking for JSON by name makes browsers ask before they let a foreign page post here.
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise ServiceError(
            ErrorCode.UNSUPPORTED_MEDIA_TYPE,
            f"Content-Type is {media_type!r}: send application/json (curl: -H 'Content-Type: application/json')",
        )
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding not in {"identity", "gzip", "x-gzip", ""}:
        raise ServiceError(
            ErrorCode.UNSUPPORTED_MEDIA_TYPE, f"Content-Encoding is {encoding!r}: gzip and identity are understood"
        )
    return encoding in {"gzip", "x-gzip"}


def parse_json(content: bytes, settings: Settings) -> dict[str, Any]:
    """Parse a body that must be one JSON object.

    Raises:
        ServiceError: BODY_TOO_COMPLEX for too many lists and objects; INVALID_JSON for what is not JSON (NaN and
            Infinity are not), nested too deep, or not an object.
    """
    containers = content.count(b"[") + content.count(b"{")
    if containers > settings.max_json_containers:
        raise ServiceError(
            ErrorCode.BODY_TOO_COMPLEX,
            f"the body has {containers:,} lists and objects, {settings.max_json_containers:,} are allowed",
        )
    if containers > settings.max_json_depth:
        _check_depth(content, settings.max_json_depth)
    try:
        parsed = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise ServiceError(ErrorCode.INVALID_JSON, f"the body is not valid JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise ServiceError(ErrorCode.INVALID_JSON, f"the body must be a JSON object, this is {json_kind(parsed)}")
    return parsed


def _check_depth(content: bytes, max_depth: int) -> None:
    if b"\\" not in content:
        counted = content.translate(None, _OTHERS)
        if len(counted) <= _MOST_COUNTED and _depth(counted) <= max_depth:
            return
    depth = 0
    for match in _BRACKETS.finditer(content):
        first = content[match.start()]
        if first in b"[{":
            depth += 1
            if depth > max_depth:
                raise ServiceError(
                    ErrorCode.INVALID_JSON,
                    f"the body nests deeper than {max_depth} at byte {match.start():,}, {max_depth} are allowed",
                )
        elif first in b"]}":
            depth -= 1


def _depth(counted: bytes) -> int:
    """Return the deepest nesting of a text of which only quotes and brackets are left, no quote of them escaped."""
    marks = np.frombuffer(counted, np.uint8)
    is_outside = np.cumsum(marks == ord('"'), dtype=np.int32) % 2 == 0
    return int(np.cumsum(_STEPS[marks] * is_outside, dtype=np.int32).max(initial=0))
