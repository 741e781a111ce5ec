"""Reading a body under limits, piece by piece."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator
from itertools import pairwise

import anyio
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from peakcast.service.body import Body, PendingBytes, parse_json
from peakcast.service.errors import ErrorCode, ServiceError
from peakcast.service.settings import Settings

JSON = {"content-type": "application/json"}
GZIP = {**JSON, "content-encoding": "gzip"}
SMALL = Settings(max_body_bytes=2000, max_compressed_bytes=1500, max_json_depth=8, max_json_containers=100)


def read(pieces: list[bytes], headers: dict[str, str], pending: PendingBytes | None = None) -> bytes:
    """Read a body that arrives in these pieces."""

    async def arriving() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    async def run() -> bytes:
        body = Body(headers, SMALL, pending or PendingBytes(10_000, 1))
        try:
            return await body.read(arriving())
        finally:
            body.close()

    return anyio.run(run)


def cut(content: bytes, at: list[int]) -> list[bytes]:
    """Cut a text at these places."""
    edges = [0, *sorted(place % (len(content) + 1) for place in at), len(content)]
    return [content[start:end] for start, end in pairwise(edges)]


@given(st.binary(max_size=1500), st.lists(st.integers(0, 3000), max_size=8), st.integers(0, 9))
def test_a_body_is_the_same_however_it_is_cut_and_packed(content: bytes, at: list[int], level: int) -> None:
    """Plain or gzipped, in any pieces, the same bytes come out."""
    assert read(cut(content, at), JSON) == content
    packed = gzip.compress(content, level)
    if len(packed) <= SMALL.max_compressed_bytes:
        assert read(cut(packed, at), GZIP) == content


@pytest.mark.parametrize("headers", [JSON, GZIP], ids=["plain", "gzip"])
def test_the_limit_is_the_last_size_that_passes(headers: dict[str, str]) -> None:
    """2,000 bytes pass, one more does not, packed or not."""
    pack = gzip.compress if headers is GZIP else bytes
    assert len(read([pack(b" " * 2000)], headers)) == 2000
    with pytest.raises(ServiceError) as raised:
        read([pack(b" " * 2001)], headers)
    assert raised.value.code is ErrorCode.BODY_TOO_LARGE


def test_bytes_are_given_back_whatever_happens() -> None:
    """After an answer and after a refusal alike the budget is whole again; beyond it callers wait."""
    pending = PendingBytes(1000, 7)
    assert read([b"x" * 1000], JSON, pending) == b"x" * 1000
    with pytest.raises(ServiceError) as raised:
        read([b"x" * 600, b"x" * 600], JSON, pending)
    assert raised.value.code is ErrorCode.BUSY
    assert raised.value.headers["Retry-After"] == "7"
    assert pending.held_bytes == 0


@pytest.mark.parametrize("has_escapes", [True, False])
@given(
    value=st.recursive(
        st.text() | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
@example(value=[[[[[[["seven lists and the document are the eight that are allowed"]]]]]]])
@example(value=[[[[[[[["one more"]]]]]]]])
def test_depth_is_counted_outside_strings_only(value: object, *, has_escapes: bool) -> None:
    """A document passes exactly if its own nesting is within the limit, whatever brackets its strings hold."""

    def depth(part: object) -> int:
        inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else None
        return 0 if inner is None else 1 + max(map(depth, inner), default=0)

    document: dict[str, object] = {"value": value, "brackets": "[" * 50, "keys": {"[{[{[{": 1}}
    if has_escapes:
        document["quote"] = '\\"[[[[[[[[[['
    try:
        content = orjson.dumps(document)
    except TypeError:  # integers beyond 64 bits and lone surrogates are no JSON that orjson writes
        return
    if content.count(b"[") + content.count(b"{") > SMALL.max_json_containers:
        return
    if depth(document) <= SMALL.max_json_depth:
        assert parse_json(content, SMALL) == document
    else:
        with pytest.raises(ServiceError, match="nests deeper"):
            parse_json(content, SMALL)


@given(st.binary(max_size=400))
def test_any_bytes_are_an_object_or_a_clear_refusal(content: bytes) -> None:
    """Whatever the bytes, parsing ends in an object or in one of two codes."""
    try:
        assert isinstance(parse_json(content, SMALL), dict)
    except ServiceError as error:
        assert error.code in {ErrorCode.INVALID_JSON, ErrorCode.BODY_TOO_COMPLEX}  # noqa: PT017 - both ends are right
