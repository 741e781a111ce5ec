"""`peakcast train` says how far it is and what it leaves out; a corpus that is not as it must be ends in words."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest
from typer.testing import CliRunner

from peakcast.cli import app
from peakcast.featurizer.spec import GraphSpec
from peakcast.service.examples import example_request
from peakcast.training import corpus as store
from peakcast.training.stages import Stages


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a corpus of one architecture: a record with a graph and one without, in the current folder."""
    monkeypatch.chdir(tmp_path)
    spec = GraphSpec.from_json(example_request()["graph"])
    plan = next(iter(spec.traces))
    record = {
        "key": "a",
        "architecture": "Tiny",
        "case": {"model": "tiny", "batch": 1},
        "run": {"task": "training"},
        "device": {"name": "NVIDIA H200", "total_bytes": 150_000_000_000},
        "plan": plan,
        "measured": {"steady_allocated_bytes": 1 << 30},
        "cache": "cold",
        "source": "measured",
        "graph_id": store.write_graph(tmp_path / "corpus", spec),
    }
    store.write(tmp_path / "corpus", [record, {**record, "key": "b", "graph_id": None}])
    return Path("corpus")


def failed(*arguments: str) -> str:
    """Run a command that must end with exit code 1 and without a traceback. Returns what it said on stderr."""
    ran = CliRunner().invoke(app, arguments)
    assert ran.exit_code == 1, ran.stderr
    assert isinstance(ran.exception, SystemExit)
    assert "Traceback" not in ran.stderr
    assert ran.stdout == ""
    return ran.stderr


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_stages_and_what_is_left_out_are_told_off_a_terminal(corpus: Path, command: str) -> None:
    """Plain lines on stderr, each with its seconds; then the reason why one architecture is too few."""
    lines = failed(command, "--corpus", str(corpus), "--jobs", "1").splitlines()
    assert lines[0].endswith("s simulating the corpus")
    assert lines[1].endswith("s 1 of 2 records name no graph: left out")
    assert float(lines[1].split("s ")[0]) >= 0
    assert lines[-1] == "error: 5 folds need as many architectures; there are 1"


def test_junk_graph_is_named_though_it_was_simulated_before(corpus: Path) -> None:
    """The first run fills the cache; the second reads the file that has become junk, and names it."""
    failed("train", "--corpus", str(corpus), "--jobs", "1")
    graph = next((corpus / "graphs").iterdir())
    graph.write_bytes(b"junk")
    assert f"error: {graph} is no graph" in failed("train", "--corpus", str(corpus), "--jobs", "1")


def test_deleted_graph_is_reported(corpus: Path) -> None:
    """Its record is left out and counted, also where it was simulated before."""
    failed("train", "--corpus", str(corpus), "--jobs", "1")
    next((corpus / "graphs").iterdir()).unlink()
    said = failed("train", "--corpus", str(corpus), "--jobs", "1")
    assert "1 of 2 records name a graph that is not there: left out" in said
    assert "error: no usable record in corpus" in said


def test_cut_record_and_missing_corpus_are_named(corpus: Path) -> None:
    """The file and the line, or the folder that is not there."""
    path = corpus / "records.jsonl.xz"
    path.write_bytes(lzma.compress(lzma.decompress(path.read_bytes())[:-9]))
    assert "error: corpus/records.jsonl.xz, line 2 is not JSON" in failed("train", "--corpus", str(corpus))
    assert "error: no corpus at nosuch" in failed("train", "--corpus", "nosuch")


def test_stages_end_with_done(capsys: pytest.CaptureFixture[str]) -> None:
    """Off a terminal each stage is a line as it begins, and the last says that all is done."""
    with Stages() as stages:
        stages("first")
        stages.note("by the way")
    told = capsys.readouterr()
    assert [line.split("s ", 1)[1] for line in told.err.splitlines()] == ["first", "by the way", "done"]
    assert told.out == ""
