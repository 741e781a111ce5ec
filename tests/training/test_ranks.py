"""Functions run in several ranks: real processes, a real process group."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import typer

from peakcast.training import measure_ranks
from peakcast.training.jobs import Job, plan_spread_jobs
from peakcast.training.ranks import RankError, run_ranks
from peakcast.training.zoo import Case, is_reserved


@pytest.fixture(autouse=True)
def _functions_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def test_each_rank_gives_its_result() -> None:
    """Ranks share one group, and the results come back in their order: (0 + 5) + (1 + 5) = 11."""
    found = run_ranks("cpu_measuring:sum_over_ranks", {"add": 5}, ranks=2, timeout_s=120)
    assert found == [{"rank": 0, "sum": 11.0}, {"rank": 1, "sum": 11.0}]


@pytest.mark.parametrize(
    ("function", "said"),
    [("second_rank_fails", "rank 1 .*ZeroDivisionError"), ("second_rank_dies", "rank 1 ended with status -9")],
)
def test_a_rank_that_fails_takes_the_waiting_ones_with_it(function: str, said: str) -> None:
    """The error names the rank and its own error, long before the group's time-out of minutes."""
    started = time.monotonic()
    with pytest.raises(RankError, match=f"(?s){said}"):
        run_ranks(f"cpu_measuring:{function}", {}, ranks=2, timeout_s=120)
    assert time.monotonic() - started < 100


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "ddp_view"])
def test_ddp_ranks_hold_the_whole_model(parallel: str) -> None:
    """Four weights of 32 x 32 in each rank, which train."""
    found = run_ranks("cpu_measuring:loss_of_a_spread_model", {"parallel": parallel}, ranks=2, timeout_s=120)
    assert [one["held"] for one in found] == [4 * 32 * 32] * 2
    assert all(one["losses"][1] < one["losses"][0] for one in found)


def test_what_fails_afterwards_leaves_the_results() -> None:
    """Rank 1 fails after its result was kept, while rank 0 waits for it: sums as above, and the error's first line."""
    function, afterwards = "cpu_measuring:sum_over_ranks", "cpu_measuring:second_rank_raises"
    found = run_ranks(function, {"add": 5}, ranks=2, timeout_s=120, afterwards=afterwards)
    assert [one["sum"] for one in found] == [11.0, 11.0]
    assert found[1]["afterwards"] == {"failed": "ZeroDivisionError: this rank divides by zero"}
    assert found[0]["afterwards"]["failed"]


def test_what_comes_afterwards_lies_beside_the_results() -> None:
    """(0 + 5) + (1 + 5) = 11, twice."""
    function = "cpu_measuring:sum_over_ranks"
    found = run_ranks(function, {"add": 5}, ranks=2, timeout_s=120, afterwards=function)
    assert [one["afterwards"]["sum"] for one in found] == [one["sum"] for one in found] == [11.0, 11.0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parallel", "least_mib", "most_mib"), [("ddp", 6.0, 6.01), ("ddp_view", 5.0, 5.01), ("fsdp2", 2.5, 3.5)]
)
def test_torchs_tracker_runs_in_each_rank(parallel: str, least_mib: float, most_mib: float) -> None:
    """Weights of 1 MiB under AdamW: weights, gradients, two moments, foreach's temporary, and DDP's buckets.

    FSDP2 halves the five, and gathers weights beside them.
    """
    pytest.importorskip("torch.distributed._tools.fsdp2_mem_tracker")  # private: it may move
    function = "cpu_measuring:tracked_peak_of_a_spread_model"
    found = run_ranks(function, {"parallel": parallel}, ranks=2, timeout_s=120)
    assert all(least_mib <= one["tracker_bytes"] / 2**20 <= most_mib for one in found)


def test_record_of_ranks_keeps_the_tracker_or_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0's quantities are the record's; each rank's tracker is kept, and a failing one says why."""
    job = Job(Case("mlp4096", 64, parallel="ddp"), "eager")
    afterwards = [{"tracker_bytes": 70}, {"tracker_bytes": 80}]

    def give(*_: object, **__: object) -> list[dict[str, Any]]:
        return [
            {"measured": {"steady_allocated_bytes": 100 + rank}, "about": {}, "afterwards": afterwards[rank]}
            for rank in range(2)
        ]

    monkeypatch.setattr(measure_ranks, "run_ranks", give)
    record = measure_ranks.measure_ranks_job(job.to_dict())
    assert record["measured"] == {"steady_allocated_bytes": 100}
    assert [one["steady_allocated_bytes"] for one in record["ranks"]] == [100, 101]
    assert record["tracker"] == [70, 80]
    afterwards[1] = {"failed": "KeyError: 'x'"}
    record = measure_ranks.measure_ranks_job(job.to_dict())
    assert (record["tracker"], record["tracker_failed"]) == (None, "KeyError: 'x'")
    assert record["ranks"][1] == {"steady_allocated_bytes": 101}


def test_a_rank_out_of_memory_is_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends the ranks that wait for it; the pool then sees `out_of_memory` and tries again on an idle card."""

    def fail(*_: object, **__: object) -> None:
        raise RankError("rank 1 ended with status 1: MemoryError: this rank ran out of memory")

    monkeypatch.setattr(measure_ranks, "run_ranks", fail)
    record = measure_ranks.measure_ranks_job(Job(Case("mlp4096", 64, parallel="ddp"), "inductor").to_dict())
    assert record["out_of_memory"] is True
    assert "rank 1" in record["message"]


def test_spread_jobs_are_enough_and_none_is_reserved() -> None:
    """At least 120 records of at least 10 architectures, DDP and FSDP2, eager and compiled, each key once."""
    jobs = plan_spread_jobs()
    assert len({job.key for job in jobs}) == len(jobs) >= 120
    assert {job.case.parallel for job in jobs} == {"ddp", "ddp_view", "fsdp2", "fsdp2_keep", "fsdp2_bf16"}
    assert {job.plan for job in jobs} >= {"eager", "inductor", "hybrid"}
    assert len({job.case.model for job in jobs}) >= 10
    assert all(job.case.ranks == 2 and job.case.run()["world_size"] == 2 for job in jobs)
    assert not any(is_reserved(job.case.model) for job in jobs)


def test_a_case_of_one_rank_is_written_as_before() -> None:
    """Records made before there were ranks keep their keys; a spread case survives the round trip."""
    assert Case("mlp4096", 64).to_dict().get("parallel") is None
    assert Case("mlp4096", 64).key == "mlp4096|b64|none|training|adamw|foreach|standard"
    spread = Case("mlp4096", 64, parallel="fsdp2")
    assert spread.key == "mlp4096|b64|none|training|adamw|foreach|standard|fsdp2"
    assert Case.from_dict(spread.to_dict()) == spread
    with pytest.raises(ValueError, match="training"):
        Case("mlp4096", 64, task="inference", optimizer=None, parallel="ddp")


def test_communicators_without_two_cards_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2, and how many cards there are."""
    with pytest.raises(typer.Exit) as ended:
        measure_ranks.communicators_command()
    assert ended.value.exit_code == 2
    assert "torch sees 0" in capsys.readouterr().err
