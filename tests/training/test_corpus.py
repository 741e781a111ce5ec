"""The corpus joins records by key, refuses what cannot be, and names the graph of each case."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.trace import Csr, Storages, Trace
from peakcast.training import corpus, journal
from peakcast.training.capture_corpus import JOURNAL, attach, unused_graphs, wanted
from peakcast.training.data_card import data_card
from peakcast.training.jobs import Job
from peakcast.training.seed_records import from_seed
from peakcast.training.zoo import Case, architectures

MIB = 1 << 20


def sample_spec() -> GraphSpec:
    """Return the spec of one relu on a float32 input of 16 elements."""
    trace = Trace(
        phase=np.array([0], np.uint8),
        op=np.array([0], np.int32),
        rank=np.array([1], np.uint8),
        numel=np.array([16], np.int64),
        dtype=np.array([0], np.uint8),
        device=np.array([1], np.uint8),
        line=np.array([-1], np.int32),
        region=np.array([-1], np.int32),
        inputs=Csr(np.array([0, 1], np.int32), np.array([0], np.int32)),
        outputs=Csr(np.array([0, 1], np.int32), np.array([1], np.int32)),
        storages=Storages(
            bytes=np.array([64, 64], np.int64),
            device=np.array([1, 1], np.uint8),
            role=np.array([2, 7], np.uint8),
            born=np.array([-1, 0], np.int32),
            died=np.array([-1, -1], np.int32),
        ),
    )
    return GraphSpec(ops=("aten.relu.default",), dtypes=("float32",), lines=(), traces={"eager": trace})


def record(model: str = "siren", batch: int = 8192, plan: str = "eager", **changed: Any) -> corpus.Record:
    """Make a plausible record."""
    case = Case(model, batch)
    return {
        "key": Job(case, plan).key,
        "architecture": architectures()[model],
        "case": case.to_dict(),
        "run": case.run(),
        "plan": plan,
        "device": {"name": "NVIDIA H200", "total_bytes": 150_754_820_096},
        "measured": {
            "parameter_bytes": 4 * MIB,
            "first_allocated_bytes": 90 * MIB,
            "first_reserved_bytes": 110 * MIB,
            "steady_allocated_bytes": 100 * MIB,
            "steady_reserved_bytes": 120 * MIB,
        },
        "out_of_memory": False,
        "cache": "cold",
        "versions": {"torch": "2.11.0+cu130"},
        "source": "measured",
        "measured_at": "2026-01-02T00:00:00Z",
        "graph_id": None,
        **changed,
    }


def test_records_survive_writing_and_the_file_is_the_same_whatever_their_order(tmp_path: Path) -> None:
    """Sorted by key, so that a corpus can be compared by its bytes."""
    rows = [record("siren"), record("nerf", 256)]
    corpus.write(tmp_path, rows)
    first = (tmp_path / "records.jsonl.xz").read_bytes()
    corpus.write(tmp_path, reversed(rows))
    assert (tmp_path / "records.jsonl.xz").read_bytes() == first
    assert {r["key"]: r for r in corpus.read(tmp_path)} == {r["key"]: r for r in rows}


def test_an_empty_folder_is_an_empty_corpus(tmp_path: Path) -> None:
    """Nothing has to be made first."""
    assert corpus.read(tmp_path) == []


def test_merging_prefers_measured_then_later_and_keeps_the_graph() -> None:
    """One record for each key; failures go."""
    seed = record(source="seed", graph_id="g" * 64)
    old = record(measured_at="2026-01-01T00:00:00Z")
    new = record(measured_at="2026-01-03T00:00:00Z")
    failed = {"key": "x", "error": "RuntimeError: no"}
    for rows in ([seed, new, old, failed], [new], [failed]):
        merged = corpus.merge([seed, old], rows)
        assert len(merged) == 1
        assert merged[0]["source"] == "measured"
        assert merged[0]["graph_id"] == "g" * 64
    assert corpus.merge([old], [new])[0]["measured_at"] == "2026-01-03T00:00:00Z"
    assert corpus.merge([new], [old])[0]["measured_at"] == "2026-01-03T00:00:00Z"


def test_a_plausible_record_has_no_fault() -> None:
    """Nor has one that ran out of memory and so lacks its peaks."""
    assert list(corpus.faults([record(), record("nerf", 256, out_of_memory=True, measured={})])) == []


def _with(**measured: int) -> corpus.Record:
    return record(measured={**record()["measured"], **measured})


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        (record(architecture="Wav2Vec2Model"), "is reserved"),
        (record(architecture="NeRF"), "the architecture of siren is Siren"),
        (record(key="siren|b1"), "the key of its case and plan is"),
        (_with(steady_allocated_bytes=130 * MIB), "out of order"),
        (_with(parameter_bytes=95 * MIB), "out of order"),
        (_with(steady_reserved_bytes=1 << 40), "out of order"),
        (_with(required_bytes=99 * MIB), "is not between"),
        (_with(required_bytes=121 * MIB), "is not between"),
        (record(alloc_retries=2), "had to retry"),
        (record(measured={"parameter_bytes": 1}), "no first_allocated"),
    ],
)
def test_what_cannot_be_is_a_fault(bad: corpus.Record, fault: str) -> None:
    """Each kind is found and said."""
    found = list(corpus.faults([bad]))
    assert any(fault in said for said in found)


def test_a_key_that_is_there_twice_is_a_fault() -> None:
    """Two records of one configuration would weigh double."""
    assert [f for f in corpus.faults([record(), record()]) if "twice" in f]


def test_a_seed_row_becomes_a_record_with_the_same_numbers() -> None:
    """Checked on a row written out by hand."""
    row = {
        "model": "resnet18",
        "batch": 64,
        "autocast_bf16": True,
        "task": "training",
        "optimizer": "sgd",
        "plan": "inductor",
        "parameter_bytes": 1,
        "buffer_bytes": 2,
        "static_bytes": 3,
        "first_peak_allocated_bytes": 4,
        "first_peak_reserved_bytes": 5,
        "steady_peak_allocated_bytes": 6,
        "steady_peak_reserved_bytes": 7,
        "after_step_allocated_bytes": 8,
        "first_step_seconds": 30.5,
        "steady_step_seconds": 0.5,
        "device": "NVIDIA H200",
        "torch": "2.11.0+cu130",
    }
    made = from_seed(row)
    assert made["key"] == "resnet18|b64|bfloat16|training|sgd|foreach|standard|inductor"
    assert made["run"] == {
        "task": "training",
        "optimizer": "SGD",
        "implementation": "foreach",
        "autocast": "bfloat16",
        "accumulation": 1,
    }
    measured = made["measured"]
    assert (measured["first_allocated_bytes"], measured["steady_reserved_bytes"]) == (4, 7)
    assert (made["compile_seconds"], made["architecture"], made["source"]) == (30.0, "ResNet", "seed")


def test_differences_compare_what_both_have() -> None:
    """Largest first, relative to the first set."""
    other = _with(steady_allocated_bytes=101 * MIB, first_reserved_bytes=99 * MIB)
    found = corpus.differences([record()], [other, record("nerf", 256)])
    assert [(d.quantity, round(d.relative, 4)) for d in found[:2]] == [
        ("first_reserved", -0.1),
        ("steady_allocated", 0.01),
    ]
    assert all(d.relative == 0 for d in found[2:])


def test_cases_without_their_graph_are_wanted_with_all_their_plans(tmp_path: Path) -> None:
    """A case is captured once for all plans; one whose records all have a graph is not wanted."""
    spec = sample_spec()
    graph_id = corpus.write_graph(tmp_path, spec)
    rows = [
        record("siren", plan="eager"),
        record("siren", plan="inductor", graph_id=graph_id),
        record("nerf", 256, graph_id=graph_id),
    ]
    (one,) = wanted(rows, tmp_path)
    assert (one.case.model, one.plans) == ("siren", ("eager", "inductor"))
    assert len(wanted(rows, tmp_path, afresh=True)) == 2


def test_a_graph_survives_the_corpus_and_unused_ones_are_known(tmp_path: Path) -> None:
    """Compressed, read back equal, and listed once no record names it."""
    spec = sample_spec()
    graph_id = corpus.write_graph(tmp_path, spec)
    assert corpus.read_graph(tmp_path, graph_id).graph_id == spec.graph_id == graph_id
    assert unused_graphs([record(graph_id=graph_id)], tmp_path) == []
    assert [file.name for file in unused_graphs([record()], tmp_path)] == [f"{graph_id}.json.xz"]


def test_records_get_the_graph_that_holds_their_plan(tmp_path: Path) -> None:
    """Not one in which their plan failed."""
    case = Case("siren", 8192).key
    journal.append(
        tmp_path / JOURNAL, {"case": case, "wanted": ["eager", "hybrid"], "plans": ["eager"], "graph_id": "a"}
    )
    eager, hybrid = attach([record(), record(plan="hybrid")], tmp_path)
    assert (eager["graph_id"], hybrid["graph_id"]) == ("a", None)


def test_the_data_card_counts_what_is_there(tmp_path: Path) -> None:
    """Device, versions, date and counts, as a person would count them."""
    text = data_card([record(), record(plan="inductor"), record("nerf", 256)], tmp_path)
    assert "- 3 records of 2 architectures, 2 models" in text
    assert "| inductor | training | 1 | 0 |" in text
    assert "| NVIDIA H200 | not recorded | 2.11.0+cu130 | 13.0 | measured | 3 |" in text
    assert "from 2026-01-02 to 2026-01-02" in text
    assert "replayed" not in text


def test_the_data_card_tells_computed_labels_from_measured_ones(tmp_path: Path) -> None:
    """They are counted by themselves, with those that a fit can use."""
    versions = {"torch": "2.11.0"}
    label = {**record(plan="inductor:budget=0.3", graph_id="a"), "source": "replayed", "versions": versions}
    corpus.write(
        tmp_path, [label, {**record("nerf", 256), **label, "key": "other", "graph_id": None}], corpus.REPLAYED_RECORDS
    )
    text = data_card([record()], tmp_path)
    assert "- 1 records of 1 architectures, 1 models" in text
    assert "holds 2 labels of 1 architectures that were not measured" in text
    assert "1 name a graph" in text
    assert "| inductor:budget | training | 2.11.0 | 2 |" in text
