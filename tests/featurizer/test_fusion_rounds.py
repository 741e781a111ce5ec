"""The scheduler fuses what shares most bytes first: producers with consumers, rows with columns, none round a third."""

from __future__ import annotations

import pytest
from fusing import ADD, EXP, MM, PERMUTE, SUM, VIEW, fused, is_inlined, span
from handmade import MIB, Sketch

from peakcast.featurizer import compiled
from peakcast.featurizer.lifetimes import NO_REUSE, Lifetimes
from peakcast.featurizer.vocabulary import INPUT, OUTPUT, PARAMETER

RANDOM = "prims.inductor_random.default"
FLOAT_BYTES = 4
# 8 MiB of float32 are 4,096 rows of 512; 32 MiB are 16,384 rows of 512.
ROWS_BYTES, MANY_ROWS_BYTES, COLUMNS_BYTES = 4096 * FLOAT_BYTES, 16384 * FLOAT_BYTES, 512 * FLOAT_BYTES


def fused_by(sketch: Sketch, *, is_loaded: bool) -> Lifetimes:
    """Return the lifetimes of a sketch by the rules in Python, or by their compiled twin."""
    if is_loaded and not compiled.load():
        pytest.skip("needs numba")
    try:
        return fused(sketch)
    finally:
        compiled.unload()


def test_a_sum_along_rows_is_computed_with_what_it_reads() -> None:
    """A value and the sum over each of its rows come out of one kernel."""
    sketch = Sketch()
    (a,) = sketch.node(MM, 8 * MIB)
    (value,) = sketch.node(EXP, 8 * MIB, role=OUTPUT, reads=[a], dies=[a])
    (total,) = sketch.node(SUM, ROWS_BYTES, role=OUTPUT, reads=[value])
    assert fused(sketch).born[[value, total]].tolist() == [1, 1]


def test_a_fused_kernel_waits_for_all_that_it_reads() -> None:
    """The second value of a chain adds a late product: the first, though it could be there before, waits with it."""
    sketch = Sketch()
    x = sketch.start(MIB, INPUT)
    (a,) = sketch.node(MM, 8 * MIB, reads=[x])
    (one,) = sketch.node(EXP, 8 * MIB, role=OUTPUT, reads=[a], dies=[a])
    (late,) = sketch.node(MM, 8 * MIB, reads=[x])
    (two,) = sketch.node(ADD, 8 * MIB, role=OUTPUT, reads=[one, late], dies=[late])
    lifetimes = fused(sketch)
    assert lifetimes.born[[late, one, two]].tolist() == [1, 2, 2]
    assert span(lifetimes, a) == (0, 2)


@pytest.mark.parametrize("is_loaded", [False, True])
@pytest.mark.parametrize("reads_another", [False, True])
def test_what_only_moves_elements_is_written_where_they_are_made(*, reads_another: bool, is_loaded: bool) -> None:
    """A transposed copy is made by the kernel that makes the original: it writes where it would have read.

    With another operand it has a loop of its own.
    """
    sketch = Sketch()
    (a,) = sketch.node(MM, 8 * MIB)
    (made,) = sketch.node(EXP, 8 * MIB, reads=[a], dies=[a])
    (late,) = sketch.node(MM, 8 * MIB, reads=[made])
    sketch.node(PERMUTE, reads=[made], writes=[made])
    copied = [made, late] if reads_another else [made]
    (moved,) = sketch.node(ADD if reads_another else EXP, 8 * MIB, role=OUTPUT, reads=copied, dies=[made])
    sketch.node(MM, 8 * MIB, role=OUTPUT, reads=[late], dies=[late])
    lifetimes = fused_by(sketch, is_loaded=is_loaded)
    assert lifetimes.born[made] == 1
    assert lifetimes.born[moved] == (4 if reads_another else 1)


def test_not_round_a_kernel_in_between() -> None:
    """The product is made of the first value and read for the second: neither may run at the other's time."""
    sketch = Sketch()
    (a,) = sketch.node(MM, 8 * MIB)
    (one,) = sketch.node(EXP, 8 * MIB, role=OUTPUT, reads=[a], dies=[a])
    (product,) = sketch.node(MM, 8 * MIB, reads=[one])
    (two,) = sketch.node(ADD, 8 * MIB, role=OUTPUT, reads=[one, product], dies=[product])
    assert fused(sketch).born[[one, two]].tolist() == [1, 3]


def test_rows_and_columns_are_summed_in_one() -> None:
    """Where a value is summed along rows and down columns, both sums go first, and nothing is put before them."""
    sketch = Sketch()
    (a,) = sketch.node(MM, 32 * MIB)
    (value,) = sketch.node(EXP, 32 * MIB, role=OUTPUT, reads=[a], dies=[a])
    (rows,) = sketch.node(SUM, MANY_ROWS_BYTES, role=OUTPUT, reads=[value])
    (columns,) = sketch.node(SUM, COLUMNS_BYTES, role=OUTPUT, reads=[value])
    assert fused(sketch).born[[value, rows, columns]].tolist() == [1, 2, 2]


