"""How often "it fits" is wrong, at limits spread evenly within 30 % of the truth.

The shares are exact for limits uniform between 0.7 and 1.3 times the truth, not counted on a grid: an answer 1 % off
is wrong for the limits in between, 1 % of the truth of the 60 % there are. A grid with a point at the truth itself
would count any answer a byte too large as wrong there.

Shapes: P records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from peakcast.featurizer.vocabulary import QUANTITIES
from peakcast.training.accuracy_rows import ALL, RECOMPUTING, chosen_rows
from peakcast.training.cluster_bootstrap import Share, by_record
from peakcast.training.evaluate import HeldOut

LOWEST: Final = 0.7
HIGHEST: Final = 1.3
_LINES: Final = ("eager", "inductor", RECOMPUTING, ALL)
# What the project aims at, in percent: wrong decisions by the expected value, and "fits" by the bound that did not.
_WRONG_AIM_PERCENT: Final = {"eager": 2.0, "inductor": 5.0}
_MISFIT_AIM_PERCENT: Final = 1.0
AIMS: Final = (
    f"{', '.join(f'{percent:g} % wrong of {label}' for label, percent in _WRONG_AIM_PERCENT.items())}, "
    f"{_MISFIT_AIM_PERCENT:g} % misfits"
)
# The truth that limits are drawn around: first what was found by bisection, as the definition of fitting has it.
_TRUTHS: Final = ("required", "steady_allocated")


@dataclass(frozen=True, slots=True)
class Decided:
    """Decisions over some records. A refusal is false where the step fits; its share is of the limits that fit."""

    label: str
    truth: str  # the measured quantity that limits are drawn around, and that is predicted
    n: int
    architectures: int
    wrong: Share | None  # by the expected value
    wrong_aim_percent: float | None
    misfits: Share | None  # by the bound: of the limits called "fits", those that did not
    misfits_aim_percent: float
    false_refusals: Share | None  # by the bound


def decision_rows(held: HeldOut) -> list[Decided]:
    """Return the lines that have records: with `required` measured, then all with steady_allocated as the truth."""
    lines = [_decided(held, label, QUANTITIES.index(truth)) for truth in _TRUTHS for label in _LINES]
    return [line for line in lines if line is not None]


def _decided(held: HeldOut, label: str, column: int) -> Decided | None:
    index = chosen_rows(held.data, label, column)
    if not len(index):
        return None
    measured = held.data.measured_PQ[index, column]
    architectures = [held.data.architectures[row] for row in index]
    # What is said, in units of the truth: every limit from there on is called "fits".
    expected = np.clip(held.expected_PQ[index, column] / measured, LOWEST, HIGHEST)
    upper = np.clip(held.decision_upper_PQ[index, column] / measured, LOWEST, HIGHEST)
    all_limits = np.full(len(index), HIGHEST - LOWEST)
    return Decided(
        label=label,
        truth=QUANTITIES[column],
        n=len(index),
        architectures=len(set(architectures)),
        wrong=by_record(np.abs(expected - 1.0), all_limits, architectures),
        wrong_aim_percent=_WRONG_AIM_PERCENT.get(label),
        misfits=by_record(np.maximum(1.0 - upper, 0.0), HIGHEST - upper, architectures),
        misfits_aim_percent=_MISFIT_AIM_PERCENT,
        false_refusals=by_record(np.maximum(upper - 1.0, 0.0), np.full(len(index), HIGHEST - 1.0), architectures),
    )


def is_met(share: dict[str, Any] | None, aim_percent: float | None) -> bool | None:
    """Tell whether a share is no larger than aimed at; None where there is no aim or nothing to judge."""
    if share is None or aim_percent is None:
        return None
    return bool(share["percent"] <= aim_percent)
