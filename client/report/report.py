"""Reports measured peaks to a service, off the training thread, which it never stops, slows or changes."""

from __future__ import annotations

import atexit
import logging
import os
import sqlite3
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import orjson

from peakcast.client.http import endpoint_url
from peakcast.client.report.queue import ReportQueue
from peakcast.client.report.sender import Outcome, Sender
from peakcast.featurizer.run import DeviceSpec, RunSpec
from peakcast.featurizer.spec import GraphSpec
from peakcast.models.asked import settled_run

_log = logging.getLogger("peakcast")

# Waiting for the thread to write them down; it takes milliseconds for each.
_IN_MEMORY: Final = 256
# After a failure to send: doubled from the first to the longest.
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
# Other processes are sending what is left; one of them may die over it.
_OTHERS_PAUSE_S: Final = 2.0
# How long a program that ends without `close` waits for what it still has.
_AT_EXIT_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakReport:
    """One run of a graph under a plan, as it was measured.

    Args:
        graph: the captured step; its source lines are not sent.
        device: the card it ran on.
        plan: the plan it ran under.
        measured: bytes by quantity: `steady_allocated_bytes` and so on, at least one unless it ran out of memory.
        cache: the compiler's cache before the first step; "cold" for eager plans.
        run: the run the graph was captured from; fields left out: as the graph says.
        out_of_memory: whether the run ended so; `measured` is then what it had reached.
        source: measured on the card, or replayed from the compiler's buffer plan.
        versions: torch, cuda, driver, ... as text; torch left out: as the graph says.
        architecture: the model's class, where its owner wants to say.
        key: what the service knows the report by, however often it is sent.
    """

    graph: GraphSpec
    device: DeviceSpec
    plan: str
    measured: Mapping[str, int]
    cache: Literal["cold", "warm"]
    run: RunSpec | None = None
    out_of_memory: bool = False
    source: Literal["measured", "replayed"] = "measured"
    versions: Mapping[str, str] = field(default_factory=dict)
    architecture: str | None = None
    key: str = field(default_factory=lambda: uuid.uuid4().hex)

    def to_fields(self) -> dict[str, Any]:
        """Return the body of `POST /peaks`, without the graph."""
        torch = self.graph.captured_with.get("torch")
        fields: dict[str, Any] = {
            "key": self.key,
            # Whole, since the service may know the graph from somebody who captured another run of it.
            "run": settled_run(self.graph, self.run).model_dump(),
            "device": self.device.model_dump(),
            "plan": self.plan,
            "measured": dict(self.measured),
            "out_of_memory": self.out_of_memory,
            "cache": self.cache,
            "source": self.source,
            "versions": {**({} if torch is None else {"torch": torch}), **self.versions},
        }
        if self.architecture is not None:
            fields["architecture"] = self.architecture
        return fields


def _without_lines(graph: GraphSpec) -> bytes:
    return graph.redacted().to_json()


class Reporter:
    """Send reports to one server. `report` takes microseconds; everything else is done by a thread of its own.

    Reports lie in a file until the server has them. Processes of one host may share the file, one for each server; what
    a killed process left is sent by the next that uses it, or by `peakcast report --flush`.

    Args:
        server: base URL, for instance `http://peakcast:8400`.
        queue_path: the file on a local disk.
        token: bearer token; default: the environment's PEAKCAST_TOKEN.
        request_timeout_s: bounds each report's sending, retries included.

    Raises:
        ValueError: if `server` is no HTTP URL. Nothing else is raised, here or later: what fails is counted in
            `counts` (sent, refused, dropped, failed) and logged once.
    """

    def __init__(
        self, server: str, *, queue_path: Path | str, token: str | None = None, request_timeout_s: float = 10.0
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._queue = ReportQueue(Path(queue_path))
        url = endpoint_url(server, "/peaks")
        token = token or os.environ.get("PEAKCAST_TOKEN")
        self._sender = Sender(self._queue, url, token=token)
        self._request_timeout_s = request_timeout_s
        self._warned: set[str] = set()
        self._closed = False
        self._deadline_s: float | None = None
        self._start()
        atexit.register(self.close, _AT_EXIT_S)

    def report(self, report: PeakReport) -> None:
        """Take a report, and return at once. Never raises."""
        if self._closed:
            self._note("dropped", "a report came after close()")
            return
        if os.getpid() != self._pid:  # a fork has no thread, and its copy of what waits is the parent's to send
            self._start()
        if len(self._waiting) >= _IN_MEMORY:
            self._note("dropped", f"{_IN_MEMORY} reports wait to be written down")
            return
        self._waiting.append(report)
        self._wake.set()

    def close(self, timeout_s: float = 5.0) -> None:
        """Send what there is within the time, leave the rest in the file, and end the thread. May be called again."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        if os.getpid() != self._pid:
            return
        self._deadline_s = time.monotonic() + timeout_s
        self._wake.set()
        self._write_down()  # the thread may be waiting for a server's answer
        self._thread.join(timeout_s)

    def _start(self) -> None:
        self._pid = os.getpid()
        self._waiting: deque[PeakReport] = deque()
        self._wake = threading.Event()
        self._wake.set()  # an earlier process may have left something
        self._thread = threading.Thread(target=self._run, name="peakcast-report", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        pause_s, next_try_s = 0.0, 0.0
        wait_s: float | None = None
        while self._deadline_s is None:
            self._wake.wait(wait_s)
            self._wake.clear()
            self._write_down()
            wait_s = next_try_s - time.monotonic()
            if wait_s > 0:
                continue
            if self._send() is Outcome.LATER:
                pause_s = min(max(pause_s * 2, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
                next_try_s = time.monotonic() + pause_s
                wait_s = pause_s
            else:
                pause_s = 0.0
                wait_s = _OTHERS_PAUSE_S if self._left() else None
        self._write_down()
        self._send()

    def _write_down(self) -> None:
        while True:
            try:
                report = self._waiting.popleft()
            except IndexError:
                return
            try:
                graph = report.graph
                fields = orjson.dumps(report.to_fields())
                dropped = self._queue.put(report.key, fields, graph.graph_id, partial(_without_lines, graph))
            except Exception as error:  # noqa: BLE001 - a report is never worth a training
                self._note("dropped", f"{self._queue.path}: {type(error).__name__}: {error}")
                continue
            if dropped:
                self._note("dropped", f"{self._queue.path} is full: the oldest are left out", dropped)

    def _send(self) -> Outcome:
        """Send until nothing is left, the server wants a pause, or the time of `close` is over."""
        while True:
            timeout_s = self._request_timeout_s
            if self._deadline_s is not None:
                timeout_s = min(timeout_s, self._deadline_s - time.monotonic())
                if timeout_s <= 0:
                    return Outcome.LATER
            try:
                outcome, problem = self._sender.send_one(timeout_s)
            except Exception as error:  # noqa: BLE001 - as above
                outcome, problem = Outcome.LATER, f"{type(error).__name__}: {error}"
            if outcome is Outcome.SENT:
                self.counts["sent"] += 1
            elif outcome is Outcome.REFUSED:
                self._note("refused", problem)
            elif outcome is Outcome.LATER:
                self._note("failed", problem)
            if outcome in {Outcome.LATER, Outcome.NOTHING}:
                return outcome
            self._write_down()

    def _left(self) -> int:
        try:
            return len(self._queue)
        except (OSError, sqlite3.Error):
            return 0

    def _note(self, what: str, problem: str, count: int = 1) -> None:
        self.counts[what] += count
        if what not in self._warned:
            self._warned.add(what)
            _log.warning("reports of peaks %s: %s (further ones are only counted)", what, problem)
