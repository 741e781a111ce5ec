"""The bounds hold: finite-sample quantiles by group, infinite where the data cannot say, and coverage over seeds."""

from __future__ import annotations

import numpy as np
import pytest

from peakcast.models.calibration import TAIL_FLOOR, Calibration, ScoreTable


def test_one_record_each_is_the_usual_quantile() -> None:
    """With a record a group the quantile is the ceil((1 - risk)(n + 1))-th smallest score: of 19 at 5 %, the 19th."""
    table = ScoreTable.of(np.arange(1.0, 20.0), list(range(19)))
    assert table.conformal(0.05) == 19.0
    assert table.conformal(0.10) == 18.0
    assert table.conformal(0.5) == 10.0


def test_risk_finer_than_the_data_is_infinite() -> None:
    """Eighteen groups cannot support 5 %."""
    assert ScoreTable.of(np.arange(18.0), list(range(18))).conformal(0.05) == float("inf")


def test_the_tail_is_named_and_grows_with_the_square_root() -> None:
    """Where conformal is infinite the bound is extended: four times finer, twice as far."""
    table = ScoreTable.of(np.array([1.0, 2.0, 8.0]), ["a", "b", "c"])
    coarse, fine = table.quantile(0.04), table.quantile(0.01)
    assert (coarse.support, fine.support, fine.groups) == ("tail", "tail", 3)
    assert coarse.value == pytest.approx(8.0 * (1 / (4 * 0.04)) ** 0.5)
    assert fine.value == pytest.approx(2.0 * coarse.value)


def test_luck_does_not_narrow_the_tail() -> None:
    """Small scores of few groups are not extrapolated from as they stand."""
    assert ScoreTable.of(np.array([0.0, 0.1]), ["a", "b"]).quantile(0.1).value >= TAIL_FLOOR


def test_many_records_of_one_group_count_as_one_group() -> None:
    """A thousand records of one architecture weigh as one: they do not make the bound finite."""
    table = ScoreTable.of(np.arange(1000.0), ["a"] * 1000)
    assert table.groups == 1
    assert table.conformal(0.05) == float("inf")
    # Its mass is one half, the other half is at infinity: the quantile at 50 % is its largest score.
    assert table.conformal(0.5) == 999.0


def test_finest_class_with_enough_groups_answers() -> None:
    """A class with too few architectures backs off to the coarser one."""
    scores = np.array([10.0, 11.0, 1.0, 2.0, 3.0])
    names = [("fine", "all")] * 2 + [("other", "all")] * 3
    groups = ["a", "b", "c", "d", "e"]
    strict = Calibration.fit(scores, groups, names, min_groups=3)
    assert strict.quantile(("fine", "all"), 0.5).groups == 5
    lax = Calibration.fit(scores, groups, names, min_groups=2)
    assert lax.quantile(("fine", "all"), 0.5).value == 11.0


def test_class_never_measured_is_wide() -> None:
    """Without any score the bound still is finite, wide, and says it is no conformal one."""
    bound = Calibration({}).quantile(("nothing",), 0.01)
    assert (bound.support, bound.groups) == ("tail", 0)
    assert bound.value >= 10 * TAIL_FLOOR


def test_survives_json() -> None:
    """The file gives back the same numbers to the bit."""
    random = np.random.default_rng(0)
    made = Calibration.fit(random.standard_normal(40), list(range(40)), [("fine", "all")] * 40)
    again = Calibration.from_dict(made.to_dict())
    assert again.quantile(("fine",), 0.05) == made.quantile(("fine",), 0.05)


@pytest.mark.parametrize("risk", [0.0, 1.0, -0.1, float("nan")])
def test_refuses_an_impossible_risk(risk: float) -> None:
    """Risk lies strictly between 0 and 1."""
    with pytest.raises(ValueError, match="risk must lie between 0 and 1"):
        ScoreTable.of(np.array([1.0]), ["a"]).quantile(risk)


def _missed(random: np.random.Generator, risk: float) -> float:
    """Draw 40 groups of 1 to 12 records with a common effect each, and return the share missed in 20 new groups."""

    def draw(groups: int) -> tuple[np.ndarray, list[int]]:
        scores, labels = [], []
        for group in range(groups):
            size = int(random.integers(1, 13))
            scores.append(random.standard_t(3) + 0.3 * random.standard_normal(size))
            labels += [group] * size
        return np.concatenate(scores), labels

    scores, groups = draw(40)
    calibration = Calibration.fit(scores, groups, [("all",)] * len(scores))
    bound = calibration.quantile(("all",), risk).value
    new, labels = draw(20)
    missed = [float((new[np.array(labels) == group] > bound).mean()) for group in range(20)]
    return float(np.mean(missed))


@pytest.mark.slow
@pytest.mark.parametrize("risk", [0.05, 0.1, 0.3])
def test_coverage_over_seeds(risk: float) -> None:
    """A record of a new group exceeds the bound no more often than the risk, and not much less often than it."""
    missed = np.array([_missed(np.random.default_rng(seed), risk) for seed in range(600)])
    error = missed.std() / len(missed) ** 0.5
    assert missed.mean() <= risk + 3 * error
    # The promise is kept without waste: at most 1 / (groups + 1) is given away.
    assert missed.mean() >= risk - 1 / 41 - 3 * error
