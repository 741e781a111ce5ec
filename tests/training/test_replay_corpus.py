"""Replayed labels: which cases are drawn, and that a replayed record is one, in a file of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from peakcast.featurizer.plans import parse_plan
from peakcast.training import corpus, journal
from peakcast.training.capture_corpus import unused_graphs
from peakcast.training.corpus_commands import app
from peakcast.training.jobs import Job
from peakcast.training.replay_corpus import JOURNAL, graphs_in_use, merge_replays, replay_all, replay_jobs
from peakcast.training.zoo import Case, entries, is_reserved


def test_the_same_seed_draws_the_same_cases_over_the_whole_zoo() -> None:
    """Every model comes once before any comes twice, each key is there once, and a shorter list is a beginning."""
    jobs = replay_jobs(600, seed=3)
    assert len({job.key for job in jobs}) == len(jobs) == 600
    models = [case.model for case in dict.fromkeys(job.case for job in jobs)]
    count = len({one for one in entries() if not is_reserved(one)})
    assert len(set(models[:count])) == count
    assert [job.key for job in replay_jobs(600, seed=3)] == [job.key for job in jobs]
    assert {job.key for job in replay_jobs(600, seed=4)} != {job.key for job in jobs}


def test_what_is_drawn_is_compiled_and_never_reserved() -> None:
    """Compiled plans alone, budgets only where there is a backward, and nothing that acceptance measures on."""
    jobs = replay_jobs(1500)
    assert all(parse_plan(job.plan).compiled for job in jobs)
    assert {parse_plan(job.plan).compiler for job in jobs} == {"inductor", "hybrid"}
    assert all(job.case.task == "training" for job in jobs if "budget" in job.plan)
    assert not any(is_reserved(job.case.model) or is_reserved(entries()[job.case.model].architecture) for job in jobs)
    assert {job.case.task for job in jobs} == {"training", "inference"}


def test_an_unknown_model_is_refused() -> None:
    """The zoo knows its models by name."""
    with pytest.raises(KeyError, match="no_such_model"):
        replay_jobs(1, models=["no_such_model"])


@pytest.mark.parametrize("goes_on", [True, False])
def test_graphs_of_a_replay_that_goes_on_are_kept(tmp_path: Path, *, goes_on: bool) -> None:
    """Its labels are in its journal alone until it ends; what no record names is removed otherwise."""
    graph = corpus.graph_path(tmp_path, "f" * 64)
    graph.parent.mkdir(parents=True)
    graph.write_bytes(b"")
    if goes_on:
        journal.append(tmp_path / JOURNAL, {"key": "k", "graph_id": "f" * 64})
    assert CliRunner().invoke(app, ["capture", "--corpus", str(tmp_path)]).exit_code == 0
    assert graph.exists() is goes_on


@pytest.mark.slow
def test_a_replayed_record_is_a_label_in_a_file_of_its_own(tmp_path: Path) -> None:
    """A real replay, and the ordinary graph of the same compile; a second run has nothing to do; failures are kept."""
    small = Job(Case("text_cnn", 16, "none", "inference", None), "inductor")
    impossible = Job(Case("no_such_model", 16, "none", "inference", None), "inductor")
    told: dict[str, str] = {}
    replay_all(
        tmp_path,
        [impossible, small],
        report=lambda outcome: told.update({str(outcome["key"]): str(outcome.get("error", "fine"))}),
    )
    assert told[small.key] == "fine"
    assert "no_such_model" in told[impossible.key]
    assert merge_replays(tmp_path) == (1, 1)
    assert not (tmp_path / JOURNAL).exists()

    assert corpus.read(tmp_path) == []
    (record,) = corpus.read(tmp_path, corpus.REPLAYED_RECORDS)
    assert (record["key"], record["source"]) == (small.key, "replayed")
    assert unused_graphs(graphs_in_use(tmp_path), tmp_path) == []
    spec = corpus.read_graph(tmp_path, record["graph_id"])
    assert not spec.traces["inductor"].replayed
    assert (spec.traces["inductor"].region >= 0).any()
    assert list(corpus.faults([record], tmp_path)) == []

    again: list[object] = []
    replay_all(tmp_path, [small], report=again.append)
    assert again == []
    assert list(journal.read(tmp_path / JOURNAL)) == []
