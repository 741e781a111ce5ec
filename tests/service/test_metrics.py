"""`GET /metrics` of a running service."""

from __future__ import annotations

from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families


def samples(http: httpx.Client) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return every sample by name and labels."""
    families = text_string_to_metric_families(http.get("/metrics").text)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def key(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    """Return the key of one sample."""
    return name, frozenset(labels.items())


def test_requests_are_counted_by_template_method_and_status(http: httpx.Client, request_body: dict[str, Any]) -> None:
    """Three predictions, one of them by id, and two paths nobody has, count as what they are."""
    before = samples(http)
    graph_id = http.post("/predict", json=request_body).json()["graph_id"]
    by_id = {"graph_id": graph_id, "plans": request_body["plans"], "device": request_body["device"]}
    http.post("/predict", json=by_id)
    http.post("/predict", json={"graph_id": "0" * 64})
    http.get("/secret/one")
    http.get("/secret/two")
    http.request("BREW", "/predict")
    after = samples(http)

    def grown(name: str, **labels: str) -> float:
        return after.get(key(name, **labels), 0) - before.get(key(name, **labels), 0)

    assert grown("peakcast_requests_total", route="/predict", method="POST", status="200") == 2
    assert grown("peakcast_requests_total", route="/predict", method="POST", status="404") == 1
    assert grown("peakcast_requests_total", route="unmatched", method="GET", status="404") == 2
    assert grown("peakcast_requests_total", route="/predict", method="other", status="405") == 1
    assert grown("peakcast_errors_total", code="graph_unknown") == 1
    assert grown("peakcast_errors_total", code="not_found") == 2
    assert grown("peakcast_graph_cache_lookups_total", result="miss") == 1
    assert (
        grown("peakcast_decisions_total", action="compile") + grown("peakcast_decisions_total", action="fall_back") == 2
    )
    assert after[key("peakcast_graph_cache_graphs")] == 1
    assert after[key("peakcast_pending_requests")] == 0
    assert after[key("peakcast_pending_body_bytes")] == 0
    assert after[key("peakcast_ready")] == 1
    assert not any("secret" in str(labels) for _, labels in after)


def test_the_process_reports_its_memory(http: httpx.Client) -> None:
    """The process's own numbers are there for the dashboards."""
    assert samples(http)[key("process_resident_memory_bytes")] > 10_000_000
