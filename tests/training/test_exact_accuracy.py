"""Replay beside what was measured: which records are drawn, and what the lines of the table say."""

from __future__ import annotations

from typing import Any

import pytest

from peakcast.training.exact_accuracy import ExactRow, exact_jobs, exact_rows
from peakcast.training.jobs import Job
from peakcast.training.zoo import Case


def record(batch: int, plan: str, steady_bytes: int = 1000, **fields: Any) -> dict[str, Any]:
    """Return a measured record of an MLP, as far as replay looks at it."""
    case = Case("mlp4096", batch)
    return {
        "key": Job(case, plan).key,
        "case": case.to_dict(),
        "plan": plan,
        "source": "measured",
        "measured": {"steady_allocated_bytes": steady_bytes},
        **fields,
    }


def replayed(of: dict[str, Any], steady_bytes: int, seconds: float = 2.0) -> dict[str, Any]:
    """Return what came of replaying a record."""
    return {**of, "source": "replayed", "measured": {"steady_allocated_bytes": steady_bytes}, "seconds": seconds}


def test_measured_plans_that_replay_knows_are_drawn() -> None:
    """Neither eager, nor CUDA graphs, nor what ran out of memory, nor what was not measured; the same each time."""
    records = [
        record(1, "inductor"),
        record(2, "inductor:budget=0.5"),
        record(3, "eager"),
        record(4, "inductor:reduce-overhead"),
        record(5, "inductor", out_of_memory=True),
        record(6, "inductor", source="replayed"),
    ]
    jobs = exact_jobs(records, 10)
    assert {job.case.batch for job in jobs} == {1, 2}
    assert exact_jobs(reversed(records), 10) == jobs
    assert len(exact_jobs(records, 1)) == 1


def test_errors_are_those_of_the_same_key_in_per_cent_of_the_measured_bytes() -> None:
    """Of 1 and 3 % the median and mean are 2 %; a failure and a key that was not measured are in no line."""
    one, two, three = record(1, "inductor"), record(2, "inductor"), record(3, "inductor:budget=0.5")
    outcomes = [
        replayed(one, 1010, seconds=1.0),
        replayed(two, 970, seconds=5.0),
        {"key": three["key"], "error": "no kernel"},
        replayed(record(9, "inductor"), 5000),
    ]
    (row,) = exact_rows([one, two, three], outcomes)
    assert row == ExactRow("inductor", 2, pytest.approx(2.0), pytest.approx(2.0), pytest.approx(2.9), 3.0, 3.0)
