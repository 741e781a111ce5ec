"""The lines of the accuracy report: errors of the pair, the simulation and a rule of thumb, by kind of plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from peakcast.featurizer.vocabulary import QUANTITIES
from peakcast.models.decision import plan_kind
from peakcast.models.example import Floats
from peakcast.training.dataset import Dataset
from peakcast.training.evaluate import HeldOut

# The rule of thumb of training with Adam: weights, gradients and two moments.
WEIGHTS_RULE: Final = 4

BOTH: Final = "eager and inductor"
ALL: Final = "all plans"
RECOMPUTING: Final = "budget, hybrid, eager:checkpoint"
# Of steady_allocated: what a line is called, the kinds of plans in it (None: all), and its task (None: both).
_LINES: Final[tuple[tuple[str, tuple[str, ...] | None, str | None], ...]] = (
    ("eager, inference", ("eager",), "inference"),
    ("eager, training", ("eager",), "training"),
    ("eager", ("eager",), None),
    ("inductor, inference", ("inductor",), "inference"),
    ("inductor, training", ("inductor",), "training"),
    ("inductor", ("inductor",), None),
    ("inductor under a budget", ("inductor:budget",), None),
    ("hybrid", ("hybrid",), None),
    ("eager:checkpoint", ("eager:checkpoint",), None),
    (RECOMPUTING, ("inductor:budget", "hybrid", "eager:checkpoint"), None),
    ("inductor:reduce-overhead", ("inductor:reduce-overhead",), None),
    ("inductor:max-autotune", ("inductor:max-autotune",), None),
    (BOTH, ("eager", "inductor"), None),
    (ALL, None, None),
)
# Of every other quantity.
_SUMMED: Final = (BOTH, ALL)


@dataclass(frozen=True, slots=True)
class Score:
    """Errors of one method over some records. Percent of the measured bytes."""

    n: int
    median_percent: float
    mean_percent: float
    p95_percent: float
    under_predicted_percent: float


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a set of records and a quantity under the three methods, and the pair's bound."""

    label: str
    quantity: str
    pair: Score
    prior: Score
    weights_rule: Score
    covered_percent: float
    slack_percent: float


@dataclass(frozen=True, slots=True)
class Worst:
    """One of the records predicted worst."""

    key: str
    architecture: str
    plan: str
    task: str
    measured_bytes: int
    expected_bytes: int
    prior_bytes: int
    error_percent: float
    confidence: str


def score(expected: Floats, measured: Floats) -> Score:
    """Return the errors of expectations, all measured."""
    if not len(measured):
        return Score(0, *[float("nan")] * 4)
    signed = expected / measured - 1.0
    error = np.abs(signed) * 100.0
    return Score(
        n=len(measured),
        median_percent=float(np.median(error)),
        mean_percent=float(error.mean()),
        p95_percent=float(np.percentile(error, 95)),
        under_predicted_percent=float((signed < 0).mean() * 100.0),
    )


def chosen_rows(data: Dataset, label: str, column: int) -> NDArray[np.int64]:
    """Return the records of a line that have a quantity measured."""
    kinds, task = next((kinds, task) for name, kinds, task in _LINES if name == label)
    of_line = [
        (kinds is None or plan_kind(example.plan) in kinds) and task in {None, example.task}
        for example in data.examples
    ]
    return np.flatnonzero(np.array(of_line, dtype=bool) & np.isfinite(data.measured_PQ[:, column]))


def table(held: HeldOut) -> list[Row]:
    """Return the lines that have records: steady_allocated by kind of plan and task, every other quantity summed."""
    rows = [
        _row(held, column, label)
        for column in range(len(QUANTITIES))
        for label in ([name for name, _, _ in _LINES] if column == 0 else _SUMMED)
    ]
    return [row for row in rows if row.pair.n]


def _row(held: HeldOut, column: int, label: str) -> Row:
    index = chosen_rows(held.data, label, column)
    measured = held.data.measured_PQ[index, column]
    upper = held.upper_PQ[index, column]
    return Row(
        label=label,
        quantity=QUANTITIES[column],
        pair=score(held.expected_PQ[index, column], measured),
        prior=score(held.data.priors[index, column], measured),
        weights_rule=score(WEIGHTS_RULE * held.data.weights_bytes_P[index], measured),
        covered_percent=float((measured <= upper).mean() * 100.0) if len(index) else float("nan"),
        slack_percent=float((upper / measured - 1.0).mean() * 100.0) if len(index) else float("nan"),
    )


def worst(held: HeldOut, count: int = 20) -> list[Worst]:
    """Return the records whose steady_allocated is furthest off, worst first."""
    measured, expected = held.data.measured_PQ[:, 0], held.expected_PQ[:, 0]
    error = np.nan_to_num((expected / measured - 1.0) * 100.0)
    return [
        Worst(
            key=held.data.keys[row],
            architecture=held.data.architectures[row],
            plan=held.data.examples[row].plan,
            task=held.data.examples[row].task,
            measured_bytes=round(float(measured[row])),
            expected_bytes=round(float(expected[row])),
            prior_bytes=round(float(held.data.priors[row, 0])),
            error_percent=float(error[row]),
            confidence=held.confidence_P[row],
        )
        for row in np.argsort(-np.abs(error), kind="stable")[:count]
    ]
