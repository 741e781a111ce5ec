"""Scratch joins a step as buffers of one node: partial sums (setReduceConfig step by step) and layout conversions."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from handmade import MIB, Sketch

from peakcast.featurizer.lifetimes import Lifetimes, observed_lifetimes, step_events
from peakcast.featurizer.scratch import leading_sum_scratch_bytes, with_scratch
from peakcast.featurizer.trace import Trace
from peakcast.featurizer.vocabulary import BACKWARD, BUFFER, CPU, GPU, GRADIENT, INPUT, PARAMETER
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


def scratched(sketch: Sketch, trace: Trace, *, dtype: str = "float32", attributes: tuple[str, ...] = ()) -> Lifetimes:
    """Return the observed lifetimes of a trace with the scratch that the rules add on an H200."""
    spec = dataclasses.replace(sketch.spec(), dtypes=(dtype,), attributes=attributes, traces={"eager": trace})
    return with_scratch(observed_lifetimes(trace), trace, spec, HOPPER)


def added_bytes(lifetimes: Lifetimes, trace: Trace) -> dict[int, int]:
    """Return what each node takes, in its last call, beyond the storages: in buffers that live in it alone."""
    first = len(trace.storages)
    assert (lifetimes.born[first:] == lifetimes.died[first:]).all()
    later = np.setdiff1d(np.arange(first, len(lifetimes)), lifetimes.first_call)
    taken: dict[int, int] = {}
    for node, size in zip(lifetimes.born[later].tolist(), lifetimes.bytes[later].tolist(), strict=True):
        taken[node] = taken.get(node, 0) + size
    return taken


def extra_bytes(sketch: Sketch, numel: int = 4096) -> list[int]:
    """Return the sizes of the buffers added to a sketch whose nodes all have `numel` elements."""
    trace = sketch.trace()
    trace.numel[:] = numel
    return list(added_bytes(scratched(sketch, trace), trace).values())


def test_the_gradient_of_a_bias_takes_scratch() -> None:
    """It is there during its node alone."""
    assert extra_bytes(bias_gradient()) == [128 * MIB]


@pytest.mark.parametrize(("viewed", "scratch_bytes"), [(4096 * 4096, 128 * MIB), (4096 * 2048, 64 * MIB)])
def test_what_is_summed_through_a_view_counts_as_the_view_has_it(viewed: int, scratch_bytes: int) -> None:
    """Half the rows leave half the partial sums: a workspace holds those of several gradients side by side."""
    sketch = Sketch()
    upstream = sketch.start(64 * MIB, INPUT)
    sketch.node("aten.slice.Tensor", phase=BACKWARD, reads=[upstream], writes=[upstream])
    sketch.node("aten.sum.dim_IntList", 4096 * 4, phase=BACKWARD, role=GRADIENT, reads=[upstream])
    trace = sketch.trace()
    trace.numel[:] = viewed, 4096
    assert added_bytes(scratched(sketch, trace), trace) == {1: scratch_bytes}


@pytest.mark.parametrize("later", [False, True])
def test_a_sum_of_nothing_takes_none(later: bool) -> None:
    """A stranger's trace may have one, after what looks like a view."""
    sketch = Sketch()
    upstream = sketch.start(64 * MIB, INPUT)
    sketch.node("aten.slice.Tensor", phase=BACKWARD, reads=[upstream], writes=[upstream])
    sketch.node("aten.sum.dim_IntList", 4096 * 4, phase=BACKWARD, role=GRADIENT)
    if later:
        sketch.node("aten.exp.default", phase=BACKWARD, reads=[upstream], writes=[upstream])
    assert extra_bytes(sketch) == []


def test_so_does_one_that_is_cast_to_a_gradient() -> None:
    """Under autocast the sum is cast to the parameter's type afterwards."""
    sketch = bias_gradient(role=INPUT)
    sketch.node("aten._to_copy.default", 4096 * 4, phase=BACKWARD, role=GRADIENT, reads=[1])
    assert extra_bytes(sketch) == [128 * MIB]


