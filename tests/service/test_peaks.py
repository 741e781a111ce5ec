"""`POST /peaks` of a real service: what is kept, judged and refused, and what outlives a kill."""

from __future__ import annotations

import gzip
import os
import re
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import uvicorn
from pydantic import SecretStr
from reported import GRAPH, peak_body
from serving import Served, serving
from store_urls import a_database

from peakcast.client.graph_file import read_graph
from peakcast.service.app import create_app
from peakcast.service.errors import STATUS, ErrorCode
from peakcast.service.examples import example_peak, example_request
from peakcast.service.settings import Settings
from peakcast.service.store.peak_store import PeakStore
from peakcast.service.store.review import Review

TOKENS = [
    {"name": "team-a", "token": "open-sesame-a", "scopes": ["peaks"]},
    {"name": "team-b", "token": "open-sesame-b"},
    {"name": "prometheus", "token": "open-sesame-p", "scopes": ["metrics"]},
]
TEAM_A = {"Authorization": "Bearer open-sesame-a"}
TEAM_B = {"Authorization": "Bearer open-sesame-b"}
SCRAPER = {"Authorization": "Bearer open-sesame-p"}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, str]]:
    """Give a service with tokens and the URL of its store."""
    url = f"sqlite:///{tmp_path_factory.mktemp('store') / 'peaks.db'}"
    with serving(tokens=orjson.dumps(TOKENS).decode(), store_url=url, peaks_per_minute=200) as served:
        yield served, url


def post(served: Served, body: dict[str, Any], headers: dict[str, str] = TEAM_A) -> httpx.Response:
    """Report one peak."""
    return httpx.post(f"{served.url}/peaks", json=body, headers=headers, timeout=60)


def stored(url: str) -> dict[str, Any]:
    """Return the peaks of a store by key."""
    store = PeakStore.open(url)
    try:
        return {peak.key: peak for peak in Review(store).peaks(limit=100_000)}
    finally:
        store.close()


def metrics(served: Served) -> dict[str, float]:
    """Return the samples of a service with tokens."""
    text = httpx.get(f"{served.url}/metrics", headers=SCRAPER).text
    return {name: float(value) for name, value in re.findall(r"^([^#\s]\S*) (\S+)$", text, re.MULTILINE)}


def check(reply: httpx.Response, code: ErrorCode) -> dict[str, Any]:
    """Check status and shape of an error, and return its detail."""
    assert reply.status_code == STATUS[code], reply.text
    detail: dict[str, Any] = reply.json()["error"]
    assert detail["code"] == code
    assert ("retry-after" in reply.headers) == (STATUS[code] in {429, 503})
    return detail


def test_a_peak_is_kept_once_under_the_name_of_its_token(kept: tuple[Served, str]) -> None:
    """The graph, the run it says, and who reported are in the store; a repeat gets the same reply."""
    served, url = kept
    body = peak_body()
    packed = gzip.compress(orjson.dumps(body))
    headers = {**TEAM_A, "Content-Type": "application/json", "Content-Encoding": "gzip"}
    first = httpx.post(f"{served.url}/peaks", content=packed, headers=headers, timeout=60)
    assert first.status_code == 200, first.text
    assert first.json() == {"key": body["key"], "graph_id": GRAPH.graph_id, "stored": True}
    by_id = {**body, "graph_id": GRAPH.graph_id}
    del by_id["graph"]
    assert post(served, by_id).content == first.content
    peak = stored(url)[body["key"]]
    assert (peak.reporter, peak.status) == ("team-a", "accepted")
    assert (peak.run["task"], peak.run["optimizer"], peak.run["implementation"]) == ("training", "SGD", "foreach")
    assert peak.measured == body["measured"]
    assert peak.prior["steady_allocated"] == 68_354_560
    conflict = check(post(served, {**by_id, "plan": "inductor"}), ErrorCode.KEY_CONFLICT)
    assert conflict["path"] == "key"


