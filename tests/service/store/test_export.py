from __future__ import annotations

import hashlib
import lzma
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from reported import GRAPH, ROOM

from peakcast.service.store.architectures import architectures, operator_set
from peakcast.service.store.errors import StoreError
from peakcast.service.store.export import export
from peakcast.service.store.peak_store import NewPeak, PeakStore
from peakcast.service.store.review import Review
from peakcast.training import corpus
from peakcast.training.dataset import load_dataset

Maker = Callable[..., NewPeak]


@pytest.fixture
def filled(store: PeakStore, make_peak: Maker) -> PeakStore:
    """Give a store with two configurations, one reported thrice, and a peak in quarantine."""
    first = {"steady_allocated_bytes": 68_354_560, "steady_reserved_bytes": 69_206_016}
    later = {"steady_allocated_bytes": 68_400_000, "required_bytes": 69_000_000}
    store.add(make_peak(key="first-report", measured=first), ROOM)
    store.add(make_peak(key="second-report", measured=later, reporter="team-b"), ROOM)
    store.add(make_peak(key="third-report", measured=later), ROOM)
    store.add(make_peak(key="other-plan", plan="inductor", measured=first, architecture=None), ROOM)
    store.add(make_peak(key="replayed", source="replayed", measured=first), ROOM)
    store.add(make_peak(key="false-peak", reason="cannot be", plan="hybrid"), ROOM)
    return store


def test_an_export_is_a_corpus(filled: PeakStore, tmp_path: Path) -> None:
    """The corpus reader finds one record for each accepted configuration, and the graph under its id."""
    folder = tmp_path / "reported"
    exported = export(filled, folder)
    assert (exported.records, exported.peaks, exported.graphs, exported.architectures) == (3, 5, 1, 1)
    records = {record["key"]: record for record in corpus.read(folder)}
    assert set(records) == {"reported|first-report", "reported|other-plan", "reported|replayed"}
    record = records["reported|first-report"]
    # Each quantity of the earliest peak that has it, whoever came later.
    assert record["measured"] == {
        "steady_allocated_bytes": 68_354_560,
        "steady_reserved_bytes": 69_206_016,
        "required_bytes": 69_000_000,
    }
    assert (record["reporter"], record["reporters"], record["reports"]) == ("team-a", ["team-a", "team-b"], 3)
    assert record["source"] == "reported"
    assert records["reported|replayed"]["source"] == "replayed"
    assert {record["architecture"] for record in records.values()} == {"SmallNetwork"}
    assert records["reported|other-plan"]["case"] == record["case"]
    assert corpus.read_graph(folder, GRAPH.graph_id) == GRAPH


def test_training_reads_an_export(filled: PeakStore, tmp_path: Path) -> None:
    """The records become examples with labels: those reported, under one architecture and one workload."""
    export(filled, tmp_path / "reported")
    dataset = load_dataset(tmp_path / "reported", cache=tmp_path / "cache", jobs=1)
    rows = [row for row, key in enumerate(dataset.keys) if key != "reported|replayed"]
    reported = dataset.take(rows)
    assert list(reported.keys) == ["reported|first-report", "reported|other-plan"]
    assert reported.plans == ["eager", "inductor"]
    assert set(reported.architectures) == {"SmallNetwork"}
    assert len(set(reported.workloads)) == 1
    assert reported.measured_PQ[:, 0].tolist() == [68_354_560.0, 68_354_560.0]


def test_the_same_peaks_give_the_same_bytes(filled: PeakStore, tmp_path: Path) -> None:
    """Two exports are equal, the summary's hash is that of the records, and an export is written over."""
    for name in ("one", "two"):
        export(filled, tmp_path / name)
    one, two = ((tmp_path / name / corpus.RECORDS).read_bytes() for name in ("one", "two"))
    assert one == two
    summary = orjson.loads((tmp_path / "one" / "export.json").read_bytes())
    assert summary["records_sha256"] == hashlib.sha256(lzma.decompress(one)).hexdigest()
    Review(filled).reject(reporter="team-a")
    again = export(filled, tmp_path / "one")
    assert (again.records, again.peaks) == (1, 1)
    (record,) = corpus.read(tmp_path / "one")
    assert record["key"] == "reported|second-report"
    Review(filled).reject(["second-report"])
    assert export(filled, tmp_path / "one").graphs == 0
    assert list((tmp_path / "one" / "graphs").iterdir()) == []


def test_a_folder_of_something_else_is_left_alone(filled: PeakStore, tmp_path: Path) -> None:
    """A corpus that was measured here is not written over."""
    corpus.write(tmp_path, [{"key": "ours"}])
    with pytest.raises(StoreError, match="something other than an export"):
        export(filled, tmp_path)
    assert corpus.read(tmp_path) == [{"key": "ours"}]


def test_review_settles_peaks(filled: PeakStore) -> None:
    """A released peak is accepted, a rejected one out, and each change is counted once."""
    review = Review(filled)
    assert review.counts() == {"accepted": 5, "quarantined": 1}
    assert [peak.key for peak in review.peaks(status="quarantined")] == ["false-peak"]
    assert review.release(["false-peak", "first-report", "not-there"]) == 1
    assert review.reject(["false-peak"]) == 1
    assert review.counts() == {"accepted": 5, "rejected": 1}
    found = review.peak("false-peak")
    assert found is not None
    assert (found.status, found.reason) == ("rejected", "cannot be")
    assert review.peak("not-there") is None
    assert [peak.key for peak in review.peaks(reporter="team-b", limit=5)] == ["second-report"]


@pytest.mark.parametrize(
    ("operators", "declared", "expected"),
    [
        ({"a": "ops:1", "b": "ops:1", "c": "ops:2"}, [], {"a": "ops:1", "b": "ops:1", "c": "ops:2"}),
        ({"a": "ops:1", "b": "ops:2"}, [("a", "GPT"), ("b", "GPT")], {"a": "GPT", "b": "GPT"}),
        # Other names for graphs of the same operators split nothing: the most frequent one is taken, then the first.
        ({"a": "ops:1", "b": "ops:1"}, [("a", "X"), ("b", "GPT"), ("b", "GPT")], {"a": "GPT", "b": "GPT"}),
        ({"a": "ops:1", "b": "ops:1"}, [("a", "B"), ("b", "A")], {"a": "A", "b": "A"}),
        # a and b share a class, b and c their operators: all three are one.
        (
            {"a": "ops:1", "b": "ops:2", "c": "ops:2", "d": "ops:3"},
            [("a", "GPT"), ("b", "GPT")],
            {"a": "GPT", "b": "GPT", "c": "GPT", "d": "ops:3"},
        ),
    ],
    ids=["undeclared", "one class", "majority", "tie", "joined twice"],
)
def test_what_belongs_together_has_one_architecture(
    operators: dict[str, str], declared: list[tuple[str, str]], expected: dict[str, str]
) -> None:
    """Graphs of the same operators or the same declared class are one architecture."""
    assert architectures(operators, declared) == expected


def test_sizes_and_order_do_not_make_another_architecture() -> None:
    """The operator set is the same with the plan left out, and another once an operator is."""
    spec = GRAPH
    assert operator_set(replace(spec, captured_with={})) == operator_set(spec)
    names: dict[str, Any] = {"ops": tuple(op.replace("relu", "gelu") for op in spec.ops)}
    assert operator_set(replace(spec, **names)) != operator_set(spec)
