"""Servers that are slow, wrong or hostile: a question ends in time, and nothing of what they send is believed."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from peakcast.client.ask import predict
from peakcast.client.errors import AskError
from peakcast.client.guard.asking import Asking
from peakcast.featurizer.run import DeviceSpec
from peakcast.featurizer.spec import GraphSpec
from peakcast.service.examples import example_request

TIME_S = 0.5
PLANS = ["inductor", "eager"]
Behaviour = Callable[[socket.socket], None]


@contextlib.contextmanager
def raw_server(behave: Behaviour) -> Iterator[str]:
    """Accept connections, and let `behave` do with each what it likes; yields the URL."""
    listening = socket.create_server(("127.0.0.1", 0))
    stopped = threading.Event()

    def one(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            behave(connection)
            stopped.wait(5)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=one, args=(listening.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        stopped.set()
        listening.close()


def sends(body: bytes, status: bytes = b"200 OK", headers: bytes = b"") -> Behaviour:
    """Answer whatever is asked with this."""

    def behave(connection: socket.socket) -> None:
        connection.recv(1 << 20)
        length = b"Content-Length: %d\r\n" % len(body)
        connection.sendall(b"HTTP/1.1 " + status + b"\r\n" + length + headers + b"\r\n" + body)

    return behave


def says_nothing(_: socket.socket) -> None:
    """Accept, and wait."""


def hangs_up(connection: socket.socket) -> None:
    """Close at once."""
    connection.close()


def drips(connection: socket.socket) -> None:
    """Send one byte of a header now and then, for ever: no timeout of a single read sees it."""
    connection.recv(1 << 20)
    connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    for _ in range(100):
        connection.sendall(b"z")
        time.sleep(0.05)


def never_ends(connection: socket.socket) -> None:
    """Send a body without end, as fast as it goes."""
    connection.recv(1 << 20)
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    chunk = b"100000\r\n" + b"9" * (1 << 20) + b"\r\n"
    while True:
        connection.sendall(chunk)


@pytest.fixture(scope="module")
def spec() -> GraphSpec:
    """Give a small captured graph."""
    return GraphSpec.from_json(example_request()["graph"])


@pytest.fixture(scope="module")
def honest(spec: GraphSpec) -> dict[str, Any]:
    """Give the answer of an honest server, as JSON values."""
    return predict(spec, plans=PLANS).model_dump(mode="json")


def asked(url: str, spec: GraphSpec) -> Asking:
    """Ask once, and expect no answer within the time and half a second more; returns who asked."""
    asking = Asking(url, token=None, time_s=TIME_S, risk=0.01)
    started_s = time.monotonic()
    with pytest.raises(AskError):
        asking.ask(spec, PLANS, DeviceSpec())
    assert time.monotonic() - started_s < TIME_S + 0.5
    return asking


@pytest.mark.parametrize(
    "behave",
    [
        says_nothing,
        hangs_up,
        drips,
        never_ends,
        sends(b"not JSON"),
        sends(b"[1, 2, 3]"),
        sends(b"{" * 100_000),
        sends(b"", b"500 Oops"),
        sends(b"", b"302 Found", b"Location: http://127.0.0.1:1/\r\n"),
        sends(b"x", b"200 OK", b"Content-Encoding: gzip\r\n"),
    ],
    ids=["silent", "hangs-up", "drips", "endless", "no-json", "no-object", "deep", "500", "redirect", "no-gzip"],
)
def test_what_is_no_prediction_is_no_answer(spec: GraphSpec, behave: Behaviour) -> None:
    """Each ends as an AskError, in time, counted under one of the kinds of failure."""
    with raw_server(behave) as url:
        asking = asked(url, spec)
    assert sum(asking.counts[kind] for kind in ("unreachable", "server_error", "bad_answer")) == 1


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("graph_id", "f" * 64),
        ("plans.0.plan", "eager"),
        ("plans.0.required.upper_bytes", float("nan")),
        ("plans.0.required.upper_bytes", 1e300),
        ("plans.0.required.upper_bytes", -5),
        ("decision.plan", "rm -rf"),
        ("decision.action", "explode"),
        ("plans", []),
    ],
    ids=["other-graph", "one-plan-twice", "nan", "infinite", "negative", "no-plan", "no-action", "no-plans"],
)
def test_a_prediction_that_cannot_be_one_of_this_question_is_no_answer(
    spec: GraphSpec, honest: dict[str, Any], path: str, value: object
) -> None:
    """A well-formed reply whose content is impossible is refused, and counted as a wrong one."""
    answer = json.loads(json.dumps(honest))
    at: Any = answer
    *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in way:
        at = at[part]
    at[last] = value
    with raw_server(sends(json.dumps(answer).encode())) as url:
        assert asked(url, spec).counts == {"bad_answer": 1}


def test_the_honest_answer_is_taken(spec: GraphSpec, honest: dict[str, Any]) -> None:
    """The same server with the unchanged answer is believed: it was the change that was refused above."""
    with raw_server(sends(json.dumps(honest).encode())) as url:
        answer = Asking(url, token=None, time_s=5.0, risk=0.01).ask(spec, PLANS, DeviceSpec())
    assert answer.model_dump(mode="json") == honest


def test_a_server_that_fails_three_times_in_a_row_is_left_alone() -> None:
    """Then nothing is even prepared for it; a failure of the capture is not the server's."""
    asking = Asking("http://127.0.0.1:9", token=None, time_s=TIME_S, risk=0.01)
    prepared: list[int] = []

    def fails() -> None:
        prepared.append(1)
        raise AskError("no answer")

    def cannot_capture() -> None:
        raise ValueError("not a workload")

    with pytest.raises(ValueError, match="not a workload"):
        asking.while_it_answers(cannot_capture)
    for _ in range(5):
        with pytest.raises(AskError):
            asking.while_it_answers(fails)
    assert len(prepared) == 3
    assert asking.counts["circuit_open"] == 2
