"""Every route and every error of the service: one status, one JSON shape."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import httpx
import orjson
import pytest
from fastapi import FastAPI
from serving import Served, serving

from peakcast.service.app import create_app
from peakcast.service.errors import STATUS, ErrorCode
from peakcast.service.examples import example_request
from peakcast.service.settings import Settings

TOKEN = "correct-horse-battery"  # noqa: S105 - of this test's own server
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def guarded() -> Iterator[Served]:
    """Give a service with a token, one host name, and little room."""
    with serving(
        token=TOKEN,
        allowed_hosts="localhost,127.0.0.1",
        max_pending=1,
        max_body_bytes="64KiB",
        max_compressed_bytes="8KiB",
        max_json_containers=1000,
        body_timeout_seconds=2,
    ) as served:
        yield served


def changed(**replaced: Any) -> bytes:
    """Return the example request with some of its keys replaced."""
    return orjson.dumps({**example_request(), **replaced})


def graph_with(**replaced: Any) -> bytes:
    """Return the example request with some keys of its graph replaced."""
    request = example_request()
    return orjson.dumps({**request, "graph": {**request["graph"], **replaced}})


def check(reply: httpx.Response, code: ErrorCode, path: str | None = None) -> None:
    """Check status and shape of one error reply."""
    assert reply.status_code == STATUS[code], reply.text
    assert reply.headers["content-type"] == "application/json"
    assert len(reply.headers["x-request-id"]) == 32
    body = reply.json()
    assert set(body) == {"error"}
    assert {"code", "message"} <= set(body["error"]) <= {"code", "message", "path", "reason"}
    assert body["error"]["code"] == code
    assert body["error"]["message"]
    if path is not None:
        assert body["error"]["path"] == path
    assert ("retry-after" in reply.headers) == (code in {ErrorCode.BUSY, ErrorCode.NOT_READY})


# A trace of nothing: every column there, none with a row.
EMPTY = {
    **{key: [] for key in ("phase", "op", "rank", "numel", "dtype", "device", "line")},
    **{key: {"offsets": [0], "ids": []} for key in ("inputs", "outputs")},
    "storages": {key: [] for key in ("bytes", "device", "role", "born", "died")},
}

POSTS: list[tuple[str, bytes, dict[str, str], ErrorCode, str | None]] = [
    ("truncated", changed()[:-40], JSON, ErrorCode.INVALID_JSON, None),
    ("empty", b"", JSON, ErrorCode.INVALID_JSON, None),
    ("array", b"[]", JSON, ErrorCode.INVALID_JSON, None),
    ("nan", b'{"risk": NaN}', JSON, ErrorCode.INVALID_JSON, None),
    ("not utf-8", b'{"graph_id": "\xff"}', JSON, ErrorCode.INVALID_JSON, None),
    ("nested", b"[" * 500 + b"]" * 500, JSON, ErrorCode.INVALID_JSON, None),
    ("many lists", b"[" + b"[]," * 5000 + b"[]]", JSON, ErrorCode.BODY_TOO_COMPLEX, None),
    ("neither", b"{}", JSON, ErrorCode.INVALID_REQUEST, "graph"),
    ("both", changed(graph_id="0" * 64), JSON, ErrorCode.INVALID_REQUEST, "graph"),
    ("misspelt", changed(plan=["eager"]), JSON, ErrorCode.INVALID_REQUEST, "plan"),
    ("plan", changed(plans=["eager", "fast"]), JSON, ErrorCode.INVALID_REQUEST, "plans.1"),
    ("no plans", changed(plans=[]), JSON, ErrorCode.INVALID_REQUEST, "plans"),
    ("risk", changed(risk=1.5), JSON, ErrorCode.INVALID_REQUEST, "risk"),
    ("huge memory", changed(device={"total_bytes": 10**18}), JSON, ErrorCode.INVALID_REQUEST, "device.total_bytes"),
    ("task", changed(run={"task": "sleeping"}), JSON, ErrorCode.INVALID_REQUEST, "run.task"),
    ("allocator", changed(run={"allocator": "turbo:1"}), JSON, ErrorCode.INVALID_REQUEST, "run.allocator"),
    ("text", changed(run={"accumulation": "4"}), JSON, ErrorCode.INVALID_REQUEST, "run.accumulation"),
    ("true", changed(run={"accumulation": True}), JSON, ErrorCode.INVALID_REQUEST, "run.accumulation"),
    ("true bytes", changed(device={"total_bytes": True}), JSON, ErrorCode.INVALID_REQUEST, "device.total_bytes"),
    ("text risk", changed(risk="0.1"), JSON, ErrorCode.INVALID_REQUEST, "risk"),
    ("other task", changed(run={"task": "inference"}), JSON, ErrorCode.INVALID_REQUEST, "run.task"),
    ("no nodes", graph_with(traces={"eager": EMPTY}), JSON, ErrorCode.INVALID_GRAPH, "graph.traces.eager.op"),
    ("bad id", b'{"graph_id": "../../etc/passwd"}', JSON, ErrorCode.INVALID_REQUEST, "graph_id"),
    ("unknown id", orjson.dumps({"graph_id": "f" * 64}), JSON, ErrorCode.GRAPH_UNKNOWN, "graph_id"),
    ("graph is text", changed(graph="graph"), JSON, ErrorCode.INVALID_GRAPH, "graph"),
    ("schema", graph_with(schema=2), JSON, ErrorCode.INVALID_GRAPH, "graph.schema"),
    ("no traces", graph_with(traces={}), JSON, ErrorCode.INVALID_GRAPH, "graph.traces"),
    ("odd task", graph_with(captured_with={"task": "x"}), JSON, ErrorCode.INVALID_GRAPH, "graph.captured_with.task"),
    ("form", b"a=1", {"Content-Type": "text/plain"}, ErrorCode.UNSUPPORTED_MEDIA_TYPE, None),
    ("brotli", changed(), {**JSON, "Content-Encoding": "br"}, ErrorCode.UNSUPPORTED_MEDIA_TYPE, None),
    ("no gzip", changed(), {**JSON, "Content-Encoding": "gzip"}, ErrorCode.INVALID_ENCODING, None),
    ("large", b" " * 70_000, JSON, ErrorCode.BODY_TOO_LARGE, None),
]


@pytest.mark.parametrize(
    ("content", "headers", "code", "path"), [row[1:] for row in POSTS], ids=[row[0] for row in POSTS]
)
def test_what_is_wrong_with_a_request_is_said(
    guarded: Served, content: bytes, headers: dict[str, str], code: ErrorCode, path: str | None
) -> None:
    """Each fault of a body has its code, status and, where it lies in the body, its path."""
    reply = httpx.post(
        f"{guarded.url}/predict", content=content, headers={**headers, "Authorization": f"Bearer {TOKEN}"}, timeout=30
    )
    check(reply, code, path)


@pytest.mark.parametrize(
    ("replaced", "said"),
    [
        ({"run": []}, "run: Input should be an object (got a list)"),
        ({"device": None}, "device: Input should be an object (got null)"),
        ({"plans": "eager"}, "plans: Input should be a list (got 'eager')"),
        ({"plans": [None]}, "plans.0: Input should be a valid string (got null)"),
        ({"risk": True}, "risk: Input should be a valid number (got true)"),
    ],
)
def test_messages_speak_of_json(guarded: Served, replaced: dict[str, Any], said: str) -> None:
    """What was sent is called by its JSON name, not by a type of Python."""
    reply = httpx.post(
        f"{guarded.url}/predict", content=changed(**replaced), headers={**JSON, "Authorization": f"Bearer {TOKEN}"}
    )
    check(reply, ErrorCode.INVALID_REQUEST)
    assert reply.json()["error"]["message"] == said


@pytest.mark.parametrize("column", ["op", "inputs"])
def test_an_id_out_of_range_is_named_with_its_place(guarded: Served, column: str) -> None:
    """A node that points at no op, or reads a storage that is not there, is refused with the column's path."""
    request = example_request()
    trace = request["graph"]["traces"]["eager"]
    (trace["op"] if column == "op" else trace["inputs"]["ids"])[0] = 99_999
    reply = httpx.post(f"{guarded.url}/predict", json=request, headers={"Authorization": f"Bearer {TOKEN}"})
    check(reply, ErrorCode.INVALID_GRAPH)
    assert reply.json()["error"]["reason"] == "out_of_range"
    assert reply.json()["error"]["path"].startswith(f"graph.traces.eager.{column}")
    assert "allowed" in reply.json()["error"]["message"]


