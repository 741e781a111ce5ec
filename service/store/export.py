"""Writes accepted peaks as a corpus for `peakcast train`: `records.jsonl.xz` and `graphs/<graph_id>.json.xz`."""

from __future__ import annotations

import datetime as dt
import hashlib
import lzma
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import orjson
from sqlalchemy import select
from sqlalchemy.orm import Session

from peakcast.featurizer.limits import Limits
from peakcast.featurizer.spec import GraphSpec
from peakcast.service.store.architectures import architectures, operator_set
from peakcast.service.store.engine import reading, told_as_unavailable
from peakcast.service.store.errors import StoreError
from peakcast.service.store.peak_store import PeakStore
from peakcast.service.store.tables import ACCEPTED, Peak

RECORDS: Final = "records.jsonl.xz"
GRAPHS: Final = "graphs"
# Says that a folder is an export, to be written over, and what is in it.
SUMMARY: Final = "export.json"
# A label that somebody else measured, or that was not measured at all, is never taken for one of our own.
_SOURCES: Final = {"measured": "reported", "replayed": "replayed"}
# What the service took, with whatever limits it ran.
_LIMITS: Final = Limits(max_nodes=1 << 30, max_storages=1 << 30, max_json_bytes=1 << 31, max_containers=1 << 31)


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export holds: records of `peaks` accepted peaks, one for each configuration."""

    records: int
    peaks: int
    graphs: int
    architectures: int
    records_sha256: str


def export(store: PeakStore, folder: Path) -> Exported:
    """Write the accepted peaks; the same peaks give the same bytes. Peaks of one configuration become one record.

    So nobody gains weight by reporting often: each quantity is that of the earliest accepted peak which has it.

    Raises:
        StoreError: if the folder holds something other than an earlier export, or the store cannot be read.
    """
    if folder.exists() and any(folder.iterdir()) and not (folder / SUMMARY).exists():
        raise StoreError(f"{folder} holds something other than an export: give a new folder")
    graphs, records, peaks = _Graphs(store, folder), [], 0
    for group in _configurations(store):
        graphs.add(group)
        records.append(_record(group))
        peaks += len(group)
    named = architectures(graphs.operators, graphs.declared)
    for record in records:
        record["architecture"] = named[record["graph_id"]]
    records.sort(key=lambda record: record["key"])
    lines = b"".join(orjson.dumps(record, option=orjson.OPT_SORT_KEYS) + b"\n" for record in records)
    _replace(folder / RECORDS, lzma.compress(lines, preset=9))
    for path in (folder / GRAPHS).glob("*.json.xz"):
        if path.name.removesuffix(".json.xz") not in named:
            path.unlink()
    digest = hashlib.sha256(lines).hexdigest()
    exported = Exported(len(records), peaks, len(named), len(set(named.values())), digest)
    _replace(folder / SUMMARY, orjson.dumps(asdict(exported), option=orjson.OPT_INDENT_2) + b"\n")
    return exported


class _Graphs:
    """The graphs of an export: each written once, its operators noted."""

    def __init__(self, store: PeakStore, folder: Path) -> None:
        self._store = store
        self._folder = folder / GRAPHS
        self.operators: dict[str, str] = {}
        self.declared: list[tuple[str, str]] = []

    def add(self, group: list[Peak]) -> None:
        graph_id = group[0].graph_id
        self.declared += [(graph_id, peak.architecture) for peak in group if peak.architecture is not None]
        if graph_id in self.operators:
            return
        content = self._store.graph(graph_id)
        assert content is not None  # a foreign key holds it
        self.operators[graph_id] = operator_set(GraphSpec.from_json(content, _LIMITS))
        path = self._folder / f"{graph_id}.json.xz"
        if not path.exists():
            _replace(path, lzma.compress(content, preset=6))


def _configurations(store: PeakStore) -> Iterator[list[Peak]]:
    """Yield the accepted peaks of each configuration, earliest first."""
    query = select(Peak).where(Peak.status == ACCEPTED).order_by(Peak.configuration, Peak.id)
    with told_as_unavailable(), Session(reading(store.engine)) as session:
        peaks = session.scalars(query.execution_options(yield_per=500))
        for _, group in groupby(peaks, key=lambda peak: peak.configuration):
            yield list(group)


def _record(group: list[Peak]) -> dict[str, Any]:
    first = group[0]
    measured: dict[str, int] = {}
    for peak in group:
        measured = {**peak.measured, **measured}
    received = dt.datetime.fromtimestamp(first.received_at_ms / 1000, dt.UTC)
    return {
        "key": f"reported|{first.key}",
        "source": _SOURCES[first.source],
        "reporter": first.reporter,
        "reporters": sorted({peak.reporter for peak in group}),
        "reports": len(group),
        "measured_at": received.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "graph_id": first.graph_id,
        # Plans of one workload are compared with each other: a workload is a graph and a run.
        "case": {"graph_id": first.graph_id, "run": first.run},
        "plan": first.plan,
        "run": first.run,
        "device": first.device,
        "cache": first.cache,
        "measured": measured,
        "out_of_memory": first.out_of_memory,
        "versions": first.versions,
    }


def _replace(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    temporary.write_bytes(content)
    temporary.replace(path)
