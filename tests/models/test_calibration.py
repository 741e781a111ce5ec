"""The bounds hold: finite-sample quantiles by group, infinite where the data cannot say, and coverage over seeds."""

from __future__ import annotations

import numpy as np
import pytest

from peakcast.models.calibration import MIN_GROUPS, TAIL_FLOOR, Calibration, ScoreTable


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


def test_finest_class_that_supports_the_risk_answers() -> None:
    """A class of three architectures has a say at 50 %, where two of four masses may lie above; at 40 % all five do."""
    scores = np.array([10.0, 11.0, 12.0, 1.0, 2.0])
    names = [("fine", "all")] * 3 + [("other", "all")] * 2
    made = Calibration.fit(scores, ["a", "b", "c", "d", "e"], names)
    assert (made.quantile(("fine", "all"), 0.5).value, made.quantile(("fine", "all"), 0.5).groups) == (11.0, 3)
    assert (made.quantile(("other", "all"), 0.4).value, made.quantile(("other", "all"), 0.4).groups) == (11.0, 5)


def test_a_small_class_that_is_worse_still_counts() -> None:
    """Two of a class's three architectures reach 8 and more: the coarse class lowers nothing below."""
    scores = np.array([7.0, 8.0, 9.0, *np.ones(97)])
    names = [("fine", "all")] * 3 + [("other", "all")] * 97
    made = Calibration.fit(scores, list(range(100)), names)
    assert made.quantile(("other", "all"), 0.04).value == 1.0
    assert made.quantile(("fine", "all"), 0.04).value == 8.0


def _one_in_ten(count: int) -> tuple[np.ndarray, list[int]]:
    """Return groups of ten records: nine of group g are exact, one exceeds what is expected by g + 1 scales."""
    scores = np.zeros((count, 10))
    scores[:, 0] = np.arange(1.0, count + 1.0)
    return scores.ravel(), [group for group in range(count) for _ in range(10)]


def test_below_the_conformal_risks_the_left_out_tell() -> None:
    """A new group of such has one record in ten above: 1 % allows 40 x 0.01 = 0.4 groups' mass, four groups' worst.

    Conformal prediction alone reckons with all ten above, and has no answer below 1 / 41.
    """
    table = ScoreTable.of(*_one_in_ten(40))
    assert table.conformal(0.01) == float("inf")
    found = table.quantile(0.01)
    # With m worst records allowed above, m + 1 groups left out have one record in ten missed: (m + 1) / 400 <= 0.01.
    assert (found.value, found.support) == (37.0, "left_out")
    assert table.quantile(2 / 41).support == "conformal"
    assert (table.quantile(0.05).value, table.quantile(0.05).support) == (30.0, "conformal")


def test_few_left_out_tell_nothing() -> None:
    """Fewer than MIN_GROUPS groups do not tell how unlike groups are, however many records they have."""
    table = ScoreTable.of(*_one_in_ten(MIN_GROUPS - 1))
    assert table.left_out(0.02) < float("inf")
    assert table.quantile(0.02).support == "tail"


def test_finer_risk_never_lowers_a_bound() -> None:
    """Over classes of all sizes, and across what each quantile rests on."""
    random = np.random.default_rng(5)
    groups = random.integers(0, 80, 900)
    scores = random.standard_t(2, 900) + random.standard_t(2, 80)[groups]
    names = [("fine",) * int(group < 6) + ("middle",) * int(group < 30) + ("all",) for group in groups]
    made = Calibration.fit(scores, groups.tolist(), names)
    risks = np.geomspace(0.6, 1e-6, 400)
    for chain in (("fine", "middle", "all"), ("middle", "all"), ("all",)):
        found = [made.quantile(chain, float(risk)) for risk in risks]
        assert (np.diff([one.value for one in found]) >= 0.0).all()
        assert {one.support for one in found} == {"conformal", "left_out", "tail"}


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


def _missed(random: np.random.Generator, risk: float, *, common: float = 1.0, own: float = 0.3) -> float:
    """Draw 40 groups of 1 to 12 records, and return the share missed in 20 new groups.

    `common` is how far groups differ from each other, `own` how far the records of one do.
    """

    def draw(groups: int) -> tuple[np.ndarray, list[int]]:
        scores, labels = [], []
        for group in range(groups):
            size = int(random.integers(1, 13))
            scores.append(3.0 + common * random.standard_t(3) + own * random.standard_normal(size))
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


@pytest.mark.slow
@pytest.mark.parametrize(("common", "own"), [(0.1, 1.0), (0.3, 0.6)])
def test_left_out_covers_over_seeds(common: float, own: float) -> None:
    """Where 40 groups support no conformal bound, at 2 %, the one of those left out holds, with little to spare."""
    missed = np.array([_missed(np.random.default_rng(seed), 0.02, common=common, own=own) for seed in range(600)])
    error = missed.std() / len(missed) ** 0.5
    assert 0.02 / 3 <= missed.mean() <= 0.02 + 3 * error
