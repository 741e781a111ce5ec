"""Which launches are timed, and what of their inputs is cloned on the card meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest
from handmade import MIB, Sketch

from peakcast.featurizer.kernel_trials import L2_CACHE_BYTES, with_kernels_timed
from peakcast.featurizer.lifetimes import StepEvents, observed_lifetimes, step_events
from peakcast.featurizer.vocabulary import BACKWARD, FORWARD, INPUT, KERNEL


def timed(sketch: Sketch, *, since: int = 0) -> StepEvents:
    """Return the step of a replayed sketch with its kernels timed."""
    trace = replace(sketch.trace(), replayed=True)
    lifetimes = observed_lifetimes(trace)
    return with_kernels_timed(step_events(trace, lifetimes), trace, sketch.ops, lifetimes, since=since)


def extra_bytes(step: StepEvents, sketch: Sketch) -> list[int]:
    """Return what trials take, in the order of their launches."""
    return step.bytes[len(sketch.storages) :].tolist()


def layers(count: int, size_bytes: int, phase: int = FORWARD) -> Sketch:
    """Return layers of a product and a kernel that writes over its result; the product of the next one reads it."""
    sketch = Sketch()
    x = sketch.start(size_bytes, INPUT)
    for _ in range(count):
        (y,) = sketch.node("aten.mm.out", size_bytes, reads=[x], phase=phase)
        sketch.node(KERNEL, reads=[y], writes=[y], phase=phase)
        x = y
    return sketch


def test_kernels_of_the_same_code_are_timed_once() -> None:
    """Three like layers: at the first one's launch, though more is alive at the last one's."""
    step = timed(layers(3, 8 * MIB))
    assert step.node[4:].tolist() == [1]


@pytest.mark.parametrize(("size_bytes", "cloned_bytes"), [(8 * MIB, 8 * MIB), (60 * MIB, 60 * MIB), (64 * MIB, 0)])
def test_inference_clones_what_the_peak_so_far_allows(size_bytes: int, cloned_bytes: int) -> None:
    """The first configuration's trial takes the cache's 60 MiB; a second one may clone as much, and no more."""
    sketch = layers(1, size_bytes)
    assert extra_bytes(timed(sketch), sketch) == [L2_CACHE_BYTES + cloned_bytes]


def test_what_was_alive_before_makes_room_for_a_clone() -> None:
    """100 MiB went before the launch: a clone of 64 MiB stays below the peak."""
    sketch = Sketch()
    x = sketch.start(64 * MIB, INPUT)
    (large,) = sketch.node("aten.mm.out", 100 * MIB, reads=[x])
    (y,) = sketch.node("aten.mm.out", 64 * MIB, reads=[large], dies=[large])
    sketch.node(KERNEL, reads=[y], writes=[y])
    assert extra_bytes(timed(sketch), sketch) == [L2_CACHE_BYTES + 64 * MIB]


def test_a_training_forward_clones_whatever_is_written_over() -> None:
    """Its peak is to come in backward, where clones are as frugal as in inference."""
    sketch = layers(1, 64 * MIB)
    sketch.node("aten.mm.out", MIB, phase=BACKWARD)
    assert extra_bytes(timed(sketch), sketch) == [L2_CACHE_BYTES + 64 * MIB]
    sketch = layers(1, 64 * MIB, BACKWARD)
    assert extra_bytes(timed(sketch), sketch) == [L2_CACHE_BYTES]


def test_launches_before_a_change_are_remembered() -> None:
    """The second compile of a step begins to time at the first node that is new."""
    sketch = layers(2, 8 * MIB)
    step = timed(sketch, since=2)
    assert step.node[len(sketch.storages) :].tolist() == [3]
