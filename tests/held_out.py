"""Answers for made-up records whose errors are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from samples import make_dataset

from peakcast.training.evaluate import HeldOut


def make_held(plans: Sequence[str] = ("eager", "inductor"), *, tasks: Sequence[str] = ("training",)) -> HeldOut:
    """Return answers 2 % too high for eager and 4 % too low for all else, records of plans and tasks in turn.

    Bounds lie 3 % above the answers, those at the risk of decisions 6 %. Of the four records of each of the four
    architectures the first has `required` measured.
    """
    data = make_dataset(architectures=4, records=4)
    examples = [
        replace(example, plan=plans[row % len(plans)], task=tasks[row // len(plans) % len(tasks)])
        for row, example in enumerate(data.examples)
    ]
    data = replace(data, examples=examples)
    factor = np.array([[1.02 if plan == "eager" else 0.96] for plan in data.plans])
    expected = data.measured_PQ * factor
    return HeldOut(
        data=data,
        folds_P=data.folds(2, 0),
        expected_PQ=expected,
        upper_PQ=1.03 * expected,
        decision_upper_PQ=1.06 * expected,
        confidence_P=["in_distribution"] * len(data),
        extended_P=[False] * len(data),
        risk=0.05,
        tree_shares={"log2_prior": 1.0},
        node_shares={"op": 0.75, "shape": 0.25, "placement": 0.0},
    )


def with_bounds(held: HeldOut, factor: Callable[[int], float]) -> HeldOut:
    """Return the answers with both bounds at `factor(row)` times the truth."""
    bound = held.data.measured_PQ * np.array([[factor(row)] for row in range(len(held.data))])
    return replace(held, upper_PQ=bound, decision_upper_PQ=bound)
