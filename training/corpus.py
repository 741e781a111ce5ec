"""The corpus: records of measured peaks, and the graphs of their cases. One folder, everything xz-compressed.

`records.jsonl.xz` holds one record a line, sorted by key; `graphs/<graph_id>.json.xz` the graph that a record names.
"""

from __future__ import annotations

import json
import lzma
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from peakcast.featurizer.limits import SpecError
from peakcast.featurizer.spec import GraphSpec
from peakcast.training.jobs import Job
from peakcast.training.zoo import Case, entries, is_reserved

Record = dict[str, Any]

RECORDS: Final = "records.jsonl.xz"
# Labels that were computed, not measured: a file of their own, so that they never mix.
REPLAYED_RECORDS: Final = "replayed.jsonl.xz"
GRAPHS: Final = "graphs"
_QUANTITIES: Final = ("first_allocated", "first_reserved", "steady_allocated", "steady_reserved")
# The bisection stops within 0.5 %.
_PRECISION: Final = 0.005


class CorpusError(ValueError):
    """A corpus that cannot be used as it is; the message names the file, and the line where it has lines."""


def read(corpus: Path, name: str = RECORDS) -> list[Record]:
    """Read all records of a file of the corpus; none where it is not there yet.

    Raises:
        CorpusError: if the file is damaged, or a line of it is no record.
    """
    path = corpus / name
    if not path.exists():
        return []
    try:
        text = lzma.decompress(path.read_bytes()).decode()
    except (lzma.LZMAError, EOFError, UnicodeDecodeError) as error:
        raise CorpusError(f"{path} is damaged: {error}") from error
    # Not splitlines, which also splits at separators that JSON allows within a string.
    return [_record(line, f"{path}, line {number}") for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def _record(line: str, where: str) -> Record:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise CorpusError(f"{where} is not JSON: {error}") from error
    if not isinstance(record, dict) or "key" not in record:
        raise CorpusError(f"{where} is no record: an object with a key is one")
    return record


def write(corpus: Path, records: Iterable[Record], name: str = RECORDS) -> None:
    """Replace all records of a file. The same records give the same bytes; a crash leaves the old file."""
    ordered = sorted(records, key=lambda record: str(record["key"]))
    text = "".join(json.dumps(record, sort_keys=True, separators=(",", ":")) + "\n" for record in ordered)
    _replace(corpus / name, lzma.compress(text.encode(), preset=9))


def merge(old: Iterable[Record], new: Iterable[Record]) -> list[Record]:
    """Join records, one for each key. Failures are left out.

    Of two with a key, a measured one goes before a seed one, then the later one; a graph that either names is kept.
    """
    found: dict[str, Record] = {}
    for record in (*old, *new):
        if "error" in record:
            continue
        key = str(record["key"])
        before = found.get(key)
        if before is None or _rank(record) >= _rank(before):
            graph_id = record.get("graph_id") or (before or {}).get("graph_id")
            found[key] = {**record, "graph_id": graph_id}
    return [found[key] for key in sorted(found)]


def _rank(record: Mapping[str, Any]) -> tuple[bool, str]:
    return record.get("source") == "measured", str(record.get("measured_at", ""))


def graph_path(corpus: Path, graph_id: str) -> Path:
    """Say where a graph lies."""
    return corpus / GRAPHS / f"{graph_id}.json.xz"


def read_graph(corpus: Path, graph_id: str) -> GraphSpec:
    """Read a graph.

    Raises:
        FileNotFoundError: if the corpus lacks it.
        CorpusError: if its file is damaged, or holds another graph than its name says.
    """
    path = graph_path(corpus, graph_id)
    content = path.read_bytes()
    try:
        spec = GraphSpec.from_json(lzma.decompress(content))
    except (lzma.LZMAError, EOFError, SpecError) as error:
        raise CorpusError(f"{path} is no graph: {error}") from error
    if spec.graph_id != graph_id:
        raise CorpusError(f"{path} holds another graph, {spec.graph_id}: capture it again")
    return spec


def write_graph(corpus: Path, spec: GraphSpec) -> str:
    """Keep a graph and give its id."""
    path = graph_path(corpus, spec.graph_id)
    if not path.exists():
        _replace(path, lzma.compress(spec.to_json(), preset=6))
    return spec.graph_id


def _replace(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    temporary.write_bytes(content)
    temporary.replace(path)


def faults(records: Iterable[Record], corpus: Path | None = None) -> Iterator[str]:
    """Say everything that is wrong with records, one sentence each.

    Reserved architectures, keys that are double or do not fit their case, peaks that cannot be; with `corpus`, graphs
    that are missing.
    """
    known = entries()
    seen: set[str] = set()
    for record in records:
        key = str(record["key"])
        if key in seen:
            yield f"{key}: there twice"
        seen.add(key)
        case = Case.from_dict(record["case"])
        if is_reserved(case.model) or is_reserved(str(record["architecture"])):
            yield f"{key}: {record['architecture']} is reserved"
        if key != Job(case, record["plan"]).key:
            yield f"{key}: the key of its case and plan is {Job(case, record['plan']).key}"
        if case.model not in known:
            yield f"{key}: the zoo has no model {case.model}"
        elif known[case.model].architecture != record["architecture"]:
            yield f"{key}: the architecture of {case.model} is {known[case.model].architecture}"
        yield from (f"{key}: {fault}" for fault in _implausible(record))
        graph_id = record.get("graph_id")
        if corpus is not None and graph_id and not graph_path(corpus, graph_id).exists():
            yield f"{key}: its graph {graph_id} is missing"


def _implausible(record: Record) -> Iterator[str]:
    measured: dict[str, int] = record["measured"]
    if record.get("out_of_memory"):
        return
    missing = [name for name in _QUANTITIES if f"{name}_bytes" not in measured]
    if missing:
        yield f"no {', '.join(missing)}"
        return
    total = int(record["device"]["total_bytes"])
    for step in ("first", "steady"):
        allocated, reserved = measured[f"{step}_allocated_bytes"], measured[f"{step}_reserved_bytes"]
        if not measured["parameter_bytes"] <= allocated <= reserved <= total:
            yield f"{step} step: parameters, allocated, reserved and card out of order"
    required = measured.get("required_bytes")
    most = max(measured["first_reserved_bytes"], measured["steady_reserved_bytes"])
    if required is not None and not measured["steady_allocated_bytes"] * (1 - _PRECISION) <= required <= most:
        yield f"required {required} is not between what was allocated and what was reserved"
    if record.get("alloc_retries"):
        yield "the allocator had to retry: the card was too full to measure reserved bytes"


@dataclass(frozen=True, slots=True)
class Difference:
    """How far two measurements of one key and quantity lie apart, relative to the first."""

    key: str
    quantity: str
    first_bytes: int
    second_bytes: int

    @property
    def relative(self) -> float:
        """Give the signed relative difference."""
        return self.second_bytes / self.first_bytes - 1


def differences(first: Iterable[Record], second: Iterable[Record]) -> list[Difference]:
    """Compare two sets of records where they share keys, the largest difference first."""
    by_key = {record["key"]: record for record in first if "error" not in record}
    found = [
        Difference(str(record["key"]), name, by_key[record["key"]]["measured"][f"{name}_bytes"], measured)
        for record in second
        if record["key"] in by_key and "error" not in record
        for name in _QUANTITIES
        if (measured := record["measured"].get(f"{name}_bytes")) is not None
        and f"{name}_bytes" in by_key[record["key"]]["measured"]
    ]
    return sorted(found, key=lambda difference: -abs(difference.relative))
