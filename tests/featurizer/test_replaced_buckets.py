"""DDP's first buckets may live on into the second step: expected bytes go without them, required ones do not."""

from __future__ import annotations

import pytest
from handmade import MIB, Sketch

from peakcast.featurizer.prior import Prior, simulate
from peakcast.featurizer.run import DeviceSpec, RunSpec
from peakcast.featurizer.vocabulary import BACKWARD, BUFFER, GRADIENT, PARAMETER


def prior_of(
    *, late_bytes: int, role: int = BUFFER, reduces: str = "c10d.allreduce_.default", allocator: str = ""
) -> Prior:
    """Simulate a step over 100 MiB of weights and as large a bucket: 40 MiB before it is reduced, then `late_bytes`."""
    sketch = Sketch()
    sketch.start(100 * MIB, PARAMETER)
    bucket = sketch.start(100 * MIB, role)
    (early,) = sketch.node("aten.relu.default", 40 * MIB)
    sketch.node("aten.copy_.default", phase=BACKWARD, reads=[bucket, early], writes=[bucket], dies=[early])
    sketch.node(reduces, phase=BACKWARD, reads=[bucket], writes=[bucket])
    (late,) = sketch.node("aten.relu.default", late_bytes, phase=BACKWARD)
    sketch.node("aten.relu.default", phase=BACKWARD, reads=[late], dies=[late])
    return simulate(sketch.spec(), "eager", RunSpec(allocator=allocator), DeviceSpec(name="NVIDIA H200"))


@pytest.mark.parametrize("allocator", ["", "expandable_segments:True"])  # in compiled loops, and not
def test_both_sets_are_there_until_the_first_reduction(allocator: str) -> None:
    """Expected: 100 + 100 + 60 MiB, late. Without luck: 100 + 2 x 100 + 40 MiB, early, and no less is required."""
    prior = prior_of(late_bytes=60 * MIB, allocator=allocator)
    assert prior.steady_allocated_bytes == prior.first_allocated_bytes == 260 * MIB
    assert prior.most_allocated_bytes == 340 * MIB
    assert 340 * MIB <= prior.required_bytes <= 342 * MIB


def test_what_comes_after_it_finds_their_room_free() -> None:
    """150 MiB late, of which the old buckets' 100 MiB are no part: the sum of both would be 350 + 100."""
    prior = prior_of(late_bytes=150 * MIB)
    assert prior.most_allocated_bytes == prior.steady_allocated_bytes == 350 * MIB


@pytest.mark.parametrize("other", [{"role": GRADIENT}, {"reduces": "aten.relu_.default"}])
def test_only_buckets_are_replaced(other: dict[str, int | str]) -> None:
    """Gradients that a script reduces by hand are not, nor what nobody reduces."""
    prior = prior_of(late_bytes=60 * MIB, **other)  # type: ignore[arg-type]
    assert prior.replacing is None
    assert prior.most_allocated_bytes == prior.steady_allocated_bytes
