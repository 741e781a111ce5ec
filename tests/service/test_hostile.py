"""Attacks on a running service. Each is refused clearly; memory and the other callers stay well."""

from __future__ import annotations

import gzip
import socket
import zlib
from collections.abc import Iterator
from typing import Any

import httpx
import orjson
import pytest
from serving import Served

from peakcast.service.examples import example_request

MIB = 1 << 20
JSON = {"Content-Type": "application/json"}
GZIP = {**JSON, "Content-Encoding": "gzip"}


@pytest.fixture(autouse=True)
def still_well(service: Served) -> Iterator[None]:
    """After each attack the service answers an honest request, and never grew beyond its budget."""
    service.wait_until_warm()  # compiled loops take memory of their own
    before = service.resident_bytes()
    yield
    reply = httpx.post(f"{service.url}/predict", json=example_request(), timeout=60)
    assert reply.status_code == 200, reply.text
    # The budget of all bodies is 256 MiB; no attack here may hold more than the one body it is allowed.
    assert service.resident_bytes() - before < 200 * MIB
    assert httpx.get(f"{service.url}/health/ready").status_code == 200


def post(service: Served, content: bytes | Iterator[bytes], headers: dict[str, str] = JSON) -> httpx.Response:
    """Post a body to /predict."""
    return httpx.post(f"{service.url}/predict", content=content, headers=headers, timeout=60)


def code_of(reply: httpx.Response) -> str:
    """Return the code of an error reply."""
    return str(reply.json()["error"]["code"])


class Counted:
    """A body of spaces, which counts how much of it was taken."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.taken_bytes = 0

    def __iter__(self) -> Iterator[bytes]:
        piece = b" " * 65536
        while self.taken_bytes < self.size_bytes:
            self.taken_bytes += len(piece)
            yield piece


def test_a_body_of_200_mb_is_cut_off_early_without_being_held(service: Served) -> None:
    """A stream of 200 MB, its length not announced, gets 413 long before its end and leaves no memory behind."""
    before = service.resident_bytes()
    body = Counted(200 * 1000 * 1000)
    reply = post(service, iter(body))
    assert reply.status_code == 413
    assert code_of(reply) == "body_too_large"
    assert reply.headers["connection"] == "close"
    # The limit is 40 MiB; what lay in the sockets' buffers between comes on top.
    assert body.taken_bytes < 80 * MIB
    assert service.resident_bytes() - before < 100 * MIB


def test_an_announced_200_mb_is_refused_before_any_of_it_is_read(service: Served) -> None:
    """A Content-Length beyond the limit is answered from the headers alone."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=30) as connection:
        connection.sendall(
            b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 200000000\r\n\r\n"
        )
        assert connection.recv(4096).startswith(b"HTTP/1.1 413")


