"""The gate: a new version goes into use only if it is no worse than the one in use on architectures neither has seen.

Both answer for the same records of the frozen test split, so the comparison is paired. Records of one architecture are
not independent: intervals come from a bootstrap over architectures (Field & Welsh, "Bootstrapping clustered data",
JRSS B 2007).

Shapes: P records, Q quantities, A architectures.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from peakcast.featurizer.vocabulary import QUANTITIES
from peakcast.models.decision import plan_kind
from peakcast.models.example import Floats
from peakcast.models.predictor import Forecast
from peakcast.training.dataset import Dataset

# The risk of the bounds that are compared.
JUDGED_RISK: Final = 0.05
_RESAMPLES: Final = 2000
# Two dozen lines are judged at once: at 95 % one of them would be taken for worse by chance alone.
_LEVEL: Final = 0.99
# Beyond this many points a worse mean stops a version though the interval is wide; a hair is no regression.
_LARGE_POINTS: Final = {"error": 0.5, "above the bound": 5.0, "slack": 10.0}
_HAIR_POINTS: Final = 0.05
# Fewer architectures say nothing about a mean that the interval does not say better.
_LEAST_ARCHITECTURES: Final = 10
_ALL: Final = "all plans"


@dataclass(frozen=True, slots=True)
class Line:
    """One measure of both versions over some records. Percent, and points of percent; positive changes are worse."""

    plans: str
    quantity: str
    measure: str  # error, above the bound, slack
    records: int
    architectures: int
    before_percent: float
    after_percent: float
    low_points: float  # interval of the change
    high_points: float

    @property
    def change_points(self) -> float:
        """Return after minus before."""
        return self.after_percent - self.before_percent

    @property
    def is_worse(self) -> bool:
        """Tell whether the new version is worse for sure, or by much."""
        sure = self.low_points > _HAIR_POINTS
        much = self.change_points > _LARGE_POINTS[self.measure] and self.architectures >= _LEAST_ARCHITECTURES
        return sure or much


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the gate found."""

    before: str  # the version in use, or "the simulation alone"
    lines: tuple[Line, ...]
    note: str = ""

    @property
    def passes(self) -> bool:
        """Tell whether the new version may go into use."""
        return bool(self.lines) and not any(line.is_worse for line in self.lines)

    @property
    def reason(self) -> str:
        """Return the verdict in words."""
        if not self.lines:
            return "not passed: there is no measured record of a frozen architecture to judge by"
        worse = [f"{line.measure} of {line.quantity}, {line.plans}" for line in self.lines if line.is_worse]
        if worse:
            return f"not passed: worse than {self.before} in {len(worse)} of {len(self.lines)} lines ({worse[0]} first)"
        return f"passed: no worse than {self.before} in any of {len(self.lines)} lines"

    def table(self) -> Table:
        """Return the lines for people."""
        shown = Table("plans", "quantity", "measure", title=f"frozen test split, new version against {self.before}")
        for header in ("records", "architectures", "before", "after", "change", f"{_LEVEL:.0%} interval", ""):
            shown.add_column(header, justify="right", no_wrap=True)
        for line in self.lines:
            shown.add_row(
                line.plans,
                line.quantity,
                line.measure,
                str(line.records),
                str(line.architectures),
                f"{line.before_percent:.2f} %",
                f"{line.after_percent:.2f} %",
                f"{line.change_points:+.2f}",
                f"{line.low_points:+.2f} .. {line.high_points:+.2f}",
                "worse" if line.is_worse else "",
            )
        return shown


def judge(frozen: Dataset, before: Forecast | None, after: Forecast, *, version: str, seed: int = 0) -> Verdict:
    """Compare two versions' forecasts (at `JUDGED_RISK`) of the frozen split's measured records.

    `version` names the one before. Without `before` (there is none, or it no longer loads) the simulation alone, whose
    bound is its own answer, stands in for errors; bounds are then not compared.
    """
    lines = []
    groups_P = np.unique(np.array(frozen.architectures), return_inverse=True)[1]
    for plans, quantity, column, chosen in _cells(frozen):
        measured = frozen.measured_PQ[chosen, column]
        expected = frozen.priors if before is None else before.expected_PQ
        pairs = {"error": [_error(side[chosen, column], measured) for side in (expected, after.expected_PQ)]}
        if before is not None and plans == _ALL:
            upper = [side.upper_PQ[chosen, column] for side in (before, after)]
            pairs["above the bound"] = [100.0 * (measured > bound) for bound in upper]
            pairs["slack"] = [100.0 * np.maximum(bound / measured - 1.0, 0.0) for bound in upper]
        for measure, (old, new) in pairs.items():
            low, high = _interval(new - old, groups_P[chosen], seed)
            count = len(set(groups_P[chosen].tolist()))
            lines.append(
                Line(plans, quantity, measure, len(old), count, float(old.mean()), float(new.mean()), low, high)
            )
    return Verdict("the simulation alone" if before is None else version, tuple(lines))


def _cells(frozen: Dataset) -> Iterator[tuple[str, str, int, NDArray[np.int64]]]:
    """Yield plans, quantity, its column and the rows that have it: by plan kind, then all together."""
    kinds = np.array([plan_kind(plan) for plan in frozen.plans])
    for plans in (*sorted(set(kinds.tolist())), _ALL):
        for column, quantity in enumerate(QUANTITIES):
            of_plans = np.ones(len(kinds), bool) if plans == _ALL else kinds == plans
            chosen = np.flatnonzero(of_plans & np.isfinite(frozen.measured_PQ[:, column]) & frozen.is_measured_P)
            if len(chosen):
                yield plans, quantity, column, chosen


def _error(expected: Floats, measured: Floats) -> Floats:
    error: Floats = np.abs(expected / measured - 1.0) * 100.0
    return error


def _interval(change: Floats, groups: NDArray[np.int64], seed: int) -> tuple[float, float]:
    """Return the interval of the mean change under resampled architectures."""
    place = np.unique(groups, return_inverse=True)[1]
    sums, sizes = np.bincount(place, weights=change), np.bincount(place).astype(float)
    draws = np.random.default_rng(seed).integers(0, len(sums), (_RESAMPLES, len(sums)))
    means = sums[draws].sum(axis=1) / sizes[draws].sum(axis=1)
    low, high = np.quantile(means, [(1.0 - _LEVEL) / 2.0, (1.0 + _LEVEL) / 2.0])
    return float(low), float(high)
