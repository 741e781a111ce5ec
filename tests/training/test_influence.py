"""Architectures count alike, replays little, and no reporter rules, however much it sends."""

from __future__ import annotations

import numpy as np
import pytest

from peakcast.training.influence import MOST_OF_A_REPORTER, MOST_OF_ALL_REPORTERS, MOST_OF_REPLAYS, weights


def test_architectures_by_hand() -> None:
    """Four records of one and one of another: 1/2 each against 1, brought to a mean of 1."""
    found = weights(["A"] * 4 + ["B"], ["measured"] * 5, [""] * 5)
    assert found.tolist() == pytest.approx([0.5 / 0.6] * 4 + [1.0 / 0.6])


@pytest.mark.parametrize("flood", [10, 1000])
def test_a_flood_weighs_no_more_than_its_share(flood: int) -> None:
    """One reporter has 5 % of the measured weight at most, and takes nothing from the measured records."""
    own = weights([f"A{i}" for i in range(20)], ["measured"] * 20, [""] * 20)
    names = [f"A{i}" for i in range(20)] + [f"F{i}" for i in range(flood)]
    found = weights(names, ["measured"] * 20 + ["reported"] * flood, [""] * 20 + ["mallory"] * flood)
    assert np.array_equal(found[:20], own)
    assert found[20:].sum() == pytest.approx(MOST_OF_A_REPORTER * own.sum())


def test_many_names_share_one_cap() -> None:
    """A hundred reporters together have a quarter of the measured weight at most."""
    names = [f"A{i}" for i in range(20)] + [f"F{i}" for i in range(500)]
    reporters = [""] * 20 + [f"bot{i % 100}" for i in range(500)]
    found = weights(names, ["measured"] * 20 + ["reported"] * 500, reporters)
    assert found[20:].sum() == pytest.approx(MOST_OF_ALL_REPORTERS * found[:20].sum())


def test_an_honest_few_are_not_capped() -> None:
    """Below the cap a report weighs as a measured record of its own architecture does."""
    names = [f"A{i}" for i in range(100)] + ["B"]
    found = weights(names, ["measured"] * 100 + ["reported"], [""] * 100 + ["lab"])
    assert found.tolist() == pytest.approx([1.0] * 101)


def test_replays_together_weigh_as_much_as_what_was_measured() -> None:
    """Thousands of replays have the say of the measured records, not more; a few have less each."""
    names = [f"A{i}" for i in range(10)] + [f"R{i}" for i in range(3000)]
    found = weights(names, ["measured"] * 10 + ["replayed"] * 3000, [""] * 3010)
    assert found[10:].sum() == pytest.approx(MOST_OF_REPLAYS * found[:10].sum())
    few = weights(["A", "R"], ["measured", "replayed"], ["", ""])
    assert few.tolist() == pytest.approx([1.0, 0.3])
