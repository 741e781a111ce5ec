"""Functions run in several ranks: real processes, a real process group."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from peakcast.training.jobs import plan_spread_jobs
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
