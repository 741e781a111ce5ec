"""Results that one fused kernel alone reads, or nothing at all."""

from __future__ import annotations

import pytest
from fusing import ADD, MM, VAR_MEAN, fused, is_inlined, span
from handmade import MIB, Sketch

from peakcast.featurizer.lifetimes import NO_REUSE
from peakcast.featurizer.vocabulary import OUTPUT

ATTENTION = "aten._scaled_dot_product_efficient_attention.default"
ROWS_BYTES = 64 << 10  # 16,384 rows of 128 elements make 8 MiB


@pytest.mark.parametrize("is_shared", [False, True])
def test_of_several_results_those_read_elsewhere_are_written(*, is_shared: bool) -> None:
    """Variance and mean stay in the kernel that normalizes, but for a mean that a product reads as well."""
    sketch = Sketch()
    (product,) = sketch.node(MM, 8 * MIB)
    variance, mean = sketch.node(VAR_MEAN, ROWS_BYTES, ROWS_BYTES, reads=[product])
    gone = [product] if is_shared else [product, mean]
    (centred,) = sketch.node(ADD, 8 * MIB, reads=[product, mean], dies=gone)
    (result,) = sketch.node(ADD, 8 * MIB, role=OUTPUT, reads=[centred, variance], dies=[centred, variance])
    sketch.node(MM, 4, reads=[mean] if is_shared else [result], dies=[mean] if is_shared else [])
    lifetimes = fused(sketch)
    assert is_inlined(lifetimes, variance)
    assert is_inlined(lifetimes, mean) is not is_shared
    if is_shared:
        assert span(lifetimes, mean) == (1, 4)
    assert lifetimes.reuses[result] == product


@pytest.mark.parametrize("is_read", [False, True])
def test_what_nothing_reads_of_a_library_call_is_not_estimated(*, is_read: bool) -> None:
    """16 MiB live at most: 8 may wait while attention holds 8, but not where it holds a MiB more that is read."""
    sketch = Sketch()
    (large,) = sketch.node(MM, 10 * MIB)
    (small,) = sketch.node(MM, 6 * MIB, reads=[large], dies=[large])
    (freed,) = sketch.node(MM, 8 * MIB, reads=[small], dies=[small])
    (packed,) = sketch.node(MM, 4 * MIB, reads=[freed], dies=[freed])
    result, beside = sketch.node(ATTENTION, 4 * MIB, MIB, reads=[packed], dies=[packed])
    reads = [result, beside] if is_read else [result]
    (heir,) = sketch.node(MM, 8 * MIB, reads=reads, dies=reads)
    if not is_read:
        sketch.storages[beside][4] = 4
    sketch.node(MM, 2 * MIB, role=OUTPUT, reads=[heir], dies=[heir])
    sketch.node(MM, 4)
    assert fused(sketch).reuses[heir] == (NO_REUSE if is_read else freed)
