"""Partial sums of reductions, by torch's rules; expected values follow setReduceConfig step by step."""

from __future__ import annotations

import numpy as np
import pytest
from handmade import MIB, Sketch

from peakcast.featurizer.lifetimes import observed_lifetimes
from peakcast.featurizer.scratch import leading_sum_scratch_bytes, with_scratch
from peakcast.featurizer.vocabulary import BACKWARD, GRADIENT, INPUT
from peakcast.featurizer.workspace import generation_of

HOPPER = generation_of("NVIDIA H200")


@pytest.mark.parametrize(
    ("rows", "columns", "scratch_bytes"),
    [
        # Vectors of 4, so blocks of 32 x 4 threads; 4096 / 4 = 1024 values a thread; 32 blocks of columns of 2112 that
        # fit: split min(66, 1024 / 16 = 64) ways. 4 bytes x 4096 x 64 parts x 32 x 4.
        (4096, 4096, 4 * 4096 * 64 * 128),
        # 8 blocks of columns: 64 ways again.
        (4096, 1000, 4 * 1000 * 64 * 128),
        # 63 blocks of columns; 512 values a thread: min(34, 32) ways.
        (2048, 8000, 4 * 8000 * 32 * 128),
        # 128 values a thread are fewer than 256: no split.
        (512, 4096, 0),
        # One row a block, 8 values: rows are not even split over the block.
        (8, 1000, 0),
        # An odd width: no vectors, blocks of 32 x 16; 256 values a thread; 32 blocks of columns of 528: min(17, 16).
        (4096, 1023, 4 * 1023 * 16 * 32),
    ],
)
def test_partial_sums_over_leading_dimensions(rows: int, columns: int, scratch_bytes: int) -> None:
    """A sum over rows of [rows, columns] in float32 on a card of 132 multiprocessors."""
    assert leading_sum_scratch_bytes(columns, rows, 4, HOPPER) == scratch_bytes


def bias_gradient(op: str = "aten.sum.dim_IntList", role: int = GRADIENT) -> Sketch:
    """Return a sum of 64 MiB of float32 into 4096 numbers."""
    sketch = Sketch()
    upstream = sketch.start(64 * MIB, INPUT)
    sketch.node(op, 4096 * 4, phase=BACKWARD, role=role, reads=[upstream])
    return sketch


def extra_bytes(sketch: Sketch, numel: int = 4096) -> list[int]:
    """Return the sizes of the buffers added to a sketch whose nodes all have `numel` elements."""
    trace = sketch.trace()
    trace.numel[:] = numel
    lifetimes = with_scratch(observed_lifetimes(trace), trace, sketch.ops, ("float32",), HOPPER)
    extra = slice(len(trace.storages), None)
    assert (lifetimes.born[extra] == lifetimes.died[extra]).all()
    sizes: list[int] = lifetimes.bytes[extra].tolist()
    return sizes


def test_the_gradient_of_a_bias_takes_scratch() -> None:
    """It is there during its node alone."""
    assert extra_bytes(bias_gradient()) == [128 * MIB]


def test_so_does_one_that_is_cast_to_a_gradient() -> None:
    """Under autocast the sum is cast to the parameter's type afterwards."""
    sketch = bias_gradient(role=INPUT)
    sketch.node("aten._to_copy.default", 4096 * 4, phase=BACKWARD, role=GRADIENT, reads=[1])
    assert extra_bytes(sketch) == [128 * MIB]


def test_other_sums_and_operators_take_none() -> None:
    """Only a gradient tells over which dimensions was summed; other operators follow other rules."""
    assert extra_bytes(bias_gradient(role=INPUT)) == []
    assert extra_bytes(bias_gradient(op="aten.mm.default")) == []


def test_compiled_sums_take_none() -> None:
    """A region's kernels are the compiler's own."""
    sketch = bias_gradient()
    trace = sketch.trace()
    trace.region[:] = 0
    observed = observed_lifetimes(trace)
    assert with_scratch(observed, trace, sketch.ops, ("float32",), HOPPER) is observed


def test_unknown_dtypes_and_empty_rows_are_passed_over() -> None:
    """What the rule cannot size, it leaves alone."""
    sketch = bias_gradient()
    trace = sketch.trace()
    observed = observed_lifetimes(trace)
    assert with_scratch(observed, trace, sketch.ops, ("float7",), HOPPER) is observed
    bare = Sketch()
    bare.node("aten.sum.default")
    bare.node("aten._to_copy.default")
    empty = bare.trace()
    unchanged = with_scratch(observed_lifetimes(empty), empty, bare.ops, ("float32",), HOPPER)
    np.testing.assert_array_equal(unchanged.born, [])
