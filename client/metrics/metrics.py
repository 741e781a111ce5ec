"""The client's Prometheus metrics, in a registry of their own. docs/METRICS.md lists them, by test.

`CLIENT` is the process's own set; `serve` and `write_textfile` publish it. Observing never raises and never blocks.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, get_args

from prometheus_client import CollectorRegistry, Counter, Enum, Gauge, Histogram, start_http_server, write_to_textfile

from peakcast.client.circuit import State
from peakcast.client.metrics.memory_pressure import MemoryPressure
from peakcast.featurizer.plans import parse_plan

if TYPE_CHECKING:
    from peakcast.client.recompiles.compile_log import Compile

_log = logging.getLogger(__name__)

# 800 is where the alert lies; a cold compile of 5,000 nodes takes minutes.
_COMPILE_MS: Final = (10, 25, 50, 100, 200, 400, 800, 1600, 5000, 15_000, 60_000, 180_000, 600_000)
# Measured over expected: fine around 1, where predictions are right to a fraction of a per cent.
_RATIO: Final = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 1.0, 1.005, 1.01, 1.02, 1.05, 1.1, 1.25, 2.0)
# From a graph seen before (2 ms) to the budget of an ask (500 ms) and beyond it.
_ASK_S: Final = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 30.0)

# Labels come from these sets only; anything else counts as "other".
CONFIDENCES: Final = ("in_distribution", "extrapolating", "unknown")
ACTIONS: Final = ("compile", "fall_back", "refuse")
CAUSES: Final = ("prediction", "second_look", "out_of_memory", "slow", "other_ranks")
OUTCOMES: Final = ("rescued", "memory_not_returned", "not_repeatable", "nothing_smaller")
FAILURES: Final = ("unreachable", "server_error", "circuit_open", "bad_answer")
COMPILERS: Final = ("eager", "inductor", "hybrid")


class ClientMetrics:
    """Every metric of one process.

    Args:
        pressure: tells the memory pressure index, 0 to 100, when somebody scrapes; default: of this process.
    """

    def __init__(self, *, pressure: Callable[[], float] | None = None) -> None:
        self.registry = CollectorRegistry()
        self._memory = MemoryPressure()
        self._compile_ms = self._histogram("ir_compilation_duration_ms", "Time of one compile of a graph.", _COMPILE_MS)
        self._nodes = self._gauge("graph_node_count", "Nodes of the graph compiled last.")
        self._pressure = self._gauge(
            "memory_pressure_index", "Memory use times collector activity, 0 to 100 (docs/METRICS.md)."
        )
        self._pressure.set_function(pressure or self._memory.index)
        self._recompiles = self._counter("peakcast_client_recompiles_total", "Compiles of a frame compiled before.")
        self._gave_up = self._counter(
            "peakcast_client_recompile_limits_total", "Frames that reached Dynamo's limit and run eager since."
        )
        self._slope = self._gauge("peakcast_client_live_bytes_per_step", "Growth of the bytes alive, per step.")
        self._predictions = self._counter(
            "peakcast_client_predictions_total", "Predictions by the confidence of the plan chosen.", "confidence"
        )
        self._decisions = self._counter("peakcast_client_decisions_total", "Decisions by action.", "action")
        self._fall_backs = self._counter("peakcast_client_fall_backs_total", "Plans given up, by cause.", "cause")
        self._rescues = self._counter(
            "peakcast_client_rescues_total", "Steps that ran out of memory, by how that ended.", "outcome"
        )
        self._error = self._histogram(
            "peakcast_client_prediction_error_ratio", "Measured over expected peak, by compiler.", _RATIO, "compiler"
        )
        self._above = self._counter(
            "peakcast_client_bounds_exceeded_total",
            "Measured peaks above the predicted upper bound, by compiler.",
            "compiler",
        )
        self._ask_s = self._histogram("peakcast_client_ask_seconds", "Time of one ask that was answered.", _ASK_S)
        self._ask_failures = self._counter(
            "peakcast_client_ask_failures_total", "Asks without an answer, by reason.", "reason"
        )
        self._circuit = Enum(
            "peakcast_client_circuit",
            "State of the circuit breaker around the service.",
            states=list(get_args(State)),
            registry=self.registry,
        )

    def observe_compile(self, compiled: Compile) -> None:
        """Take in what a `RecompileWatch` tells: hand it this method as `on_compile`."""
        if compiled.gave_up:
            self._gave_up.inc()
            return
        self._compile_ms.observe(compiled.duration_ms)
        if compiled.graph_nodes:
            self._nodes.set(compiled.graph_nodes)
        if compiled.recompile:
            self._recompiles.inc()

    def observe_slope(self, bytes_per_step: float) -> None:
        """Take in how fast the bytes alive grow."""
        self._slope.set(bytes_per_step)

    def observe_prediction(self, confidence: str) -> None:
        """Count a prediction by the confidence of the plan chosen."""
        self._predictions.labels(_known(confidence, CONFIDENCES)).inc()

    def observe_decision(self, action: str) -> None:
        """Count a decision: compile, fall_back or refuse."""
        self._decisions.labels(_known(action, ACTIONS)).inc()

    def observe_fall_back(self, cause: str) -> None:
        """Count a plan given up for one that needs less, by one of `CAUSES`."""
        self._fall_backs.labels(_known(cause, CAUSES)).inc()

    def observe_rescue(self, outcome: str) -> None:
        """Count a step that ran out of memory, by one of `OUTCOMES`."""
        self._rescues.labels(_known(outcome, OUTCOMES)).inc()

    def observe_peak(self, plan: str, *, expected_bytes: int, upper_bytes: int, measured_bytes: int) -> None:
        """Compare a measured peak with its prediction."""
        try:
            compiler: str = parse_plan(plan).compiler
        except ValueError:
            compiler = "other"
        if expected_bytes > 0:
            self._error.labels(compiler).observe(measured_bytes / expected_bytes)
        if measured_bytes > upper_bytes:
            self._above.labels(compiler).inc()

    def observe_answer(self, elapsed_s: float) -> None:
        """Take in the time of an ask that was answered."""
        self._ask_s.observe(elapsed_s)

    def observe_ask_failure(self, reason: str) -> None:
        """Count an ask without an answer, by one of `FAILURES`."""
        self._ask_failures.labels(_known(reason, FAILURES)).inc()

    def observe_circuit(self, state: State) -> None:
        """Take in the state of the circuit breaker."""
        self._circuit.state(state)

    def serve(self, port: int, *, address: str = "127.0.0.1") -> Callable[[], None]:
        """Serve the metrics at `http://address:port/metrics` from a thread; return a function that stops it.

        Of several ranks on one host each needs a port of its own: give `port + local_rank`.

        Raises:
            OSError: if the port is taken.
        """
        self._memory.start()
        server, thread = start_http_server(port, address, self.registry)

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return stop

    def write_textfile(self, path: str | os.PathLike[str], *, every_s: float = 15.0) -> Callable[[], None]:
        """Write the metrics to a file now and every so many seconds, whole or not at all, for the node exporter.

        Returns a function that writes a last time and stops. Later failures are told once in the log.

        Raises:
            ValueError: if the path does not end in `.prom`, the exporter's suffix, or `every_s` is not above 0.
            OSError: if the file cannot be written now.
        """
        if Path(path).suffix != ".prom":
            raise ValueError(f"a textfile's name must end in .prom, got {os.fspath(path)!r}")
        if not every_s > 0:
            raise ValueError(f"every_s must be above 0, got {every_s:g}")
        self._memory.start()
        write_to_textfile(os.fspath(path), self.registry)
        stopping = threading.Event()

        def write() -> None:
            told = False
            while True:
                last = stopping.wait(every_s)
                try:
                    write_to_textfile(os.fspath(path), self.registry)
                except OSError as error:
                    if not told:
                        _log.warning("metrics are not written: %s", error)
                    told = True
                if last:
                    return

        thread = threading.Thread(target=write, name="peakcast-metrics", daemon=True)
        thread.start()

        def stop() -> None:
            stopping.set()
            thread.join()

        return stop

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(name, what, labels, registry=self.registry)

    def _gauge(self, name: str, what: str) -> Gauge:
        return Gauge(name, what, registry=self.registry)

    def _histogram(self, name: str, what: str, buckets: Sequence[float], *labels: str) -> Histogram:
        return Histogram(name, what, labels, registry=self.registry, buckets=buckets)


def _known(value: str, allowed: tuple[str, ...]) -> str:
    return value if value in allowed else "other"


CLIENT: Final = ClientMetrics()
