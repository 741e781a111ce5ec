"""What is missed of groups left out, worked out by hand."""

from __future__ import annotations

import numpy as np

from peakcast.models.left_out import mass_above, missed_when_left_out


def test_one_record_each() -> None:
    """Scores 1, 2, 3, 4: with none above only the largest is missed, each more allowed misses one more."""
    missed = missed_when_left_out(np.array([1.0, 2.0, 3.0, 4.0]), np.arange(4))
    # At 3, with one above: without 4 the bound is 2, without 3 it is 2, without 2 or 1 it is 3.
    assert missed.tolist() == [0.75, 0.75, 0.5, 0.25]


def test_a_group_counts_by_the_share_of_its_records() -> None:
    """Group a (1, 9) and group b (2, 3): without a the bound at 9 is 3, which half of a exceeds; without b it is 9."""
    scores, groups = np.array([1.0, 2.0, 3.0, 9.0]), np.array([0, 1, 1, 0])
    assert missed_when_left_out(scores, groups)[-1] == 0.25


def test_nothing_is_known_of_others_by_one_group() -> None:
    """With one group there are no others to draw a bound from."""
    assert missed_when_left_out(np.array([1.0, 2.0]), np.zeros(2, np.int64)).tolist() == [1.0, 1.0]


def test_mass_above() -> None:
    """Of masses 1, 0.5 and 0.5 there lie 1, 0.5 and 0 above."""
    assert mass_above(np.array([1.0, 0.5, 0.5])).tolist() == [1.0, 0.5, 0.0]