def test_so_does_one_that_ddp_copies_into_a_bucket() -> None:
    """Where gradients are views of the buckets, the sum itself is freed: the bucket is what ranks reduce."""
    sketch = bias_gradient(role=INPUT)
    bucket = sketch.start(MIB, BUFFER)
    sketch.node("aten.copy_.default", phase=BACKWARD, reads=[bucket, 1], writes=[bucket])
    sketch.node("c10d.allreduce_.default", phase=BACKWARD, reads=[bucket])
    assert extra_bytes(sketch) == [128 * MIB]


def test_so_does_one_that_fsdp_packs_to_be_reduced() -> None:
    """All gradients of a block go into one buffer, from where they are scattered; cast or not."""
    sketch = bias_gradient(role=INPUT)
    sketch.node("aten._to_copy.default", 4096 * 2, phase=BACKWARD, role=INPUT, reads=[1])
    sketch.node("fsdp.chunk_cat.default", 4096 * 4, phase=BACKWARD, reads=[2])
    assert extra_bytes(sketch) == [128 * MIB]


def test_other_sums_and_operators_take_none() -> None:
    """Only a gradient tells over which dimensions was summed; other operators follow other rules."""
    assert extra_bytes(bias_gradient(role=INPUT)) == []
    assert extra_bytes(bias_gradient(op="aten.mm.default")) == []


def test_compiled_sums_take_none() -> None:
    """A region's kernels are the compiler's own."""
    sketch = bias_gradient()
    trace = sketch.trace()
    trace.numel[:] = 4096
    trace.region[:] = 0
    assert added_bytes(scratched(sketch, trace), trace) == {}


def test_unknown_dtypes_and_empty_rows_are_passed_over() -> None:
    """What the rule cannot size, it leaves alone."""
    sketch = bias_gradient()
    trace = sketch.trace()
    trace.numel[:] = 4096
    assert added_bytes(scratched(sketch, trace, dtype="float7"), trace) == {}
    bare = Sketch()
    bare.node("aten.sum.default")
    bare.node("aten._to_copy.default")
    empty = bare.trace()
    np.testing.assert_array_equal(scratched(bare, empty).born, [])


PLAIN = "kernel=3x3,groups=1,channels=64x64,layout=nchw"
LAST = "kernel=3x3,groups=1,channels=64x64,layout=nhwc"
POINTWISE_LAST = "kernel=1x1,groups=1,channels=64x64,layout=nhwc"
HEADS = "heads=12"  # not a geometry


def convolutions(device: int = GPU) -> Sketch:
    """Return two convolutions in a row and the second's backward; the image has 24 MiB, the weights 1 and 2."""
    sketch = Sketch()
    image, weight, weight2 = (
        sketch.start(24 * MIB, INPUT),
        sketch.start(MIB, PARAMETER),
        sketch.start(2 * MIB, PARAMETER),
    )
    (y,) = sketch.node("aten.convolution.default", 48 * MIB, reads=[image, weight], device=device)
    (z,) = sketch.node("aten.convolution.default", 12 * MIB, reads=[y, weight2], device=device)
    sketch.node(
        "aten.convolution_backward.default",
        48 * MIB,
        2 * MIB,
        phase=BACKWARD,
        reads=[z, y, weight2],
        dies=[y],
        device=device,
    )
    return sketch


def convolved_bytes(sketch: Sketch, attributes: list[str], *, compiled: bool) -> dict[int, int]:
    """Return the scratch by node of nodes that have these attributes in turn; an empty one is none."""
    table = tuple(dict.fromkeys(filter(None, attributes)))
    trace = sketch.trace()
    column = np.array([table.index(name) if name else -1 for name in attributes], np.int32)
    trace = dataclasses.replace(trace, attribute=column)
    trace.region[:] = 0 if compiled else -1
    return added_bytes(scratched(sketch, trace, attributes=table), trace)


@pytest.mark.parametrize("compiled", [False, True])
def test_convolutions_in_nchw_convert(compiled: bool) -> None:
    """Image, weight and result forward; at last the result's gradient, the image and sums backward; also when compiled.

    12 MiB of 64 channels are 49,152 pixels, 64 filters of 576 columns are 3 blocks for 132 multiprocessors: 44 parts.
    """
    expected = {0: (24 + 1 + 48) * MIB, 1: (48 + 2 + 12) * MIB, 2: (12 + 48 + 44 * 2) * MIB}
    assert convolved_bytes(convolutions(), [PLAIN] * 3, compiled=compiled) == expected


