"""How values lie: what is computed from transposed values alone lies as they do, and channels last is no detour."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from fusing import ADD, CLONE, CONVOLUTION, EXP, MM, PERMUTE, SUM, fused, is_inlined
from handmade import MIB, Sketch

from peakcast.featurizer.fusion_lowering import MOST_INLINED_OPS
from peakcast.featurizer.lifetimes import NO_REUSE
from peakcast.featurizer.vocabulary import OUTPUT


@pytest.mark.parametrize(("viewed", "takes_over"), [((0, 1), True), ((0,), False), ((), True)])
def test_a_sum_of_transposed_products_takes_the_place_of_one(viewed: Sequence[int], takes_over: bool) -> None:
    """The sum lies as both do; where one alone is transposed, its elements are read out of order."""
    sketch = Sketch()
    products = [sketch.node(MM, 8 * MIB)[0] for _ in range(2)]
    for place in viewed:
        sketch.node(PERMUTE, reads=[products[place]], writes=[products[place]])
    (total,) = sketch.node(ADD, 8 * MIB, role=OUTPUT, reads=products, dies=products[:1])
    assert fused(sketch).reuses[total] == (products[0] if takes_over else NO_REUSE)


def test_a_transposed_copy_is_read_out_of_order() -> None:
    """A copy is there to lie otherwise."""
    sketch = Sketch()
    (product,) = sketch.node(MM, 8 * MIB)
    sketch.node(PERMUTE, reads=[product], writes=[product])
    (copy,) = sketch.node(CLONE, 8 * MIB, role=OUTPUT, reads=[product], dies=[product])
    assert fused(sketch).reuses[copy] == NO_REUSE


@pytest.mark.parametrize("op", [CONVOLUTION, MM])
def test_an_image_whose_channels_lie_last_is_normalised_where_it_lies(op: str) -> None:
    """A convolution's result, made tokens by a permutation and a copy: what is computed of both goes into its place.

    A matrix product's lies in the order of its dimensions, so that the copy would be read out of order.
    """
    sketch = Sketch()
    (image,) = sketch.node(op, 8 * MIB)
    sketch.node(PERMUTE, reads=[image], writes=[image])
    (tokens,) = sketch.node(CLONE, 8 * MIB, reads=[image], dies=[image])
    (result,) = sketch.node(EXP, 8 * MIB, role=OUTPUT, reads=[tokens], dies=[tokens])
    lifetimes = fused(sketch)
    assert is_inlined(lifetimes, tokens)
    assert lifetimes.reuses[result] == (image if op == CONVOLUTION else NO_REUSE)


@pytest.mark.parametrize(("reader", "is_written"), [(CONVOLUTION, False), (MM, True)])
def test_what_is_padded_is_computed_in_the_padding(reader: str, is_written: bool) -> None:
    """An image that a convolution pads is never written without its margin; what a product pads is there before."""
    sketch = Sketch()
    (product,) = sketch.node(MM, 8 * MIB)
    (value,) = sketch.node(EXP, 8 * MIB, reads=[product], dies=[product])
    (padded,) = sketch.node("aten.constant_pad_nd.default", 9 * MIB, reads=[value], dies=[value])
    sketch.node(reader, 8 * MIB, role=OUTPUT, reads=[padded], dies=[padded])
    lifetimes = fused(sketch)
    assert is_inlined(lifetimes, value) is not is_written
    assert not is_inlined(lifetimes, padded)


def test_what_lives_within_a_kernel_counts_where_inductor_estimates() -> None:
    """A long expression is a value of its own, never written where the one kernel that makes it reads it alone.

    It raises the estimated peak from 12 to 16 MiB, under which the first product may wait for the last one, past 8 MiB.
    """
    sketch = Sketch()
    (first,) = sketch.node(MM, 8 * MIB)
    (second,) = sketch.node(MM, 4 * MIB, reads=[first], dies=[first])
    (third,) = sketch.node(MM, 4 * MIB, reads=[second], dies=[second])
    (last,) = sketch.node(MM, 8 * MIB, reads=[third], dies=[third])
    value = last
    for _ in range(MOST_INLINED_OPS):
        (value,) = sketch.node(EXP, 8 * MIB, reads=[value], dies=[value])
    sketch.node(SUM, 4096 * 4, role=OUTPUT, reads=[value], dies=[value])
    lifetimes = fused(sketch)
    assert is_inlined(lifetimes, value)
    assert lifetimes.reuses[last] == first
