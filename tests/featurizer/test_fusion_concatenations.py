"""Concatenations that are computed in what reads them, whatever that is: each part would have to be copied."""

from __future__ import annotations

import pytest
from fusing import ADD, CAT, EXP, MM, SUM, fused, is_inlined
from handmade import MIB, Sketch

from peakcast.featurizer.vocabulary import INPUT, OUTPUT

ROWS_BYTES = 64 << 10  # 16,384 rows of 128 elements make 8 MiB


@pytest.mark.parametrize(
    ("part", "is_written"),
    [(EXP, False), (MM, True), (SUM, True), ("normalized", True)],
)
def test_a_concatenation_of_what_must_be_copied_is_computed_in_a_reduction(part: str, *, is_written: bool) -> None:
    """An input and a value can only be copied; a product writes its part itself, and a sum is not done for each row."""
    sketch = Sketch()
    token = sketch.start(8 * MIB, INPUT)
    (product,) = sketch.node(MM, (16 if part == SUM else 8) * MIB)
    if part == "normalized":
        (total,) = sketch.node(SUM, ROWS_BYTES, reads=[product])
        (joining,) = sketch.node(ADD, 8 * MIB, reads=[product, total], dies=[product, total])
    else:
        (joining,) = sketch.node(part, 8 * MIB, reads=[product], dies=[product])
    (joined,) = sketch.node(CAT, 16 * MIB, reads=[token, joining], dies=[joining])
    sketch.node(SUM, 2 * ROWS_BYTES, role=OUTPUT, reads=[joined])
    sketch.node(ADD, 16 * MIB, role=OUTPUT, reads=[joined, joined])
    sketch.node(MM, 4, reads=[token])
    sketch.storages[joined][4] = len(sketch.nodes) - 2
    assert is_inlined(fused(sketch), joined) is not is_written
