"""Reports reach a real service exactly once: past its absence, killed clients, and ranks that share a queue."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import uvicorn
from pydantic import SecretStr
from reported import GRAPH
from typer.testing import CliRunner

from peakcast.cli import app
from peakcast.client.graph_file import read_graph
from peakcast.client.report.queue import ReportQueue
from peakcast.client.report.report import PeakReport, Reporter
from peakcast.featurizer.run import DeviceSpec, RunSpec
from peakcast.service.app import create_app
from peakcast.service.examples import example_peak
from peakcast.service.settings import Settings
from peakcast.service.store.peak_store import PeakStore
from peakcast.service.store.review import Review

DATA = Path(__file__).parents[2] / "data"
DEVICE = DeviceSpec(name="NVIDIA H200", total_bytes=150_754_820_096)


def a_report(**replaced: Any) -> PeakReport:
    """Return a report of the example graph."""
    fields: dict[str, Any] = {
        "graph": GRAPH,
        "device": DEVICE,
        "plan": "eager",
        "measured": example_peak()["measured"],
        "cache": "cold",
    }
    return PeakReport(**(fields | replaced))


@pytest.fixture
def port() -> int:
    """Give a port that nobody listens on yet."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@contextmanager
def a_service(port: int, store: Path, **settings: Any) -> Iterator[None]:
    """Serve on a port, in a thread of this process, for as long as the block."""
    own = Settings(store_url=SecretStr(f"sqlite:///{store}"), state_dir=store.parent, **settings)
    server = uvicorn.Server(uvicorn.Config(create_app(own), port=port, log_config=None, ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_for(lambda: server.started)
        yield
    finally:
        server.should_exit = True
        thread.join()


def wait_for(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.02)


def stored_keys(store: Path) -> list[str]:
    """Return the keys that a service's store has."""
    opened = PeakStore.open(f"sqlite:///{store}")
    try:
        return sorted(peak.key for peak in Review(opened).peaks(limit=10_000))
    finally:
        opened.close()


def test_reports_made_while_the_service_is_down_arrive_once_it_is_up(port: int, tmp_path: Path) -> None:
    """Nothing is lost or doubled, the graph is sent once, and the training thread waits for none of it."""
    # Not the example graph: that one a service knows from its own warm-up.
    graph = read_graph(DATA / "mlp.json.xz")
    reports = [a_report(graph=graph, run=RunSpec(task="training")) for _ in range(20)]
    reporter = Reporter(f"http://127.0.0.1:{port}", queue_path=tmp_path / "queue.db", request_timeout_s=1)
    started = time.perf_counter()
    for report in reports:
        reporter.report(report)
    assert time.perf_counter() - started < 0.1
    wait_for(lambda: reporter.counts["failed"] >= 1)
    with a_service(port, tmp_path / "peaks.db"):
        wait_for(lambda: reporter.counts["sent"] == 20)
        reporter.close()
        page = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    assert stored_keys(tmp_path / "peaks.db") == sorted(report.key for report in reports)
    # The first try without the graph was refused; every other one named it by its id.
    assert 'peakcast_errors_total{code="graph_unknown"} 1.0' in page
    assert 'result="repeated"' not in page
    assert len(ReportQueue(tmp_path / "queue.db")) == 0


# What a training process does, with nothing imported that it would not import.
_CLIENT = """
import os, sys, time
from pathlib import Path
from peakcast.client.graph_file import read_graph
from peakcast.client.report.report import PeakReport, Reporter
from peakcast.featurizer.run import DeviceSpec

graph_file, server, queue, name = sys.argv[1:]
graph = read_graph(Path(graph_file))
device = DeviceSpec(name="NVIDIA H200", total_bytes=150_754_820_096)
measured = {"steady_allocated_bytes": 1_495_623_680}

def a_report(key):
    return PeakReport(key=key, graph=graph, device=device, plan="eager", measured=measured, cache="cold")

reporter = Reporter(server, queue_path=queue)
"""
_SLEEPER = """
for i in range(8):
    reporter.report(a_report(f"{name}-report-{i}"))
print("reported", flush=True)
time.sleep(60)
"""
_FORKER = """
reporter.report(a_report("of-the-parent"))
child = os.fork()
reporter.report(a_report("of-the-child-1" if child == 0 else "of-the-parent-2"))
reporter.close(timeout_s=20)
if child == 0:
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def command_of(script: str, server: str, queue: Path, name: str) -> list[str]:
    """Return the command that runs a client process."""
    return [sys.executable, "-c", _CLIENT + script, str(DATA / "mlp.json.xz"), server, str(queue), name]


def sleepers(server: str, queue: Path, names: list[str]) -> list[subprocess.Popen[str]]:
    """Start processes that report eight peaks each and then sleep; return once they have reported."""
    started = [
        subprocess.Popen(command_of(_SLEEPER, server, queue, name), stdout=subprocess.PIPE, text=True) for name in names
    ]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "reported\n"
    return started


def test_what_a_killed_client_left_is_sent_by_the_next(port: int, tmp_path: Path) -> None:
    """A process killed before the service was up leaves its reports in the file; a new one sends them, once each."""
    queue = tmp_path / "queue.db"
    server = f"http://127.0.0.1:{port}"
    (process,) = sleepers(server, queue, ["killed"])
    wait_for(lambda: len(ReportQueue(queue)) == 8)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    # Its lease on the report it was just sending ends by itself; here the clock is told so.
    with sqlite3.connect(queue) as db:
        db.execute("UPDATE reports SET leased_until_s = 1")
    db.close()
    with a_service(port, tmp_path / "peaks.db"):
        reporter = Reporter(server, queue_path=queue)
        wait_for(lambda: reporter.counts["sent"] == 8)
        reporter.close()
    assert stored_keys(tmp_path / "peaks.db") == [f"killed-report-{i}" for i in range(8)]


def test_ranks_share_a_queue(port: int, tmp_path: Path) -> None:
    """Three processes with one file: every report of each arrives, and none is sent twice."""
    with a_service(port, tmp_path / "peaks.db"):
        server = f"http://127.0.0.1:{port}"
        ranks = sleepers(server, tmp_path / "queue.db", [f"rank{rank}" for rank in range(3)])
        wait_for(lambda: len(stored_keys(tmp_path / "peaks.db")) == 24)
        for process in ranks:
            process.kill()
            process.communicate()
        page = httpx.get(f"{server}/metrics").text
    assert stored_keys(tmp_path / "peaks.db") == sorted(f"rank{rank}-report-{i}" for rank in range(3) for i in range(8))
    assert 'result="repeated"' not in page


def test_a_wrong_report_is_dropped_and_those_behind_it_arrive(
    port: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What the service refuses for good leaves the queue, with one warning however many there are."""
    with a_service(port, tmp_path / "peaks.db"), caplog.at_level(logging.WARNING, "peakcast"):
        reporter = Reporter(f"http://127.0.0.1:{port}", queue_path=tmp_path / "queue.db")
        for _ in range(3):
            reporter.report(a_report(measured={}))
        reporter.report(a_report(key="the-good-one"))
        reporter.report(a_report(plan="no such plan", measured={"steady_allocated_bytes": "text"}))
        wait_for(lambda: reporter.counts["sent"] + reporter.counts["refused"] == 5)
        reporter.close()
    assert dict(reporter.counts) == {"sent": 1, "refused": 4}
    assert stored_keys(tmp_path / "peaks.db") == ["the-good-one"]
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "peakcast"]
    assert "measured" in warning


@pytest.mark.parametrize("token", [None, "wrong-token"])
def test_reports_wait_for_a_token_to_be_put_right(token: str | None, port: int, tmp_path: Path) -> None:
    """A refused token costs no report: with the right one they arrive."""
    with a_service(port, tmp_path / "peaks.db", token=SecretStr("right-token")):
        server = f"http://127.0.0.1:{port}"
        reporter = Reporter(server, queue_path=tmp_path / "queue.db", token=token)
        reporter.report(a_report(key="needs-a-token"))
        wait_for(lambda: reporter.counts["failed"] >= 1)
        reporter.close(timeout_s=0.2)
        assert len(ReportQueue(tmp_path / "queue.db")) == 1
        right = Reporter(server, queue_path=tmp_path / "queue.db", token="right-token")  # noqa: S106 - of this test
        wait_for(lambda: right.counts["sent"] == 1)
        right.close()


def test_no_disk_and_no_sense_never_reach_the_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A queue that cannot be written and a report that is none are counted and logged once; nothing is raised."""
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    with caplog.at_level(logging.WARNING, "peakcast"):
        reporter = Reporter("http://127.0.0.1:9", queue_path=blocked / "queue.db")
        reporter.report(a_report())
        reporter.report("nonsense")  # type: ignore[arg-type]
        wait_for(lambda: reporter.counts["dropped"] == 2)
        reporter.close(timeout_s=1)
        reporter.report(a_report())
    assert reporter.counts["dropped"] == 3
    assert sum("dropped" in record.getMessage() for record in caplog.records) == 1


def test_a_server_that_never_answers_holds_nobody(tmp_path: Path) -> None:
    """With a server that takes connections and says nothing, close() ends in its time and the report stays."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = f"http://127.0.0.1:{silent.getsockname()[1]}"
        reporter = Reporter(server, queue_path=tmp_path / "queue.db", request_timeout_s=5)
        reporter.report(a_report(key="in-the-post"))
        wait_for(lambda: len(ReportQueue(tmp_path / "queue.db")) == 1)
        time.sleep(0.2)
        reporter.report(a_report(key="made-meanwhile"))
        started = time.monotonic()
        reporter.close(timeout_s=0.3)
        assert time.monotonic() - started < 2
        assert len(ReportQueue(tmp_path / "queue.db")) == 2


def test_an_answer_of_something_else_is_no_receipt(port: int, tmp_path: Path) -> None:
    """A page that says 200 to everything does not make a report count as sent."""

    async def anything(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"<html>please log in</html>"})

    server = uvicorn.Server(uvicorn.Config(anything, port=port, log_config=None, lifespan="off", ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_for(lambda: server.started)
        reporter = Reporter(f"http://127.0.0.1:{port}", queue_path=tmp_path / "queue.db")
        reporter.report(a_report())
        wait_for(lambda: reporter.counts["failed"] >= 1)
        reporter.close(timeout_s=0.1)
    finally:
        server.should_exit = True
        thread.join()
    assert reporter.counts["sent"] == 0
    assert len(ReportQueue(tmp_path / "queue.db")) == 1


def test_a_forked_child_reports_for_itself(port: int, tmp_path: Path) -> None:
    """A child that inherited the reporter has its own thread: its report arrives, the parent's is not sent again."""
    with a_service(port, tmp_path / "peaks.db"):
        command = command_of(_FORKER, f"http://127.0.0.1:{port}", tmp_path / "queue.db", "forker")
        subprocess.run(command, check=True, timeout=60)
        wait_for(lambda: len(stored_keys(tmp_path / "peaks.db")) == 3)
    assert stored_keys(tmp_path / "peaks.db") == ["of-the-child-1", "of-the-parent", "of-the-parent-2"]


def test_the_command_sends_what_is_left(port: int, tmp_path: Path) -> None:
    """`peakcast report --flush` exits with 1 while the service is away, and with 0 once all is sent."""
    queue = ReportQueue(tmp_path / "queue.db")
    for i in range(3):
        report = a_report(key=f"left-over-{i}")
        queue.put(report.key, orjson.dumps(report.to_fields()), GRAPH.graph_id, GRAPH.to_json)
    command = ["report", "--flush", str(queue.path), "--server", f"http://127.0.0.1:{port}", "--json"]
    away = CliRunner().invoke(app, [*command, "--timeout", "0.5"])
    assert away.exit_code == 1
    assert orjson.loads(away.stdout)["left"] == 3
    with a_service(port, tmp_path / "peaks.db"):
        sent = CliRunner().invoke(app, command)
    # The service logs to the same place: it runs in this process.
    (document,) = [orjson.loads(line) for line in sent.stdout.splitlines() if line.startswith("{")]
    assert (sent.exit_code, document) == (0, {"sent": 3, "refused": 0, "left": 0, "problem": ""})
    assert stored_keys(tmp_path / "peaks.db") == [f"left-over-{i}" for i in range(3)]


def test_a_full_queue_drops_the_oldest(tmp_path: Path) -> None:
    """Beyond its bounds the newest reports stay, and graphs that no report needs are gone."""
    queue = ReportQueue(tmp_path / "queue.db", max_reports=3)
    dropped = [queue.put(f"key-{i}", b"{}", f"graph-{i}", lambda: b"graph") for i in range(5)]
    assert dropped == [0, 0, 0, 1, 1]
    assert [queue.take().key for _ in range(3)] == ["key-2", "key-3", "key-4"]  # type: ignore[union-attr]
    with pytest.raises(KeyError):
        queue.graph("graph-1")
    assert queue.graph("graph-2") == b"graph"
    small = ReportQueue(tmp_path / "small.db", max_bytes=250)
    assert [small.put(f"key-{i}", bytes(100), "graph", lambda: b"") for i in range(4)] == [0, 0, 1, 1]


def test_a_report_taken_is_left_alone_until_its_lease_ends(tmp_path: Path) -> None:
    """Nobody else takes it meanwhile; a killed sender's is free afterwards, and so it is when the clock is set back."""
    now_s = 1000.0
    queue = ReportQueue(tmp_path / "queue.db", lease_s=30, clock_s=lambda: now_s)
    queue.put("the-key-1", b"{}", "graph", lambda: b"graph")
    first = queue.take()
    assert first is not None
    assert first.tries == 0
    assert queue.take() is None
    now_s = 1029.9
    assert queue.take() is None
    now_s = 1030.1
    again = queue.take()
    assert again is not None
    assert again.tries == 1
    now_s = 500.0
    assert queue.take() is not None
    queue.give_back("the-key-1")
    assert queue.take() is not None
    queue.remove("the-key-1")
    assert len(queue) == 0


def test_a_damaged_file_is_put_aside(tmp_path: Path) -> None:
    """What is no database is renamed, kept, and a new queue begun."""
    path = tmp_path / "queue.db"
    path.write_bytes(b"this is no database, but long enough to look like one" * 100)
    queue = ReportQueue(path)
    queue.put("the-key-1", b"{}", "graph", lambda: b"graph")
    assert len(queue) == 1
    assert [file.name for file in tmp_path.glob("*.damaged")] == [f"queue.db.{os.getpid()}.damaged"]
