"""The corpus becomes arrays: one row a usable record, simulated once, cold and warm first steps apart."""

from __future__ import annotations

import lzma
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.vocabulary import QUANTITIES
from peakcast.training.corpus import CorpusError, graph_path, read, write
from peakcast.training.dataset import corpus_sha256, is_usable, load_dataset, measured_bytes

MIB = 1 << 20


def make_spec(size_bytes: int) -> GraphSpec:
    """Return a step of two nodes: one writes a temporary from a parameter, the next an output from both."""
    trace: dict[str, Any] = {
        "phase": [0, 0],
        "op": [0, 1],
        "rank": [2, 2],
        "numel": [size_bytes // 4] * 2,
        "dtype": [0, 0],
        "device": [1, 1],
        "inputs": {"offsets": [0, 1, 3], "ids": [0, 0, 1]},
        "outputs": {"offsets": [0, 1, 2], "ids": [1, 2]},
        "storages": {
            "bytes": [size_bytes] * 3,
            "device": [1, 1, 1],
            "role": [0, 6, 7],
            "born": [-1, 0, 1],
            "died": [-1, 1, 1],
        },
    }
    return GraphSpec.from_json(
        {
            "schema": 1,
            "ops": ["aten.relu.default", "aten.add.Tensor"],
            "dtypes": ["float32"],
            "captured_with": {"torch": "2.13.0"},
            "traces": {"eager": trace},
        }
    )


def make_record(spec: GraphSpec, key: str, **changed: Any) -> dict[str, Any]:
    """Return a record of the spec whose allocated bytes are three tensors."""
    size_bytes = int(spec.traces["eager"].storages.bytes[0])
    return {
        "key": key,
        "architecture": "Tiny",
        "case": {"model": "tiny", "batch": 1},
        "run": {"task": "inference"},
        "device": {"name": "NVIDIA H200", "total_bytes": 150_000_000_000},
        "plan": "eager",
        "measured": {"steady_allocated_bytes": 3 * size_bytes, "first_allocated_bytes": 3 * size_bytes},
        "out_of_memory": False,
        "cache": "cold",
        "step_seconds": 0.25,
        "versions": {"torch": "2.11.0+cu130"},
        "source": "measured",
        "measured_at": "2026-01-02T03:04:05Z",
        "graph_id": spec.graph_id,
        **changed,
    }


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Write a corpus of two graphs and four records: two measured, one replayed, one that ran out of memory."""
    small, large = make_spec(16 * MIB), make_spec(64 * MIB)
    records = [
        make_record(large, "b"),
        make_record(small, "a"),
        make_record(small, "c", source="replayed"),
        make_record(small, "d", out_of_memory=True, measured={}),
    ]
    (tmp_path / "graphs").mkdir()
    for spec in (small, large):
        (tmp_path / "graphs" / f"{spec.graph_id}.json.xz").write_bytes(lzma.compress(spec.to_json()))
    lines = b"\n".join(orjson.dumps(record) for record in records)
    (tmp_path / "records.jsonl.xz").write_bytes(lzma.compress(lines + b"\n"))
    return tmp_path


def test_usable_records_become_rows(corpus: Path, tmp_path: Path) -> None:
    """Records come in the order of their keys, with priors of three tensors of 16 and 64 MiB, each with its origin."""
    data = load_dataset(corpus, cache=tmp_path / "cache", jobs=1)
    assert list(data.keys) == ["a", "b", "c"]
    assert list(data.origins) == ["measured", "measured", "replayed"]
    assert data.priors[:, 0].tolist() == [3 * 16 * MIB, 3 * 64 * MIB, 3 * 16 * MIB]
    assert data.measured_PQ[:, 0].tolist() == [3 * 16 * MIB, 3 * 64 * MIB, 3 * 16 * MIB]
    assert np.isnan(data.measured_PQ[:, QUANTITIES.index("required")]).all()
    assert data.weights_bytes_P.tolist() == [16 * MIB, 64 * MIB, 16 * MIB]
    assert (data.created, data.torch_versions) == ("2026-01-02T03:04:05Z", ["2.11"])


def test_cache_gives_the_same(corpus: Path, tmp_path: Path) -> None:
    """The second load reads what the first kept."""
    first = load_dataset(corpus, cache=tmp_path / "cache", jobs=1)
    kept = [(path, path.stat().st_mtime_ns) for path in (tmp_path / "cache").iterdir()]
    again = load_dataset(corpus, cache=tmp_path / "cache", jobs=1)
    assert [(path, path.stat().st_mtime_ns) for path in (tmp_path / "cache").iterdir()] == kept
    assert np.array_equal(first.priors, again.priors)
    assert np.array_equal(first.examples[0].steps_TC, again.examples[0].steps_TC)


@pytest.mark.parametrize("jobs", [1, 2])
def test_damaged_graph_is_named_whatever_the_cache_holds(corpus: Path, tmp_path: Path, jobs: int) -> None:
    """Junk, a file cut short and another graph under its name are refused by the file's name, in any process."""
    load_dataset(corpus, cache=tmp_path / "cache", jobs=1)
    path = graph_path(corpus, make_spec(64 * MIB).graph_id)
    whole = path.read_bytes()
    other = graph_path(corpus, make_spec(16 * MIB).graph_id).read_bytes()
    for content, problem in (
        (b"junk", "is no graph"),
        (whole[:-20], "is no graph"),
        (lzma.compress(b"{}"), "is no graph"),
        (other, "holds another graph"),
    ):
        path.write_bytes(content)
        with pytest.raises(CorpusError, match=f"{path.name} {problem}"):
            load_dataset(corpus, cache=tmp_path / "cache", jobs=jobs)


def test_records_without_a_graph_are_counted(corpus: Path, tmp_path: Path) -> None:
    """Those that name none and those whose file is gone are left out, and said, whatever the cache holds."""
    load_dataset(corpus, cache=tmp_path / "cache", jobs=1)
    records = [*read(corpus), make_record(make_spec(MIB), "e", graph_id=None)]
    write(corpus, records)
    graph_path(corpus, make_spec(64 * MIB).graph_id).unlink()
    notes: list[str] = []
    data = load_dataset(corpus, cache=tmp_path / "cache", jobs=1, note=notes.append)
    assert list(data.keys) == ["a", "c"]
    assert notes[0] == "1 of 5 records name no graph: left out"
    assert notes[1].startswith("1 of 5 records name a graph that is not there: left out (1 missing files, the first ")


def test_what_is_no_corpus_is_said(corpus: Path, tmp_path: Path) -> None:
    """A missing folder, a line cut short, a file cut short and a record without its run, each by name."""
    with pytest.raises(CorpusError, match=r"no corpus at .*nosuch"):
        load_dataset(tmp_path / "nosuch")
    path = corpus / "records.jsonl.xz"
    lines = lzma.decompress(path.read_bytes()).splitlines()
    for content, problem in (
        (lzma.compress(lines[0] + b"\n" + lines[1][:-9]), r"records.jsonl.xz, line 2 is not JSON"),
        (lzma.compress(b"\n[]\n"), r"records.jsonl.xz, line 2 is no record"),
        (path.read_bytes()[:-20], r"records.jsonl.xz is damaged"),
        (b"junk", r"records.jsonl.xz is damaged"),
        (lzma.compress(lines[0].replace(b'"run"', b'"ran"')), r"record b of .*records.jsonl.xz: 'run'"),
    ):
        path.write_bytes(content)
        with pytest.raises(CorpusError, match=problem):
            load_dataset(corpus, cache=tmp_path / "cache", jobs=1)


def test_hash_ignores_order_and_sees_labels() -> None:
    """The hash names the set of records: their order is nothing, one byte of one label is something."""
    spec = make_spec(MIB)
    records = [make_record(spec, "a"), make_record(spec, "b")]
    assert corpus_sha256(records) == corpus_sha256(reversed(records))
    changed = [records[0], make_record(spec, "b", measured={"steady_allocated_bytes": 1})]
    assert corpus_sha256(records) != corpus_sha256(changed)


def test_warm_compiles_are_no_label_of_the_first_step() -> None:
    """With a warm cache a compiled plan's first step is left out; eager has no cache to warm."""
    spec, first = make_spec(MIB), QUANTITIES.index("first_allocated")
    assert np.isnan(measured_bytes(make_record(spec, "a", plan="inductor", cache="warm"))[first])
    assert measured_bytes(make_record(spec, "a", plan="inductor", cache="cold"))[first] == 3 * MIB
    assert measured_bytes(make_record(spec, "a", plan="eager", cache="warm"))[first] == 3 * MIB


def test_a_replay_is_a_label_of_what_a_steady_step_allocates() -> None:
    """It knows nothing of what a first call takes on a card, and what that leaves reserved; a measurement does."""
    spec = make_spec(MIB)
    told = np.isfinite(measured_bytes(make_record(spec, "a", plan="inductor", source="replayed")))
    assert [name for name, known in zip(QUANTITIES, told, strict=True) if known] == ["steady_allocated"]
    assert np.isfinite(measured_bytes(make_record(spec, "a", plan="inductor"))).sum() > 1


@pytest.mark.parametrize(
    ("changed", "usable"),
    [
        ({}, True),
        ({"source": "seed"}, True),
        ({"source": "replayed"}, True),
        ({"source": "reported"}, True),
        ({"source": "dreamed"}, False),
        ({"out_of_memory": True}, False),
        ({"graph_id": None}, False),
    ],
)
def test_what_counts_as_a_label(changed: dict[str, Any], usable: bool) -> None:
    """What ran to the end, has a graph, and comes from a source that is known."""
    assert is_usable(make_record(make_spec(MIB), "a", **changed)) is usable


def test_corpus_without_labels_is_refused(corpus: Path) -> None:
    """A corpus of failures alone trains nothing."""
    record = make_record(make_spec(MIB), "a", out_of_memory=True)
    (corpus / "records.jsonl.xz").write_bytes(lzma.compress(orjson.dumps(record)))
    with pytest.raises(ValueError, match="no usable record"):
        load_dataset(corpus, jobs=1)