@pytest.mark.parametrize(("method", "path"), [("POST", "/predict"), ("GET", "/metrics")])
@pytest.mark.parametrize("credentials", [None, "Bearer wrong-wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer é"])
def test_a_wrong_token_is_refused(guarded: Served, method: str, path: str, credentials: str | None) -> None:
    """Without the right bearer token predictions and metrics are 401, and the reply says how to authenticate."""
    headers = {} if credentials is None else {"Authorization": credentials.encode()}
    reply = httpx.request(method, f"{guarded.url}{path}", headers=headers)
    check(reply, ErrorCode.UNAUTHORIZED)
    assert reply.headers["www-authenticate"].startswith("Bearer")


def test_health_needs_no_token(guarded: Served) -> None:
    """A kubelet can probe without the token."""
    assert httpx.get(f"{guarded.url}/health/live").json()["status"] == "live"
    assert httpx.get(f"{guarded.url}/health/ready").json()["status"] == "ready"


@pytest.mark.parametrize("path", ["/predict", "/health/live", "/health/ready", "/metrics", "/nowhere"])
def test_a_foreign_host_name_is_refused_on_every_route(guarded: Served, path: str) -> None:
    """A page that resolved its own name to this address gets no answer: 403."""
    reply = httpx.get(f"{guarded.url}{path}", headers={"Host": "evil.example"})
    check(reply, ErrorCode.HOST_FORBIDDEN)


