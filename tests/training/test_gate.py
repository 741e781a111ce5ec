"""The gate lets a version pass that is no worse, and stops one that is: for sure, or by much."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from samples import make_dataset

from peakcast.models.example import Floats
from peakcast.models.predictor import Forecast
from peakcast.training.dataset import Dataset
from peakcast.training.gate import Verdict, judge


@pytest.fixture(scope="module")
def frozen() -> Dataset:
    """Return 20 architectures of 4 records, measured exactly as the prior says."""
    data = make_dataset(architectures=20, records=4)
    return replace(data, measured_PQ=data.priors)


def answer(data: Dataset, factor: float | Floats, bound: float = 1.1) -> Forecast:
    """Return a forecast of the truth times a factor, with bounds above the truth by another."""
    expected = data.measured_PQ * factor
    count = len(data)
    return Forecast(
        expected,
        data.measured_PQ * bound,
        confidence=("in_distribution",) * count,
        doubts=((),) * count,
        opaque=((),) * count,
        extended=(False,) * count,
    )


def test_the_same_answers_pass(frozen: Dataset) -> None:
    """Nothing changed: every line shows no change at all."""
    verdict = judge(frozen, answer(frozen, 1.02), answer(frozen, 1.02), version="pair-old")
    assert verdict.passes
    assert {line.change_points for line in verdict.lines} == {0.0}
    assert "no worse than pair-old" in verdict.reason
    # 2 plan kinds and all of them, 5 quantities; bounds and slack for all of them.
    assert len(verdict.lines) == 3 * 5 + 2 * 5


def test_errors_are_shares_of_the_truth(frozen: Dataset) -> None:
    """From 2 % off to 1 % off, all over: the mean falls by one point and the interval has no width."""
    verdict = judge(frozen, answer(frozen, 1.02), answer(frozen, 0.99), version="pair-old")
    line = next(line for line in verdict.lines if (line.plans, line.measure) == ("all plans", "error"))
    assert (line.records, line.architectures) == (80, 20)
    assert (line.before_percent, line.after_percent) == (pytest.approx(2.0), pytest.approx(1.0))
    assert (line.low_points, line.high_points) == (pytest.approx(-1.0), pytest.approx(-1.0))
    assert verdict.passes


def test_worse_for_sure_is_stopped(frozen: Dataset) -> None:
    """A fifth of a point on every record is little, and certain."""
    verdict = judge(frozen, answer(frozen, 1.0), answer(frozen, 1.002), version="pair-old")
    assert not verdict.passes
    assert "worse than pair-old" in verdict.reason


def test_worse_by_much_is_stopped_however_unsure(frozen: Dataset) -> None:
    """One architecture of twenty 40 % off: the interval reaches down to nothing, the mean is two points worse."""
    factor = np.where(np.array(frozen.architectures) == "Architecture03", 1.4, 1.0)[:, None]
    verdict = judge(frozen, answer(frozen, 1.0), answer(frozen, factor), version="pair-old")
    line = next(line for line in verdict.lines if (line.plans, line.measure) == ("all plans", "error"))
    assert line.low_points == 0.0
    assert line.change_points == pytest.approx(2.0)
    assert line.is_worse
    assert not verdict.passes


def test_luck_of_a_few_is_let_through(frozen: Dataset) -> None:
    """One architecture 2 % off is a tenth of a point, and not sure: no regression."""
    factor = np.where(np.array(frozen.architectures) == "Architecture03", 1.02, 1.0)[:, None]
    assert judge(frozen, answer(frozen, 1.0), answer(frozen, factor), version="pair-old").passes


def test_bounds_count_too(frozen: Dataset) -> None:
    """The same expectation with bounds below the truth, or three times as wide, is stopped."""
    before = answer(frozen, 1.0)
    for bound, measure in ((0.99, "above the bound"), (1.3, "slack")):
        verdict = judge(frozen, before, answer(frozen, 1.0, bound), version="pair-old")
        assert {line.measure for line in verdict.lines if line.is_worse} == {measure}


def test_without_a_version_the_simulation_is_the_measure(frozen: Dataset) -> None:
    """The first version must be no worse than no learning at all; here the prior is the truth."""
    assert judge(frozen, None, answer(frozen, 1.0), version="None").passes
    verdict = judge(frozen, None, answer(frozen, 1.01), version="None")
    assert "worse than the simulation alone" in verdict.reason


def test_nothing_to_judge_by_is_no_pass() -> None:
    """A corpus without frozen architectures cannot show that nothing got worse."""
    verdict = Verdict("pair-old", ())
    assert not verdict.passes
    assert "no measured record of a frozen architecture" in verdict.reason
