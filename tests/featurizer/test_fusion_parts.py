"""Kernels that read different parts of a buffer share nothing, and are not fused for it."""

from __future__ import annotations

import pytest
from fusing import EXP, MM, SLICE, fused
from handmade import MIB, Sketch

from peakcast.featurizer.vocabulary import OUTPUT


@pytest.mark.parametrize("is_parted", [False, True])
def test_readers_of_different_parts_are_not_fused(*, is_parted: bool) -> None:
    """Two kernels that read the same of a product are one; of two that read a half each, the second waits."""
    sketch = Sketch()
    (packed,) = sketch.node(MM, 16 * MIB)
    if is_parted:
        sketch.node(SLICE, reads=[packed], writes=[packed])
    (one,) = sketch.node(EXP, 8 * MIB, reads=[packed])
    (between,) = sketch.node(MM, MIB, reads=[one], dies=[one])
    (other,) = sketch.node(EXP, 8 * MIB, reads=[packed], dies=[packed])
    sketch.node(MM, MIB, role=OUTPUT, reads=[between, other], dies=[between, other])
    lifetimes = fused(sketch, parts=2)
    assert (lifetimes.born[one] == lifetimes.born[other]) is not is_parted
