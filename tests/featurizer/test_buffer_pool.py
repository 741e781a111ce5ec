"""Freed buffers wait for an heir where that does not raise the peak that inductor expects."""

from __future__ import annotations

from fusing import EXP, MM, fused
from handmade import MIB, Sketch

from peakcast.featurizer.buffer_pool import BufferPool
from peakcast.featurizer.lifetimes import NO_REUSE
from peakcast.featurizer.vocabulary import INPUT, OUTPUT

FLOATS = (8, "float32")


def test_the_buffer_freed_last_goes_first() -> None:
    """Two of a kind are free; the one freed last is taken, then the other, then none is left."""
    pool = BufferPool([8] * 9)
    pool.put(FLOATS, 1, step=0)
    pool.put(FLOATS, 2, step=1)
    assert [pool.take(FLOATS, 0, step) for step in (2, 3, 4)] == [2, 1, None]


def test_only_one_of_the_same_size_and_type() -> None:
    """Neither of another size nor of another type."""
    pool = BufferPool([8] * 3)
    pool.put(FLOATS, 1, step=0)
    assert pool.take((4, "float32"), 4, step=1) is None
    assert pool.take((8, "int32"), 8, step=1) is None


def test_not_where_waiting_would_raise_the_peak() -> None:
    """Over the step in between 8 more would live: 12 + 8 against a peak of 20, and one byte less of it."""
    for peak_bytes, expected in ((20, 1), (19, None)):
        pool = BufferPool([peak_bytes, 12, 0])
        pool.put(FLOATS, 1, step=0)
        assert pool.take(FLOATS, 8, step=2) == expected


def test_the_next_step_never_waits() -> None:
    """A buffer freed in the step before is taken whatever lives."""
    pool = BufferPool([8, 8])
    pool.put(FLOATS, 1, step=0)
    assert pool.take(FLOATS, 8, step=1) == 1


def test_what_waits_counts_for_the_next_decision() -> None:
    """The first heir's wait fills step 1 up to the peak, so that a second buffer may not wait there too."""
    pool = BufferPool([20, 8, 0])
    pool.put(FLOATS, 1, step=0)
    pool.put((8, "int32"), 2, step=0)
    assert pool.take(FLOATS, 8, step=2) == 1
    assert pool.take((8, "int32"), 8, step=2) is None


def products(first: str = MM) -> Sketch:
    """Return a graph whose second value is freed, with a large product after it, and a third of the second's size."""
    sketch = Sketch()
    x = sketch.start(MIB, INPUT)
    (large,) = sketch.node(first, 64 * MIB, reads=[x])
    (small,) = sketch.node(MM, 8 * MIB, reads=[large], dies=[large])
    (other,) = sketch.node(MM, 4 * MIB, reads=[small], dies=[small])
    (between,) = sketch.node(MM, 2 * MIB, reads=[other])
    sketch.node(MM, 8 * MIB, role=OUTPUT, reads=[other, between], dies=[other, between])
    return sketch


def test_a_product_takes_a_buffer_that_waited() -> None:
    """The 8 MiB freed after the third product wait for the fifth: 8 + 6 MiB are below the peak of 72."""
    reuses = fused(products()).reuses.tolist()
    assert reuses == [NO_REUSE, NO_REUSE, NO_REUSE, NO_REUSE, NO_REUSE, 2]


def test_a_library_call_that_returns_new_memory_takes_none() -> None:
    """A convolution allocates its own result."""
    sketch = products()
    sketch.ops.append("aten.convolution.default")
    last = sketch.nodes[-1]
    sketch.nodes[-1] = (len(sketch.ops) - 1, *last[1:])
    assert (fused(sketch).reuses == NO_REUSE).all()


def test_fused_kernels_take_from_the_pool_too() -> None:
    """A pointwise kernel with nothing to write into takes over what was freed before."""
    sketch = products()
    sketch.ops.append(EXP)
    last = sketch.nodes[-1]
    sketch.nodes[-1] = (len(sketch.ops) - 1, *last[1:])
    assert fused(sketch).reuses[5] == 2
