"""Scales follow the learned excess between their limits; classes go from fine to coarse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from samples import MIB, make_dataset

from peakcast.models.bounds import class_names, excess_target, scale_bytes


def test_what_is_learned_is_the_excess() -> None:
    """10 % above what is expected is log2(10 % + 0.5 %); below it there is no excess; 80 % counts as 50 %."""
    learned = excess_target(np.array([[110.0, 60.0, 180.0, np.nan]]), np.full((1, 4), 100.0))
    assert np.exp2(learned[0, :3]).tolist() == pytest.approx([0.105, 0.005, 0.505])
    assert np.isnan(learned[0, 3])


def test_scale_is_the_learned_excess_in_bytes() -> None:
    """Of 1,000 MiB: 10 % learned is 100 MiB, a thousandth and a block are always on top, and half is the most."""
    log2_excess = np.array([[np.log2(0.105), -20.0, 0.0]])
    scales = scale_bytes(log2_excess, np.full((1, 3), 1000.0 * MIB))
    assert (scales / MIB).tolist() == [pytest.approx([100.0 + 1.0 + 2.0, 1.0 + 2.0, 500.0 + 1.0 + 2.0])]


def test_classes_from_fine_to_coarse() -> None:
    """Plan and task come first; `required` joins the allocated bytes where it is alone; none is named twice."""
    example = replace(make_dataset().examples[0], plan="inductor:budget=0.5", task="training")
    assert class_names(example, "required") == (
        "inductor:budget/training/required",
        "compiled/training/required",
        "inductor:budget/training/allocated",
        "compiled/training/allocated",
        "compiled/allocated",
        "allocated",
        "all",
    )
    eager = class_names(replace(example, plan="eager"), "first_reserved")
    assert eager == ("eager/training/first_reserved", "eager/training/reserved", "eager/reserved", "reserved", "all")
