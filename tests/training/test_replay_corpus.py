"""Replayed labels: which cases are drawn, and that a replayed record is one, in a file of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from peakcast.featurizer.plans import parse_plan
from peakcast.training import corpus, journal
from peakcast.training.jobs import Job
from peakcast.training.replay_corpus import JOURNAL, graphs_in_use, merge_replays, replay_all, replay_jobs
from peakcast.training.zoo import Case, entries, is_reserved


def test_the_same_seed_draws_the_same_cases_over_the_whole_zoo() -> None:
    """Every model comes once before any comes twice, each key is there once, and a shorter list is a beginning."""
    jobs = replay_jobs(400, seed=3)
    assert len({job.key for job in jobs}) == len(jobs) == 400
    models = [job.case.model for job in jobs]
    count = len({one for one in entries() if not is_reserved(one)})
    assert len(set(models[:count])) == count
    assert [job.key for job in replay_jobs(400, seed=3)] == [job.key for job in jobs]
    assert {job.key for job in replay_jobs(400, seed=4)} != {job.key for job in jobs}


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


@pytest.mark.slow
def test_a_replayed_record_is_a_label_in_a_file_of_its_own(tmp_path: Path) -> None:
    """A real replay: its graph is the ordinary one, a second run has nothing to do, and a failure is no label."""
    small = Job(Case("text_cnn", 16, "none", "inference", None), "inductor")
    impossible = Job(Case("text_cnn", 16, "none", "inference", None), "hybrid")
    told: list[str] = []
    replay_all(tmp_path, [small, impossible], report=lambda outcome: told.append(str(outcome.get("error", "fine"))))
    assert told[0] == "fine"
    assert len(told) == 2
    failures = sum(text != "fine" for text in told)
    assert merge_replays(tmp_path) == (2 - failures, failures)
    assert not (tmp_path / JOURNAL).exists()

    assert corpus.read(tmp_path) == []
    (record, *_) = [one for one in corpus.read(tmp_path, corpus.REPLAYED_RECORDS) if one["key"] == small.key]
    assert record["source"] == "replayed"
    spec = corpus.read_graph(tmp_path, record["graph_id"])
    assert not spec.traces["inductor"].replayed
    assert (spec.traces["inductor"].region >= 0).any()
    assert list(corpus.faults([record], tmp_path)) == []
    assert [one["graph_id"] for one in graphs_in_use(tmp_path) if one["key"] == small.key] == [record["graph_id"]]

    again: list[object] = []
    replay_all(tmp_path, [small], report=again.append)
    assert again == []
    assert list(journal.read(tmp_path / JOURNAL)) == []