def test_the_graph_of_a_peak_outlives_a_restart(tmp_path: Path) -> None:
    """A service started again answers /predict and /peaks by the graph's id; what was captured otherwise is unknown."""
    settings = Settings(store_url=SecretStr(f"sqlite:///{tmp_path / 'peaks.db'}"))
    # Not the example graph: that one a service knows from its own warm-up.
    spec = read_graph(Path(__file__).parents[1] / "data" / "mlp.json.xz")
    graph = spec.to_dict()
    question = {"graph_id": spec.graph_id, "plans": ["eager"]}
    with in_a_thread(settings) as client:
        check(client.post("/predict", json=question), ErrorCode.GRAPH_UNKNOWN)
        assert client.post("/peaks", json=peak_body(graph=graph)).status_code == 200
    with in_a_thread(settings) as client:
        other = client.post("/predict", json={**question, "captured_with": {"torch": "1.0"}})
        check(other, ErrorCode.GRAPH_UNKNOWN)
        reply = client.post("/predict", json=question)
        assert reply.status_code == 200, reply.text
        sent = client.post("/predict", json={"graph": graph, "plans": ["eager"]})
        assert reply.json()["plans"] == sent.json()["plans"]
    with in_a_thread(settings) as client:
        by_id = {**example_peak(), "key": "after-the-restart", "graph_id": spec.graph_id}
        assert client.post("/peaks", json=by_id).status_code == 200
        check(client.post("/peaks", json={**by_id, "graph_id": "0" * 64}), ErrorCode.GRAPH_UNKNOWN)
        other = {**by_id, "captured_with": {"torch": "1.0"}}
        check(client.post("/peaks", json=other), ErrorCode.GRAPH_UNKNOWN)


def test_false_peaks_wait_in_quarantine_and_nobody_is_told(kept: tuple[Served, str]) -> None:
    """A peak out of bounds gets the reply of any other, and is in the store with its reason."""
    served, url = kept
    before = metrics(served)
    device = {"name": "NVIDIA A100", "total_bytes": 85_899_345_920}
    false = [
        {"steady_allocated_bytes": 40 << 30},
        {"steady_allocated_bytes": 70_000},  # below its parameters of 77,096 bytes
        {"steady_allocated_bytes": 69_000_000, "steady_reserved_bytes": 68_000_000},
        {"steady_reserved_bytes": 90_000_000_000},
    ]
    keys = []
    for measured in false:
        body = peak_body(measured=measured, device=device)
        reply = post(served, body)
        assert reply.json() == {"key": body["key"], "graph_id": GRAPH.graph_id, "stored": True}
        keys.append(body["key"])
    reasons = [stored(url)[key].reason for key in keys]
    assert [stored(url)[key].status for key in keys] == ["quarantined"] * 4
    for reason, word in zip(reasons, ("simulated are", "parameters alone", "above the", "the card has"), strict=True):
        assert word in reason
    # Nobody accepted says what is true on this card, and then two reporters disagree.
    true = {"steady_allocated_bytes": 68_354_560}
    assert post(served, peak_body(key="agrees-a", measured=true, device=device)).status_code == 200
    far = peak_body(key="disagrees-b", measured={"steady_allocated_bytes": 75_000_000}, device=device)
    assert post(served, far, TEAM_B).status_code == 200
    assert stored(url)["agrees-a"].status == "accepted"
    assert "accepted before" in stored(url)["disagrees-b"].reason
    grown = {name: value - before.get(name, 0.0) for name, value in metrics(served).items()}
    assert grown['peakcast_peaks_total{reporter="named",result="quarantined"}'] == 5
    assert grown['peakcast_peaks_total{reporter="named",result="accepted"}'] == 1
    assert grown['peakcast_peaks_received_total{reporter="named"}'] == 6
    # One accepted peak was compared with what the model expects of it.
    asked = {"graph": example_request()["graph"], "device": device, "plans": ["eager"]}
    predicted = httpx.post(f"{served.url}/predict", json=asked, headers=TEAM_B, timeout=60).json()["plans"][0]
    expected_bytes = predicted["steady_allocated"]["expected_bytes"]
    assert grown['peakcast_peak_ratio_count{quantity="steady_allocated"}'] == 1
    ratio = grown['peakcast_peak_ratio_sum{quantity="steady_allocated"}']
    assert ratio == pytest.approx(68_354_560 / expected_bytes)


def test_a_run_out_of_memory_is_kept_without_a_peak(kept: tuple[Served, str]) -> None:
    """What had been reached when memory ran out is no implausibly small peak."""
    served, url = kept
    measured = {"steady_allocated_bytes": 1000, "reached_allocated_bytes": 1000}
    body = peak_body(out_of_memory=True, measured=measured)
    assert post(served, body).status_code == 200
    assert stored(url)[body["key"]].status == "accepted"
    empty = peak_body(out_of_memory=True, measured={})
    assert post(served, empty).status_code == 200