@pytest.mark.parametrize("path", ["/", "/nowhere", "/predict/", "/predict/../x", "/health", "/%00"])
def test_what_is_not_there_is_404_and_lists_what_is(guarded: Served, path: str) -> None:
    """Unknown paths are answered in the same shape, naming the endpoints."""
    reply = httpx.get(f"{guarded.url}{path}")
    check(reply, ErrorCode.NOT_FOUND)
    assert "/predict" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path"),
    [(method, path) for path in ("/health/live", "/health/ready", "/metrics") for method in ("POST", "DELETE", "PUT")]
    + [(method, "/predict") for method in ("GET", "PUT", "DELETE", "PATCH")],
)
def test_a_wrong_method_is_405_and_names_the_right_one(guarded: Served, method: str, path: str) -> None:
    """Every route refuses other methods with `Allow`."""
    reply = httpx.request(method, f"{guarded.url}{path}")
    check(reply, ErrorCode.METHOD_NOT_ALLOWED)
    assert reply.headers["allow"] == ("POST" if path == "/predict" else "GET")


def open_request(served: Served) -> socket.socket:
    """Begin a request whose body never comes."""
    connection = socket.create_connection(("127.0.0.1", served.port), timeout=30)
    connection.sendall(
        b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n"
        b"Authorization: Bearer " + TOKEN.encode() + b"\r\n\r\n{"
    )
    return connection


def read_reply(connection: socket.socket) -> httpx.Response:
    """Read one reply until the peer closes."""
    content = b""
    while chunk := connection.recv(65536):
        content += chunk
    head, _, body = content.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = [tuple(line.split(": ", 1)) for line in lines[1:]]
    return httpx.Response(int(lines[0].split()[1]), headers=headers, content=body)  # type: ignore[arg-type]


