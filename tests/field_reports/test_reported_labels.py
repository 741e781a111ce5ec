"""What users reported about measuring: what a cold compile takes is in its own first step, and in no warm label."""

from __future__ import annotations

import math

from peakcast.featurizer.vocabulary import QUANTITIES
from peakcast.training.dataset import measured_bytes


def first_step_labels(cache: str, plan: str = "inductor") -> list[bool]:
    """Tell which quantities of the first step count as labels."""
    measured = {f"{quantity}_bytes": 100 for quantity in QUANTITIES}
    labels = dict(zip(QUANTITIES, measured_bytes({"cache": cache, "plan": plan, "measured": measured}), strict=True))
    assert labels["steady_allocated"] == labels["steady_reserved"] == 100
    return [not math.isnan(labels[name]) for name in ("first_allocated", "first_reserved")]


def test_warm_compiles_give_no_first_step_labels() -> None:
    """Compiling takes memory that a warm cache saves: cold first steps count, and eager ones, which compile nothing."""
    assert first_step_labels("cold") == [True, True]
    assert first_step_labels("warm") == [False, False]
    assert first_step_labels("warm", "eager") == [True, True]