def test_a_length_that_lies_is_answered_or_dropped(service: Served) -> None:
    """More announced than sent: the connection is given up. Less announced: what came is judged as it is."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=30) as connection:
        connection.sendall(
            b'POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"graph'
        )
    with socket.create_connection(("127.0.0.1", service.port), timeout=30) as connection:
        connection.sendall(
            b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 7\r\n"
            b'Connection: close\r\n\r\n{"graph": {}}'
        )
        assert connection.recv(4096).startswith(b"HTTP/1.1 422")
    with socket.create_connection(("127.0.0.1", service.port), timeout=30) as connection:
        connection.sendall(
            b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        )
        assert not connection.recv(4096).startswith(b"HTTP/1.1 200")


def test_a_gzip_bomb_is_stopped_by_its_ratio_and_by_its_size(service: Served) -> None:
    """10 GB in 10 MB, and one that keeps under the ratio but not under the size, inflate no further than allowed."""
    piece = b"\0" * MIB
    packer = zlib.compressobj(9, wbits=31)
    bomb = b"".join(packer.compress(piece) for _ in range(2000)) + packer.flush()
    reply = post(service, bomb, GZIP)
    assert code_of(reply) == "body_too_large"
    assert "inflates" in reply.json()["error"]["message"]
    packer = zlib.compressobj(9, wbits=31)
    # One byte in a hundred at random: about 30 times smaller packed, 60 MiB unpacked.
    random = bytearray(60 * MIB)
    random[::100] = bytes((31 * index * index) % 251 for index in range(len(random[::100])))
    reply = post(service, packer.compress(bytes(random)) + packer.flush(), GZIP)
    assert code_of(reply) == "body_too_large"


def test_a_gzip_file_of_a_million_empty_members_is_refused(service: Served) -> None:
    """Members cost time each; more than a block-wise compressor writes are refused."""
    reply = post(service, gzip.compress(b"", mtime=0) * 100_000, GZIP)
    assert code_of(reply) == "invalid_encoding"
    assert "members" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(b"{}", mtime=0)[:-4],
        gzip.compress(b"{}", mtime=0) + b"rubbish",
        b"\x1f\x8b",
        b"rubbish",
        b"\x1f\x8b\x08" + b"\xff" * 50,
    ],
    ids=["cut", "trailed", "magic alone", "no gzip", "bad header"],
)
def test_damaged_gzip_is_named(service: Served, content: bytes) -> None:
    """Truncated, trailed by rubbish, or no gzip at all."""
    assert code_of(post(service, content, GZIP)) == "invalid_encoding"


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 10_000_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b'{"graph":' + b"[" * 1100 + b"]" * 1100 + b"}",
        b"[" + b"[]," * 2_000_000 + b"[]]",
        b'"' + b'\\"' * 5_000_000,  # a string that never ends, full of escaped quotes
        b'{"graph": "' + b"[" * 1_000_000 + b'" ',
        b"{" + b'"a":1,' * 1_000_000 + b'"a":1}',
        b"\x00" * 1_000_000,
        b'{"graph": {"schema": 1' + b"0" * 1_000_000 + b"}}",
    ],
    ids=["open", "deep", "deeper than limit", "wide", "quotes", "brackets in text", "keys", "zeros", "digits"],
)
def test_json_made_to_hurt_is_refused(service: Served, content: bytes) -> None:
    """Nesting, width, unending strings and numbers of a million digits are refused in linear time."""
    reply = post(service, content)
    assert reply.status_code in {413, 422}
    assert code_of(reply) in {"body_too_complex", "invalid_json", "invalid_request", "invalid_graph"}


def mutated(where: tuple[str | int, ...], value: Any) -> bytes:
    """Return the example request with one value of its eager trace replaced."""
    request = example_request()
    target = request["graph"]["traces"]["eager"]
    for key in where[:-1]:
        target = target[key]
    target[where[-1]] = value
    return orjson.dumps(request)


COLUMNS: list[tuple[str | int, ...]] = [
    ("op", 0),
    ("numel", 0),
    ("inputs", "ids", 0),
    ("inputs", "offsets", 1),
    ("storages", "bytes", 0),
    ("storages", "died", 0),
]
# A storage may have 2^45 bytes, a tensor 2^50 elements; an index is smaller than either.
IMPOSSIBLE: list[Any] = [-2, 2**51, 2**63, -(2**63), 1.5, None, "1", [], True]


@pytest.mark.parametrize("value", IMPOSSIBLE, ids=repr)
@pytest.mark.parametrize("where", COLUMNS, ids=lambda where: ".".join(map(str, where)))
def test_numbers_that_cannot_be_are_refused_with_their_column(
    service: Served, where: tuple[str | int, ...], value: Any
) -> None:
    """Negative, huge, fractional or missing numbers in a column give invalid_graph and the column's path."""
    error = post(service, mutated(where, value)).json()["error"]
    assert error["code"] == "invalid_graph"
    assert error["path"].startswith("graph.traces.eager." + ".".join(part for part in where if isinstance(part, str)))


def test_branches_that_refer_to_nodes_elsewhere_or_nest_for_ever_are_refused(service: Served) -> None:
    """A branch at a node that is not there, one inside another beyond the limit, one that holds no trace."""
    trace = example_request()["graph"]["traces"]["eager"]
    assert code_of(post(service, mutated(("branches",), [[10_000, [trace]]]))) == "invalid_graph"
    assert code_of(post(service, mutated(("branches",), [[0, [0]]]))) == "invalid_graph"
    nested = trace
    for _ in range(6):
        nested = {**trace, "branches": [[0, [nested]]]}
    assert code_of(post(service, mutated(("branches",), nested["branches"]))) in {"invalid_graph", "invalid_json"}


def test_a_graph_beyond_the_node_limit_is_refused_by_it(service: Served) -> None:
    """One node more than PEAKCAST_MAX_NODES: the limit is named before anything is simulated."""
    request = example_request()
    trace = request["graph"]["traces"]["eager"]
    nodes = 200_001
    for column in ("phase", "op", "rank", "numel", "dtype", "device"):
        trace[column] = trace[column][:1] * nodes
    trace.pop("line", None)
    trace.pop("region", None)
    for table in ("inputs", "outputs"):
        trace[table] = {"offsets": [0] * (nodes + 1), "ids": []}
    error = post(service, orjson.dumps(request)).json()["error"]
    assert error["code"] == "invalid_graph"
    assert error["reason"] == "limit_exceeded"
    assert "200000" in error["message"].replace(",", "")