@pytest.mark.parametrize("is_loaded", [False, True])
@pytest.mark.parametrize("reads_columns", [False, True])
def test_what_reads_the_sums_of_rows_joins_them_and_writes_nothing_in_place(
    *, reads_columns: bool, is_loaded: bool
) -> None:
    """A gradient made of a value and its sums along rows comes out of the kernel that sums its columns as well.

    That kernel writes beside what it reads. What reads the sum of columns runs afterwards, in place of the value.
    """
    sketch = Sketch()
    (value,) = sketch.node(MM, 32 * MIB)
    (rows,) = sketch.node(SUM, MANY_ROWS_BYTES, role=OUTPUT, reads=[value])
    (columns,) = sketch.node(SUM, COLUMNS_BYTES, role=OUTPUT, reads=[value])
    read = [value, columns if reads_columns else rows]
    (gradient,) = sketch.node(ADD, 32 * MIB, reads=read, dies=[value])
    sketch.node(MM, MIB, role=OUTPUT, reads=[gradient], dies=[gradient])
    lifetimes = fused_by(sketch, is_loaded=is_loaded)
    assert lifetimes.born[[rows, columns, gradient]].tolist() == ([1, 1, 3] if reads_columns else [1, 1, 1])
    assert lifetimes.reuses[gradient] == (value if reads_columns else NO_REUSE)


@pytest.mark.parametrize(("bias_bytes", "born"), [(512, [2, 3]), (MIB, [2, 2])])
def test_not_where_two_buffers_would_be_held_for_little(bias_bytes: int, born: list[int]) -> None:
    """Two products of 8 MiB could follow each other in one buffer: a bias is shared if it has a 32nd of their bytes."""
    sketch = Sketch()
    bias = sketch.start(bias_bytes, PARAMETER)
    products = [sketch.node(MM, 8 * MIB)[0] for _ in range(2)]
    made = [sketch.node(ADD, 8 * MIB, role=OUTPUT, reads=[product, bias], dies=[product])[0] for product in products]
    assert fused(sketch).born[made].tolist() == born


@pytest.mark.parametrize(("op", "inlined"), [(RANDOM, False), ("aten.full.default", True)])
def test_random_numbers_are_drawn_once(op: str, inlined: bool) -> None:
    """Two kernels that must run one after the other read them from memory, and compute anything else twice."""
    sketch = Sketch()
    (numbers,) = sketch.node(op, 8 * MIB)
    (one,) = sketch.node(EXP, 8 * MIB, reads=[numbers])
    (product,) = sketch.node(MM, 8 * MIB, reads=[one], dies=[one])
    (two,) = sketch.node(ADD, 8 * MIB, role=OUTPUT, reads=[numbers, product], dies=[numbers, product])
    lifetimes = fused(sketch)
    assert is_inlined(lifetimes, numbers) == inlined
    assert inlined or lifetimes.died[numbers] == lifetimes.born[two]


def test_a_value_returned_by_a_view_is_written_with_the_view() -> None:
    """Its sum comes before, and computes it anew from the product: both read that, so neither takes its memory."""
    sketch = Sketch()
    (product,) = sketch.node(MM, 8 * MIB)
    (value,) = sketch.node(EXP, 8 * MIB, role=OUTPUT, reads=[product], dies=[product])
    (total,) = sketch.node(SUM, ROWS_BYTES, role=OUTPUT, reads=[value])
    sketch.node(VIEW, reads=[value], writes=[value])
    lifetimes = fused(sketch)
    assert lifetimes.born[[value, total]].tolist() == [2, 2]
    assert lifetimes.died[product] == 2
    assert lifetimes.reuses[value] == NO_REUSE


def test_what_had_to_read_before_is_no_hindrance() -> None:
    """A softmax writes over its scores, though the sum that it divides by is fused with it and reads them too."""
    sketch = Sketch()
    (scores,) = sketch.node(MM, 8 * MIB)
    (total,) = sketch.node(SUM, ROWS_BYTES, reads=[scores])
    (shares,) = sketch.node(ADD, 8 * MIB, role=OUTPUT, reads=[scores, total], dies=[scores, total])
    lifetimes = fused(sketch)
    assert lifetimes.born[shares] == 1
    assert lifetimes.reuses[shares] == scores


@pytest.mark.parametrize("is_alike", [True, False])
def test_memory_is_handed_on_through_what_is_never_written(*, is_alike: bool) -> None:
    """The sum of nine products is computed in its reader, which takes a product's memory if the sum could have."""
    sketch = Sketch()
    products = [sketch.node(MM, 8 * MIB)[0] for _ in range(9)]
    (total,) = sketch.node(ADD, 8 * MIB if is_alike else 2 * MIB, reads=products, dies=products)
    (result,) = sketch.node(EXP, 8 * MIB, role=OUTPUT, reads=[total], dies=[total])
    lifetimes = fused(sketch, flags=[] if is_alike else [total])
    assert is_inlined(lifetimes, total)
    assert lifetimes.reuses[result] == (products[0] if is_alike else NO_REUSE)
