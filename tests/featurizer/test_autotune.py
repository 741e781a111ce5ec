"""In a cold first step generated kernels are timed: the benchmark's buffer is there then, and never again."""

from __future__ import annotations

import pytest
from fusing import EXP, MM, SUM
from handmade import MIB, Sketch

from peakcast.featurizer.allocator_config import AllocatorConfig
from peakcast.featurizer.autotune import L2_CACHE_BYTES, with_autotuning
from peakcast.featurizer.lifetimes import observed_lifetimes, step_events
from peakcast.featurizer.steps import Steps
from peakcast.featurizer.vocabulary import INPUT


def steps_of(sketch: Sketch, region: list[int]) -> Steps:
    """Return the steps of a sketch, tuned in the first."""
    trace = sketch.trace()
    trace.region[:] = region
    lifetimes = observed_lifetimes(trace)
    first, steady = step_events(trace, lifetimes, is_first=True), step_events(trace, lifetimes)
    tuned = with_autotuning(first, trace, tuple(sketch.ops), lifetimes)
    return Steps(first, steady, AllocatorConfig(), tuned=tuned)


def kernels(first_op: str, second_op: str) -> Sketch:
    """Return two kernels, of 100 MiB and of 40 MiB, on an input of 40 MiB."""
    sketch = Sketch()
    x = sketch.start(40 * MIB, INPUT)
    (large,) = sketch.node(first_op, 100 * MIB, reads=[x])
    (small,) = sketch.node(second_op, 40 * MIB, reads=[large], dies=[large])
    sketch.node(MM, 40 * MIB, reads=[small], dies=[small])
    return sketch


def test_the_buffer_is_there_at_the_launch_that_takes_most() -> None:
    """Input 40, both results 140, and the buffer; steady steps do without it."""
    steps = steps_of(kernels(EXP, EXP), [0, 0, 0])
    assert steps.peaks.first_allocated_bytes == 180 * MIB + L2_CACHE_BYTES
    assert steps.peaks.steady_allocated_bytes == 180 * MIB


def test_what_it_took_stays_reserved() -> None:
    """60 MiB beside segments of 40, 100 and 40 MiB, in which the last result finds room."""
    peaks = steps_of(kernels(EXP, EXP), [0, 0, 0]).peaks
    assert peaks.first_reserved_bytes == peaks.steady_reserved_bytes == (40 + 100 + 40 + 60) * MIB


def test_what_is_required_does_without() -> None:
    """A warm process tunes nothing."""
    assert steps_of(kernels(EXP, EXP), [0, 0, 0]).required_bytes == pytest.approx(180 * MIB, abs=4 * MIB)


def test_library_kernels_and_sums_over_rows_are_not_tuned() -> None:
    """The product is no generated kernel, and a sum has one configuration: nothing is tried."""
    steps = steps_of(kernels(MM, SUM), [0, 0, 0])
    assert steps.peaks.first_allocated_bytes == 180 * MIB


def test_eager_kernels_are_not_tuned() -> None:
    """Only what is compiled is."""
    assert steps_of(kernels(EXP, EXP), [-1, -1, -1]).peaks.first_allocated_bytes == 180 * MIB
