"""Leaks of 64 KiB a step are found, and what does not leak is left alone."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from peakcast.client.recompiles.slope import SlopeWatch, slope

KIB, MIB = 1 << 10, 1 << 20
STEPS = range(64)


@pytest.fixture
def rng() -> np.random.Generator:
    """Give noise that is the same in every run and order."""
    return np.random.default_rng(7)


def test_64_kib_a_step_is_found_to_the_byte() -> None:
    """On a base of 7 GiB, with nothing else moving, slope and lower bound are the leak."""
    found = slope(STEPS, [7 * 1024 * MIB + 64 * KIB * step for step in STEPS])
    assert (found.bytes_per_step, found.sure_bytes_per_step, found.leaks) == (64 * KIB, 64 * KIB, True)


def test_64_kib_a_step_is_found_under_the_noise_of_changing_batches(rng: np.random.Generator) -> None:
    """Batches move the bytes alive by up to 1 MiB; over 128 steps the leak is 8 MiB and is found within a quarter."""
    steps = range(128)
    found = slope(steps, [64 * KIB * step + int(rng.uniform(0, MIB)) for step in steps])
    assert found.leaks
    assert found.bytes_per_step == pytest.approx(64 * KIB, rel=0.25)


@pytest.mark.parametrize(
    "made",
    [
        [5 * MIB] * 64,
        [5 * MIB] * 30 + [9 * MIB] * 34,
        [MIB * (1 + step % 8) for step in STEPS],
        [64 * MIB - MIB * step for step in STEPS],
        [16 * step for step in STEPS],
        [5 * MIB + (64 * MIB if step in {20, 40} else 0) for step in STEPS],
    ],
    ids=["flat", "one jump", "sawtooth", "shrinking", "16 bytes a step", "outliers"],
)
def test_what_does_not_leak_is_left_alone(made: list[int]) -> None:
    """Flat, one jump of a recompile, batches in turn, and less than would ever matter."""
    assert not slope(STEPS, made).leaks


def test_noise_alone_hardly_ever_alarms(rng: np.random.Generator) -> None:
    """Of 500 windows of pure noise at most 3 alarm: one in a thousand is promised."""
    alarms = sum(slope(range(64), rng.uniform(0, 10 * MIB, 64)).leaks for _ in range(500))
    assert alarms <= 3


def test_slope_and_bound_are_those_of_scipy(rng: np.random.Generator) -> None:
    """The one-sided 99.9 % bound is the lower end of scipy's two-sided 99.8 % interval, up to one rank."""
    made = 500 * KIB * np.arange(40.0) + rng.normal(0, 3 * MIB, 40)
    found = slope(range(40), made)
    expected = scipy.stats.theilslopes(made, range(40), alpha=0.998)
    assert found.bytes_per_step == pytest.approx(expected.slope)
    assert found.sure_bytes_per_step == pytest.approx(expected.low_slope, rel=0.02)


def test_few_samples_say_nothing() -> None:
    """Fifteen are too few, sixteen will do; the window forgets what is older."""
    watch = SlopeWatch(samples=16)
    for step in range(15):
        watch.add(step, MIB * step)
    assert not watch.slope().leaks
    watch.add(15, 15 * MIB)
    assert watch.slope().leaks
    for step in range(16, 32):
        watch.add(step, 15 * MIB)
    assert not watch.slope().leaks
    assert watch.slope().samples == 16


def test_what_cannot_be_is_refused() -> None:
    """With the value and what is allowed."""
    with pytest.raises(ValueError, match="samples must be 16 or more, got 15"):
        SlopeWatch(samples=15)
    with pytest.raises(ValueError, match="got 2 and 3"):
        slope([1, 2], [1, 2, 3])
