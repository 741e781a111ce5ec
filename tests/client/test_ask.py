"""`peakcast.predict`: in this process, from a service, and from servers that misbehave."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
import stamina
from serving import Served, serving

import peakcast
from peakcast.client.ask import predict
from peakcast.client.errors import AskError, ServerError, ServerUnreachableError
from peakcast.featurizer.spec import GraphSpec
from peakcast.service.examples import example_request

TOKEN = "open-sesame-2"  # noqa: S105 - of this test's own server


@pytest.fixture(scope="module")
def spec() -> GraphSpec:
    """Give a small captured graph."""
    return GraphSpec.from_json(example_request()["graph"])


@pytest.fixture(scope="module")
def service() -> Iterator[Served]:
    """Give a running service that asks for a token."""
    with serving(token=TOKEN) as served:
        yield served


Answer = tuple[int, dict[str, str], bytes]


@contextmanager
def scripted(*answers: Answer) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Run an HTTP server that gives these answers in turn, the last for ever; yields its URL and what it was asked."""
    asked: list[dict[str, Any]] = []

    class Script(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers["Content-Encoding"] == "gzip":
                content = gzip.decompress(content)
            asked.append(json.loads(content))
            status, headers, body = answers[min(len(asked), len(answers)) - 1]
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Script)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def error(status: int, code: str, **headers: str) -> Answer:
    """Return an error reply."""
    return status, headers, json.dumps({"error": {"code": code, "message": "because"}}).encode()


@pytest.fixture(scope="module")
def good(spec: GraphSpec) -> Answer:
    """Give a reply that is a prediction."""
    return 200, {}, predict(spec).model_dump_json().encode()


def test_a_service_gives_the_prediction_of_this_process(spec: GraphSpec, service: Served) -> None:
    """Over HTTP and in-process the same question has the same answer."""
    asked: dict[str, Any] = {"device_memory_bytes": 16 << 30, "plans": ["inductor", "eager"], "risk": 0.05}
    own = peakcast.predict(spec, **asked)
    told = peakcast.predict(spec, server=service.url, token=TOKEN, **asked)
    assert told.model_copy(update={"elapsed_ms": own.elapsed_ms}) == own
    assert told.risk == 0.05
    assert [plan.plan for plan in told.plans] == ["inductor", "eager"]


def test_the_run_is_the_captured_one_unless_given(spec: GraphSpec) -> None:
    """Left out, the run is what the graph was captured from; inference holds no gradients."""
    captured = peakcast.RunSpec(task="training", optimizer="SGD", implementation="foreach")
    assert predict(spec).plans == predict(spec, run=captured).plans


def test_the_id_is_asked_first_and_the_graph_only_where_it_is_unknown(spec: GraphSpec, good: Answer) -> None:
    """A server that holds the graph is never sent it; one that does not is sent it without source lines."""
    with scripted(good) as (url, asked):
        predict(spec, server=url)
    assert [set(question) & {"graph", "graph_id"} for question in asked] == [{"graph_id"}]
    assert asked[0]["graph_id"] == spec.graph_id
    with scripted(error(404, "graph_unknown"), good) as (url, asked):
        predict(spec, server=url)
    assert [set(question) & {"graph", "graph_id"} for question in asked] == [{"graph_id"}, {"graph"}]
    assert GraphSpec.from_json(asked[1]["graph"]).graph_id == spec.graph_id
    assert asked[1]["graph"].get("lines", []) == []


@pytest.mark.parametrize("answer", [error(429, "busy", **{"Retry-After": "0"}), error(503, "not_ready")])
def test_a_server_that_says_later_is_asked_again(spec: GraphSpec, good: Answer, answer: Answer) -> None:
    """Busy and not ready are asked again until the answer comes."""
    with scripted(answer, answer, good) as (url, asked):
        assert predict(spec, server=url).graph_id == spec.graph_id
    assert len(asked) == 3


@pytest.mark.parametrize(("status", "code"), [(401, "unauthorized"), (422, "invalid_graph"), (500, "internal")])
def test_a_refusal_is_final_and_typed(spec: GraphSpec, status: int, code: str) -> None:
    """What another try cannot mend is raised at once, with status and code."""
    with scripted(error(status, code)) as (url, asked), pytest.raises(ServerError) as raised:
        predict(spec, server=url)
    assert (raised.value.status, raised.value.code, raised.value.message) == (status, code, "because")
    assert len(asked) == 1


