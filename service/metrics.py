"""The service's Prometheus metrics, in a registry of their own. docs/SERVICE.md lists them, by test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

# From a held graph's repeat (1 ms) over the target of 200 ms to a graph at the node limit.
_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_BYTES: Final = tuple(4.0**power * 1024 for power in range(9))
# Measured over expected: most lie within a few per cent, and an out-of-memory error begins above the bound.
_RATIOS: Final = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 1.0, 1.01, 1.02, 1.05, 1.1, 1.25, 2.0)
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Metrics:
    """Every metric of one app. Labels come from fixed sets only: nothing a caller sends becomes a label."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = self._counter(
            "peakcast_requests_total", "Replies by route template, method and status.", "route", "method", "status"
        )
        self.request_seconds = self._histogram(
            "peakcast_request_seconds", "Time from request to the end of the reply.", _SECONDS, "route"
        )
        self.errors = self._counter("peakcast_errors_total", "Error replies by code.", "code")
        self.pending = self._gauge("peakcast_pending_requests", "Requests to /predict held now, waiting included.")
        self.pending_bytes = self._gauge("peakcast_pending_body_bytes", "Bytes of all bodies held now.")
        self.pending_peaks = self._gauge("peakcast_pending_peaks", "Requests to /peaks held now, waiting included.")
        self.body_bytes = self._histogram("peakcast_body_bytes", "Body sizes, decompressed.", _BYTES)
        self.predict_seconds = self._histogram(
            "peakcast_predict_seconds", "Time to validate, featurize and predict one request.", _SECONDS
        )
        self.decisions = self._counter("peakcast_decisions_total", "Decisions by action.", "action")
        self.plans = self._counter("peakcast_plans_total", "Predicted plans by confidence.", "confidence")
        self.cache_lookups = self._counter(
            "peakcast_graph_cache_lookups_total",
            "Lookups by graph_id: graph and answer held (answer), graph held (graph), or neither (miss).",
            "result",
        )
        self.cache_graphs = self._gauge("peakcast_graph_cache_graphs", "Graphs held by id.")
        self.cache_bytes = self._gauge("peakcast_graph_cache_bytes", "Memory of the graphs held by id.")
        self.peaks_received = self._counter(
            "peakcast_peaks_received_total",
            "Requests to /peaks by reporter: named by a token, or anonymous.",
            "reporter",
        )
        self.peaks = self._counter(
            "peakcast_peaks_total",
            "Reported peaks by what became of them and by reporter: accepted, quarantined, repeated or refused.",
            "result",
            "reporter",
        )
        self.peak_ratio = self._histogram(
            "peakcast_peak_ratio", "Accepted measured peaks over what the model in use expects.", _RATIOS, "quantity"
        )
        self.peaks_above_bound = self._counter(
            "peakcast_peaks_above_bound_total",
            "Accepted measured peaks above the bound at risk 0.01 of the model in use.",
            "quantity",
        )
        self.store_up = self._gauge("peakcast_store_up", "1 while the store of peaks answers.")
        self.ready = self._gauge("peakcast_ready", "1 once the artefact is verified and a warm-up prediction ran.")
        self.model = self._gauge("peakcast_model_info", "1 for the model version in use.", "version")

    def observe_request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count one finished request. `route` is its template, never its path."""
        self.requests.labels(route, method if method in _METHODS else "other", str(status)).inc()
        self.request_seconds.labels(route).observe(seconds)

    def exposition(self) -> bytes:
        """Return the text that Prometheus scrapes."""
        return generate_latest(self.registry)

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(name, what, labels, registry=self.registry)

    def _gauge(self, name: str, what: str, *labels: str) -> Gauge:
        return Gauge(name, what, labels, registry=self.registry)

    def _histogram(self, name: str, what: str, buckets: Sequence[float], *labels: str) -> Histogram:
        return Histogram(name, what, labels, registry=self.registry, buckets=buckets)
