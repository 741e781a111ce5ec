"""How many truths lie within their bounds, by architecture and by record, and how far above them the bounds lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from peakcast.featurizer.vocabulary import QUANTITIES
from peakcast.training.accuracy_rows import ALL, RECOMPUTING, chosen_rows
from peakcast.training.cluster_bootstrap import Share, by_architecture, by_record
from peakcast.training.evaluate import HeldOut

_STEADY_LINES: Final = ("eager", "inductor", RECOMPUTING, ALL)


@dataclass(frozen=True, slots=True)
class Covered:
    """The bounds of one quantity over some records."""

    label: str
    quantity: str
    n: int
    architectures: int
    by_architecture: Share | None  # at the risk that is judged
    by_record: Share | None
    by_record_at_decision_risk: Share | None
    slack_mean_percent: float
    slack_median_percent: float


def coverage_rows(held: HeldOut) -> list[Covered]:
    """Return the lines that have records: steady_allocated by kind of plan, the others over all."""
    lines = [
        _covered(held, label, column)
        for column in range(len(QUANTITIES))
        for label in (_STEADY_LINES if column == 0 else (ALL,))
    ]
    return [line for line in lines if line is not None]


def _covered(held: HeldOut, label: str, column: int) -> Covered | None:
    index = chosen_rows(held.data, label, column)
    if not len(index):
        return None
    measured = held.data.measured_PQ[index, column]
    upper = held.upper_PQ[index, column]
    architectures = [held.data.architectures[row] for row in index]
    within = (measured <= upper).astype(float)
    within_decision = (measured <= held.decision_upper_PQ[index, column]).astype(float)
    every = np.ones(len(index))
    slack = (upper / measured - 1.0) * 100.0
    return Covered(
        label=label,
        quantity=QUANTITIES[column],
        n=len(index),
        architectures=len(set(architectures)),
        by_architecture=by_architecture(within, architectures),
        by_record=by_record(within, every, architectures),
        by_record_at_decision_risk=by_record(within_decision, every, architectures),
        slack_mean_percent=float(slack.mean()),
        slack_median_percent=float(np.median(slack)),
    )
