"""A concatenation that is written is allocated with the first part that is written into it."""

from __future__ import annotations

import pytest
from fusing import ADD, CAT, EXP, MM, SUM, VIEW, fused
from handmade import MIB, Sketch

from peakcast.featurizer.vocabulary import INPUT, OUTPUT

ROWS_BYTES = 64 << 10  # 16,384 rows of 128 elements make 8 MiB


@pytest.mark.parametrize(("count", "is_early"), [(8, False), (9, True)])
def test_many_parts_are_written_one_by_one(count: int, *, is_early: bool) -> None:
    """The value that the product reads is copied by the kernel that makes it; up to eight parts one kernel copies."""
    sketch = Sketch()
    tokens = [sketch.start(MIB, INPUT) for _ in range(count)]
    (value,) = sketch.node(EXP, MIB, reads=[tokens[0]])
    (product,) = sketch.node(MM, MIB, reads=[value])
    (between,) = sketch.node(MM, MIB, reads=[product], dies=[product])
    (joined,) = sketch.node(CAT, count * MIB, reads=[value, *tokens[1:]], dies=[value])
    sketch.node(MM, MIB, role=OUTPUT, reads=[joined, between], dies=[joined, between])
    lifetimes = fused(sketch)
    assert lifetimes.born[joined] == (lifetimes.born[value] if is_early else 3)
    assert lifetimes.died[joined] == 4


@pytest.mark.parametrize("is_viewed", [False, True])
def test_what_a_reduction_makes_is_written_into_its_slice(*, is_viewed: bool) -> None:
    """Two parts, but one need not be copied. Through a view it is copied where the whole is made: not earlier."""
    sketch = Sketch()
    token = sketch.start(8 * MIB, INPUT)
    row = sketch.start(ROWS_BYTES, INPUT)
    (total,) = sketch.node(SUM, ROWS_BYTES, reads=[token])
    if is_viewed:
        sketch.node(VIEW, reads=[total], writes=[total])
    (between,) = sketch.node(MM, MIB, reads=[token])
    (other,) = sketch.node(MM, ROWS_BYTES, reads=[row])
    (joined,) = sketch.node(CAT, 2 * ROWS_BYTES, reads=[total, other], dies=[total, other])
    sketch.node(MM, MIB, role=OUTPUT, reads=[joined, between], dies=[joined, between])
    lifetimes = fused(sketch)
    assert lifetimes.born[joined] == (4 if is_viewed else lifetimes.born[total])


def test_what_dies_too_late_is_not_taken_over() -> None:
    """The whole could have stood where a value of its size was, had it not been allocated while that was in use."""
    sketch = Sketch()
    tokens = [sketch.start(MIB, INPUT) for _ in range(9)]
    (large,) = sketch.node(MM, 9 * MIB, reads=[tokens[0]])
    (value,) = sketch.node(EXP, MIB, reads=[tokens[0]])
    (product,) = sketch.node(MM, MIB, reads=[value])
    (between,) = sketch.node(MM, MIB, reads=[product, large], dies=[product, large])
    (joined,) = sketch.node(CAT, 9 * MIB, reads=[value, *tokens[1:]], dies=[value])
    (added,) = sketch.node(ADD, 9 * MIB, reads=[joined], dies=[joined])
    sketch.node(MM, MIB, role=OUTPUT, reads=[added, between], dies=[added, between])
    lifetimes = fused(sketch)
    assert lifetimes.born[joined] == lifetimes.born[value] < lifetimes.died[large]
    assert lifetimes.reuses[joined] != large