def test_retries_of_the_library_are_silent(
    spec: GraphSpec, good: Answer, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """What the caller's program prints and logs is its own: neither a busy nor a missing server writes there."""
    with scripted(error(503, "not_ready"), good) as (url, _):
        predict(spec, server=url)
    with pytest.raises(ServerUnreachableError):
        predict(spec, server="http://127.0.0.1:9", timeout_seconds=0.5)
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []


def test_retries_of_others_are_still_reported(capfd: pytest.CaptureFixture[str]) -> None:
    """A program that retries with stamina itself hears of it as before."""
    tries: list[int] = []
    for attempt in stamina.retry_context(on=KeyError, attempts=2, wait_initial=0.001, wait_jitter=0.001):
        with attempt:
            tries.append(attempt.num)
            if attempt.num == 1:
                raise KeyError
    assert tries == [1, 2]
    assert "stamina.retry_scheduled" in capfd.readouterr().out


def test_a_wait_beyond_the_time_allowed_is_not_begun(spec: GraphSpec) -> None:
    """A server that says to come again in an hour is believed: the error comes now."""
    busy = error(503, "not_ready", **{"Retry-After": "3600"})
    with scripted(busy) as (url, asked), pytest.raises(ServerError, match="503 not_ready"):
        predict(spec, server=url, timeout_seconds=5)
    assert len(asked) == 1


def test_a_server_that_is_not_there_is_given_up_within_the_time(spec: GraphSpec) -> None:
    """No connection, and no end of retries either."""
    with pytest.raises(ServerUnreachableError, match=r"no answer from http://127.0.0.1:9/predict within 0.5 s"):
        predict(spec, server="http://127.0.0.1:9", timeout_seconds=0.5)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((200, {}, b"<html>hello</html>"), "did not answer with a prediction"),
        ((200, {}, b" " * (17 << 20)), "no peakcast service"),
        ((502, {"Retry-After": "9999"}, b"bad gateway"), "502 http_502: bad gateway"),
        ((404, {}, b'{"error": "what"}'), "404 http_404"),
        ((404, {}, b"[]"), "404 http_404"),
    ],
)
def test_a_server_of_another_kind_is_recognised(spec: GraphSpec, answer: Answer, said: str) -> None:
    """Whatever answers at that address, the error says so, and is one a training loop can catch."""
    with scripted(answer) as (url, _), pytest.raises(AskError, match=said):
        predict(spec, server=url)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"plans": ["fast"]}, "unknown plan 'fast'"),
        ({"plans": []}, "no plan"),
        ({"server": "localhost:8400"}, "give http://host:port"),
        ({"server": "ftp://x"}, "give http://host:port"),
        ({"device_memory_bytes": -1}, "total_bytes"),
        ({"risk": 0.0}, "risk must be from 0.0001 to 0.5"),
        ({"risk": 0.6}, "risk must be from 0.0001 to 0.5"),
        ({"risk": float("nan")}, "risk must be from 0.0001 to 0.5"),
        ({"run": peakcast.RunSpec(task="inference")}, "it is of training"),
    ],
)
def test_a_question_that_cannot_be_is_a_value_error(spec: GraphSpec, asked: dict[str, Any], said: str) -> None:
    """Wrong arguments are refused before anything is asked or computed."""
    with pytest.raises(ValueError, match=said):
        predict(spec, **asked)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"spec": {"schema": 1}}, "spec must be a peakcast.GraphSpec, got an object of builtins.dict"),
        ({"spec": None}, "spec must be a peakcast.GraphSpec, got None"),
        ({"risk": "0.1"}, "risk must be a number from 0.0001 to 0.5"),
        ({"risk": True}, "risk must be a number"),
        ({"run": {"task": "training"}}, "run must be a peakcast.RunSpec"),
        ({"device": "NVIDIA H200"}, "device must be a peakcast.DeviceSpec"),
        ({"plans": "eager"}, "plans must be a list of names"),
    ],
)
def test_an_argument_of_the_wrong_type_is_a_type_error(spec: GraphSpec, asked: dict[str, Any], said: str) -> None:
    """The error says what is allowed."""
    with pytest.raises(TypeError, match=said):
        predict(**{"spec": spec, **asked})


def test_an_allocator_that_cannot_be_is_a_value_error() -> None:
    """As over HTTP: refused where it is written down."""
    with pytest.raises(ValueError, match="unknown allocator option"):
        peakcast.RunSpec(allocator="turbo:1")


def test_the_token_may_stand_in_the_environment(
    spec: GraphSpec, service: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PEAKCAST_TOKEN is used where no token is given; a wrong one is refused."""
    monkeypatch.setenv("PEAKCAST_TOKEN", TOKEN)
    assert predict(spec, server=service.url).graph_id == spec.graph_id
    with pytest.raises(ServerError, match="401 unauthorized"):
        predict(spec, server=service.url, token="wrong-wrong")  # noqa: S106 - wrong on purpose