def test_cudnn_does_without_its_scratch_but_not_what_torch_copies() -> None:
    """Where memory is short another kernel is tried; a contiguous copy, or a sum's partial sums, must be."""
    sketch = convolutions()
    upstream = sketch.start(64 * MIB, INPUT)
    sketch.node("aten.sum.dim_IntList", 4096 * 4, phase=BACKWARD, role=GRADIENT, reads=[upstream])
    trace = dataclasses.replace(sketch.trace(), attribute=np.array([0, 0, 0, -1], np.int32))
    trace.numel[:] = 4096
    eager = scratched(sketch, trace, attributes=(PLAIN,))
    assert eager.bytes[eager.spare].tolist() == [73 * MIB, 62 * MIB, (12 + 48 + 2) * MIB, (60 + 44 * 2) * MIB]
    assert len(eager) == len(trace.storages) + 5
    copied = scratched(sketch, trace, attributes=(f"{PLAIN},copied=1",))
    assert copied.bytes[copied.spare].tolist() == eager.bytes[eager.spare].tolist()
    others = np.setdiff1d(np.arange(len(trace.storages), len(copied)), copied.spare)
    assert copied.bytes[others].tolist() == [24 * MIB, 48 * MIB, 128 * MIB]


def test_channels_last_takes_none_in_eager() -> None:
    """The tensors lie as the kernels want them. The gradient of the weight is summed in parts all the same."""
    assert convolved_bytes(convolutions(), [LAST] * 3, compiled=False) == {2: 44 * 2 * MIB}


def test_the_scratch_of_the_image_s_gradient_goes_before_the_weight_s_gradient_comes() -> None:
    """A backward is two calls in turn: each of them finds what the one before has given back."""
    sketch = convolutions()
    trace = dataclasses.replace(sketch.trace(), attribute=np.array([-1, -1, 0], np.int32))
    lifetimes = scratched(sketch, trace, attributes=(PLAIN,))
    of_image, of_weight = 7, 8  # after the storages 0 to 6, of which 5 and 6 are the gradients; the image is 3
    assert lifetimes.bytes[of_image:].tolist() == [(12 + 48 + 2) * MIB, (12 + 48 + 44 * 2) * MIB]
    step = step_events(trace, lifetimes)
    assert step.events[step.event_node == 2].tolist() == [5, of_image, ~of_image, 6, of_weight, ~3, ~of_weight]


def test_channels_last_takes_none_in_a_compiled_region_either() -> None:
    """What it copies into that layout are nodes of their own (`insertions.py`)."""
    assert convolved_bytes(convolutions(), [LAST] * 3, compiled=True) == {2: 44 * 2 * MIB}
    # 64 filters of 64 columns are one block: all 48 parts that 49,152 pixels make.
    assert convolved_bytes(convolutions(), [POINTWISE_LAST] * 3, compiled=True) == {2: 48 * 2 * MIB}


def test_only_geometries_on_the_gpu_count() -> None:
    """Nodes without an attribute, with one of another kind, or on the CPU take nothing."""
    assert convolved_bytes(convolutions(), ["", HEADS, PLAIN], compiled=False) == {2: (60 + 44 * 2) * MIB}
    assert convolved_bytes(convolutions(CPU), [PLAIN] * 3, compiled=False) == {}


def test_convolutions_and_sums_add_up() -> None:
    """Both rules add to one step."""
    sketch = convolutions()
    upstream = sketch.start(64 * MIB, INPUT)
    sketch.node("aten.sum.dim_IntList", 4096 * 4, phase=BACKWARD, role=GRADIENT, reads=[upstream])
    trace = dataclasses.replace(sketch.trace(), attribute=np.array([0, -1, -1, -1], np.int32))
    trace.numel[:] = 4096
    lifetimes = scratched(sketch, trace, attributes=(PLAIN,))
    assert added_bytes(lifetimes, trace) == {0: 73 * MIB, 3: 128 * MIB}
    assert len(lifetimes) == len(trace.storages) + 2