def test_one_request_too_many_is_429_and_a_body_that_stalls_is_408(guarded: Served) -> None:
    """While the only place is taken others are told when to come again; who holds it without sending is cut off."""
    with open_request(guarded) as slow:
        codes = set()
        for _ in range(50):
            reply = httpx.post(
                f"{guarded.url}/predict", content=changed(), headers={**JSON, "Authorization": f"Bearer {TOKEN}"}
            )
            codes.add(reply.status_code)
            if reply.status_code == 429:
                check(reply, ErrorCode.BUSY)
                assert reply.headers["retry-after"] == "1"
                break
        assert 429 in codes
        assert httpx.get(f"{guarded.url}/health/ready").status_code == 200  # probes are not requests to /predict
        stalled = read_reply(slow)
    check(stalled, ErrorCode.BODY_TIMEOUT)
    assert stalled.headers["connection"] == "close"
    again = httpx.post(
        f"{guarded.url}/predict", content=changed(), headers={**JSON, "Authorization": f"Bearer {TOKEN}"}
    )
    assert again.status_code == 200


def test_many_requests_at_once_are_answered_or_told_to_wait(guarded: Served) -> None:
    """Under more requests than places every one gets 200 or 429, none an error of another kind."""
    statuses: list[int] = []

    def ask() -> None:
        reply = httpx.post(
            f"{guarded.url}/predict",
            content=changed(),
            headers={**JSON, "Authorization": f"Bearer {TOKEN}"},
            timeout=60,
        )
        statuses.append(reply.status_code)

    threads = [threading.Thread(target=ask) for _ in range(24)]
    with ExitStack() as stack:
        for thread in threads:
            thread.start()
            stack.callback(thread.join)
    assert len(statuses) == 24
    assert set(statuses) <= {200, 429}
    assert 200 in statuses


def asked(app: FastAPI, *requests: tuple[str, str, bytes]) -> list[httpx.Response]:
    """Ask an app in this process, from its start to its end."""

    async def run() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
        ):
            return [
                await client.request(method, path, content=content, headers=JSON) for method, path, content in requests
            ]

    return anyio.run(run)


def test_without_a_model_nothing_is_predicted(tmp_path: Path) -> None:
    """A service whose artefact is missing lives, is not ready, and says so."""
    app = create_app(Settings(model_path=tmp_path))
    requests = [("GET", "/health/ready", b""), ("POST", "/predict", changed()), ("GET", "/health/live", b"")]
    ready, predicted, live, metrics = asked(app, *requests, ("GET", "/metrics", b""))
    check(ready, ErrorCode.NOT_READY)
    check(predicted, ErrorCode.NOT_READY)
    assert live.status_code == 200
    assert "peakcast_ready 0.0" in metrics.text
    app.state.peakcast.load()
    check(asked(app, requests[0])[0], ErrorCode.NOT_READY)
    assert str(tmp_path) in asked(app, requests[0])[0].json()["error"]["message"]


def test_a_bug_is_answered_without_its_details(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception nobody foresaw becomes 500 with an id to look up in the log, not its text."""
    app = create_app(Settings())
    monkeypatch.setattr(type(app.state.peakcast), "answers", property(lambda _: 1 / 0))
    (reply,) = asked(app, ("POST", "/predict", changed()))
    check(reply, ErrorCode.INTERNAL)
    assert "division" not in reply.text
    assert reply.headers["x-request-id"] in reply.json()["error"]["message"]


def test_every_code_has_a_status_and_is_provoked_here() -> None:
    """The tables are whole: no code without status, none that this file or that of the peaks does not show."""
    assert set(STATUS) == set(ErrorCode)
    text = Path(__file__).read_text() + Path(__file__).with_name("test_peaks.py").read_text()
    assert [code for code in ErrorCode if f"ErrorCode.{code.name}" not in text] == []
