"""Peaks as they are reported: of the example graph, true by default."""

from __future__ import annotations

import hashlib
import uuid
from typing import Any

import orjson

from peakcast.featurizer.spec import GraphSpec
from peakcast.service.examples import example_peak, example_request
from peakcast.service.store.agreement import configuration_of
from peakcast.service.store.peak_store import NewPeak, PeakStore
from peakcast.service.store.quota import Quota

GRAPH = GraphSpec.from_json(example_request()["graph"])
ROOM = Quota(peaks_per_minute=1_000_000, max_peaks=1_000_000, max_graph_bytes=1 << 30, share=1.0)


def new_peak(**replaced: Any) -> NewPeak:
    """Return a checked peak for the store, with a key of its own."""
    example = example_peak()
    fields: dict[str, Any] = {
        "key": uuid.uuid4().hex,
        "reporter": "team-a",
        "graph_id": GRAPH.graph_id,
        "graph_json": GRAPH.to_json(),
        "plan": "eager",
        "run": {"task": "training", "optimizer": "SGD"},
        "device": example["device"],
        "measured": example["measured"],
        "prior": {"steady_allocated": 68_354_560},
        "versions": example["versions"],
        "out_of_memory": False,
        "cache": "cold",
        "source": "measured",
        "architecture": "SmallNetwork",
        "reason": "",
    } | replaced
    content = {key: value for key, value in fields.items() if key not in {"key", "graph_json", "reporter", "reason"}}
    fields.setdefault("content_sha256", hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest())
    fields.setdefault(
        "configuration",
        configuration_of(
            graph_id=fields["graph_id"],
            run=fields["run"],
            device_name=fields["device"]["name"],
            plan=fields["plan"],
            cache=fields["cache"],
            source=fields["source"],
            out_of_memory=fields["out_of_memory"],
            torch_version=fields["versions"].get("torch", ""),
        ),
    )
    return NewPeak(**fields)


def peak_body(**replaced: Any) -> dict[str, Any]:
    """Return a body of `POST /peaks` with its graph and a key of its own."""
    body = {**example_peak(), "graph": example_request()["graph"], "key": uuid.uuid4().hex}
    del body["graph_id"]
    return body | replaced


def write_in_a_process(url: str, number: int, count: int) -> None:
    """Open the store, whose tables may not be there yet, and add peaks."""
    store = PeakStore.open(url, timeout_s=30)
    for i in range(count):
        store.add(new_peak(key=f"process-{number}-{i}"), ROOM)
    store.close()