def patiently(ask: Callable[[], httpx.Response]) -> httpx.Response:
    """Ask until the answer is 200, or for 20 seconds; return the last answer."""
    deadline = time.monotonic() + 20
    while (reply := ask()).status_code != 200 and time.monotonic() < deadline:
        time.sleep(0.1)
    return reply


@contextmanager
def in_a_thread(settings: Settings) -> Iterator[httpx.Client]:
    """Run a service in a thread of this process, until it is ready, for as long as the block."""
    server = uvicorn.Server(uvicorn.Config(create_app(settings), log_config=None, ws="none"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            with httpx.Client(base_url=url, timeout=60) as client:
                assert patiently(lambda: client.get("/health/ready")).status_code == 200
                deadline = time.monotonic() + 20
                while client.get("/health/ready").json()["store"] == "opening" and time.monotonic() < deadline:
                    time.sleep(0.05)
                yield client
        finally:
            server.should_exit = True
            thread.join()


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("key", {"key": "short"}, "key"),
    ("key with spaces", {"key": "a key with spaces"}, "key"),
    ("no plan", {"plan": None}, "plan"),
    ("plan", {"plan": "fast"}, "plan"),
    ("no card", {"device": {}}, "device"),
    ("card without memory", {"device": {"name": "x"}}, "device"),
    ("nothing measured", {"measured": {}}, "measured"),
    ("only other bytes", {"measured": {"pinned_bytes": 5}}, "measured"),
    ("text", {"measured": {"steady_allocated_bytes": "5"}}, "measured.steady_allocated_bytes"),
    ("negative", {"measured": {"steady_allocated_bytes": -5}}, "measured.steady_allocated_bytes"),
    ("float", {"measured": {"steady_allocated_bytes": 5.5}}, "measured.steady_allocated_bytes"),
    ("huge", {"measured": {"steady_allocated_bytes": 1 << 60}}, "measured.steady_allocated_bytes"),
    ("many", {"measured": {f"x{i}_bytes": 1 for i in range(40)}}, "measured"),
    ("cache", {"cache": "lukewarm"}, "cache"),
    ("source", {"source": "seed"}, "source"),
    ("version", {"versions": {"torch": "2\u001b[31m"}}, "versions.torch"),
    ("architecture", {"architecture": "../etc"}, "architecture"),
    ("misspelt", {"reporter": "team-b"}, "reporter"),
    ("both", {"graph_id": "0" * 64}, "graph"),
    ("other task", {"run": {"task": "inference"}}, "run.task"),
]


@pytest.mark.parametrize(("replaced", "path"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_what_is_wrong_with_a_report_is_said(kept: tuple[Served, str], replaced: dict[str, Any], path: str) -> None:
    """Each fault is 422 with its path, and nothing of it is kept."""
    served, url = kept
    before = set(stored(url))
    detail = check(post(served, peak_body(**replaced)), ErrorCode.INVALID_REQUEST)
    assert detail["path"].startswith(path)
    assert set(stored(url)) == before


def test_the_limits_of_a_body_hold_for_peaks_too(kept: tuple[Served, str]) -> None:
    """Nesting, gzip bombs, other encodings and a broken graph end as they do for /predict."""
    served, _ = kept
    json = {**TEAM_A, "Content-Type": "application/json"}
    packed = {**json, "Content-Encoding": "gzip"}

    def send(content: bytes, headers: dict[str, str]) -> httpx.Response:
        return httpx.post(f"{served.url}/peaks", content=content, headers=headers, timeout=60)

    check(send(b"[" * 500 + b"]" * 500, json), ErrorCode.INVALID_JSON)
    check(send(gzip.compress(b" " * (64 << 20)), packed), ErrorCode.BODY_TOO_LARGE)
    check(send(b"not gzip", packed), ErrorCode.INVALID_ENCODING)
    check(send(b"{}", {**json, "Content-Type": "text/plain"}), ErrorCode.UNSUPPORTED_MEDIA_TYPE)
    detail = check(post(served, peak_body(graph={"schema": 1})), ErrorCode.INVALID_GRAPH)
    assert detail["path"].startswith("graph")


def test_who_may_report(kept: tuple[Served, str]) -> None:
    """Without a token 401, with one of another scope 403; a token for peaks alone does not predict."""
    served, _ = kept
    check(post(served, peak_body(), {}), ErrorCode.UNAUTHORIZED)
    check(post(served, peak_body(), {"Authorization": "Bearer wrong-wrong"}), ErrorCode.UNAUTHORIZED)
    check(post(served, peak_body(), SCRAPER), ErrorCode.FORBIDDEN)
    check(httpx.post(f"{served.url}/predict", json=example_request(), headers=TEAM_A), ErrorCode.FORBIDDEN)


def test_a_reporter_beyond_its_rate_is_told_when_to_come_again(tmp_path: Path) -> None:
    """The third peak within a minute is 429 where two are allowed; a repeat of the first is still answered."""
    settings = Settings(peaks_per_minute=2, store_url=SecretStr(f"sqlite:///{tmp_path / 'peaks.db'}"))
    with in_a_thread(settings) as client:
        bodies = [peak_body() for _ in range(3)]
        assert [client.post("/peaks", json=body).status_code for body in bodies[:2]] == [200, 200]
        refused = client.post("/peaks", json=bodies[2])
        check(refused, ErrorCode.QUOTA_EXCEEDED)
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert client.post("/peaks", json=bodies[0]).status_code == 200
        assert 'peakcast_peaks_total{reporter="anonymous",result="repeated"} 1.0' in client.get("/metrics").text


def test_a_service_without_a_store_says_so() -> None:
    """With PEAKCAST_STORE_URL=none there is nothing at /peaks, and predictions are answered."""
    with in_a_thread(Settings(store_url=SecretStr("none"))) as client:
        assert "none" in check(client.post("/peaks", json=peak_body()), ErrorCode.NOT_FOUND)["message"]
        assert client.get("/health/ready").json()["store"] == "off"
        assert client.post("/predict", json=example_request()).status_code == 200


def test_a_store_that_is_down_stops_no_prediction(tmp_path: Path) -> None:
    """While the store is away /peaks is 503, /predict and readiness are 200; once it is back peaks are kept again."""
    blocked = tmp_path / "folder"
    blocked.write_text("a file where the store's folder should be")
    with in_a_thread(Settings(store_url=SecretStr(f"sqlite:///{blocked / 'peaks.db'}"))) as client:
        body = peak_body()
        check(client.post("/peaks", json=body), ErrorCode.STORE_UNAVAILABLE)
        ready = client.get("/health/ready")
        assert (ready.status_code, ready.json()["store"]) == (200, "unavailable")
        assert client.post("/predict", json=example_request()).status_code == 200
        check(client.post("/predict", json={"graph_id": "0" * 64}), ErrorCode.GRAPH_UNKNOWN)
        by_id = {**example_peak(), "graph_id": "0" * 64}
        check(client.post("/peaks", json=by_id), ErrorCode.STORE_UNAVAILABLE)
        assert "peakcast_store_up 0.0" in client.get("/metrics").text
        blocked.unlink()
        reply = patiently(lambda: client.post("/peaks", json=body))
        assert reply.status_code == 200, reply.text
        assert client.get("/health/ready").json()["store"] == "ready"


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_nothing_acknowledged_is_lost_to_a_kill(kind: str, tmp_path: Path) -> None:
    """Clients report until the service is killed by SIGKILL: started again, it has every key that it acknowledged."""
    with ExitStack() as stack:
        url = stack.enter_context(a_database(kind, tmp_path))
        settings = {"store_url": url, "peaks_per_minute": 1_000_000}
        acknowledged: list[str] = []
        enough = threading.Event()
        with serving(**settings) as served:
            first = peak_body(key="the-first-of-all")
            assert post(served, first, {}).status_code == 200

            def report() -> None:
                with httpx.Client(timeout=60) as client:
                    while True:
                        key = uuid.uuid4().hex
                        try:
                            reply = client.post(f"{served.url}/peaks", json={**example_peak(), "key": key})
                        except httpx.TransportError:
                            return
                        if reply.status_code == 200:
                            acknowledged.append(key)
                        if len(acknowledged) >= 60:
                            enough.set()

            clients = [threading.Thread(target=report) for _ in range(4)]
            for client in clients:
                client.start()
            assert enough.wait(60)
            os.kill(served.process.pid, signal.SIGKILL)
            for client in clients:
                client.join()
            assert served.process.wait(timeout=30) == -signal.SIGKILL
        assert len(acknowledged) >= 60
        assert set(acknowledged) <= set(stored(url))
        with serving(**settings) as served:
            # The same reply to a key of before the kill, and new ones are taken.
            assert post(served, first, {}).json()["stored"] is True
            assert post(served, peak_body(), {}).status_code == 200
        assert len(stored(url)) >= len(acknowledged) + 2
