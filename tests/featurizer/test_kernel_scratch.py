"""Tensors that ATen's CUDA operators make inside one call follow from what the operator reads and writes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from handmade import MIB, Sketch

from peakcast.featurizer.accumulate import accumulated_in_place
from peakcast.featurizer.kernel_scratch import kernel_scratch, outsized_results
from peakcast.featurizer.lifetimes import NO_REUSE, observed_lifetimes
from peakcast.featurizer.scratch import with_scratch
from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.vocabulary import BACKWARD, FORWARD, INPUT, LOSS
from peakcast.featurizer.workspace import generation_of

ADD = "aten.add.Tensor"


def spec_of(
    sketch: Sketch, numel: list[int], dtypes: list[str] | None = None, attribute: str = "", region: int = -1
) -> GraphSpec:
    """Return a sketch as a spec, with its nodes' sizes and types, and an attribute for the last one."""
    trace = sketch.trace()
    trace.numel[:] = numel
    trace.region[:] = region
    names = sorted(set(dtypes or ["float32"]))
    trace.dtype[:] = [names.index(name) for name in dtypes] if dtypes else 0
    attributes: tuple[str, ...] = ()
    if attribute:
        attributes = (attribute,)
        trace.attribute[-1] = 0
    return dataclasses.replace(sketch.spec(), traces={"eager": trace}, dtypes=tuple(names), attributes=attributes)


def scratch_of(spec: GraphSpec) -> dict[int, int]:
    """Return the scratch in bytes by node."""
    return dict(zip(*kernel_scratch(spec.traces["eager"], spec), strict=True))


@pytest.mark.parametrize("op", ["aten.mse_loss.default", "aten.smooth_l1_loss.default", "aten.huber_loss.default"])
def test_a_mean_loss_holds_the_loss_of_every_element(op: str) -> None:
    """Prediction and target of 8 MiB: 8 MiB of losses before their mean."""
    sketch = Sketch()
    prediction, target = sketch.start(8 * MIB, INPUT), sketch.start(8 * MIB, INPUT)
    sketch.node(op, 4, phase=LOSS, reads=[prediction, target])
    assert scratch_of(spec_of(sketch, [1])) == {0: 8 * MIB}


def test_a_loss_of_each_element_is_its_own_result() -> None:
    """With reduction="none" there is nothing beside the result."""
    sketch = Sketch()
    prediction, target = sketch.start(8 * MIB, INPUT), sketch.start(8 * MIB, INPUT)
    sketch.node("aten.mse_loss.default", 8 * MIB, phase=LOSS, reads=[prediction, target])
    assert scratch_of(spec_of(sketch, [2 * MIB])) == {}


def test_the_scalar_of_mse_loss_keeps_the_memory_it_was_allocated_with() -> None:
    """ATen shrinks the result's shape, not its memory: 8 MiB stay until the loss is dropped. l1_loss has none of it."""
    sketch = Sketch()
    prediction, target = sketch.start(8 * MIB, INPUT), sketch.start(8 * MIB, INPUT)
    (loss,) = sketch.node("aten.mse_loss.default", 4, phase=LOSS, reads=[prediction, target])
    (other,) = sketch.node("aten.mean.default", 4, phase=LOSS, reads=[prediction], dies=[loss])
    spec = spec_of(sketch, [1, 1])
    trace = spec.traces["eager"]
    assert outsized_results(trace, spec.ops) == {loss: 8 * MIB}
    lifetimes = with_scratch(observed_lifetimes(trace), trace, spec, generation_of("NVIDIA H200"))
    assert lifetimes.bytes.tolist() == [8 * MIB, 8 * MIB, 8 * MIB, 4, 8 * MIB]  # the last: the elements' losses
    assert (int(lifetimes.born[loss]), int(lifetimes.died[loss])) == (0, 1)
    assert int(lifetimes.bytes[other]) == 4


def test_softmax_backward_multiplies_first() -> None:
    """Gradient times result, of the gradient's size: 4 MiB; of log_softmax nothing."""
    sketch = Sketch()
    gradient, result = sketch.start(4 * MIB, INPUT), sketch.start(2 * MIB, INPUT)
    sketch.node("aten._softmax_backward_data.default", 2 * MIB, phase=BACKWARD, reads=[gradient, result])
    sketch.node("aten._log_softmax_backward_data.default", 2 * MIB, phase=BACKWARD, reads=[gradient, result])
    assert scratch_of(spec_of(sketch, [MIB, MIB])) == {0: 4 * MIB}


@pytest.mark.parametrize(
    ("copied", "scratch_bytes"),
    [("", 0), ("copied=1", 8 * MIB), ("copied=2", 16 * MIB), (f"copied={10**30}", 0), ("copied=-1", 0)],
)
def test_a_norm_copies_what_lies_in_another_order(copied: str, scratch_bytes: int) -> None:
    """4 Mi elements in bfloat16 are 8 MiB a copy, whatever larger storage they are a view of."""
    sketch = Sketch()
    whole = sketch.start(32 * MIB, INPUT)
    sketch.node("aten.native_layer_norm_backward.default", 8 * MIB, phase=BACKWARD, reads=[whole])
    spec = spec_of(sketch, [4 * MIB], ["bfloat16"], attribute=copied)
    assert sum(scratch_of(spec).values()) == scratch_bytes


@pytest.mark.parametrize(
    ("read", "result", "scratch_bytes"),
    [
        ("bool", "int64", 8 * MIB),  # 1 Mi flags as integers of 8 bytes
        ("int32", "int64", 2 * MIB),  # 256 Ki integers
        ("bfloat16", "float32", 0),  # summed as it is
        ("float32", "float32", 0),
    ],
)
def test_sums_of_another_type_cast_first(read: str, result: str, scratch_bytes: int) -> None:
    """1 MiB is summed into numbers of another type."""
    sketch = Sketch()
    (value,) = sketch.node("aten.eq.Tensor", MIB)
    sketch.node("aten.sum.dim_IntList", 8, reads=[value])
    assert sum(scratch_of(spec_of(sketch, [1, 1], [read, result])).values()) == scratch_bytes


@pytest.mark.parametrize("region", [-1, 0])
def test_scattering_a_mean_counts_what_falls_where(region: int) -> None:
    """Ones like the source (5 MiB), counts like the result (1 MiB) and flags for empty places; compiled alike."""
    sketch = Sketch()
    zeros, index, source = sketch.start(MIB, INPUT), sketch.start(800, INPUT), sketch.start(5 * MIB, INPUT)
    sketch.node("aten.scatter_reduce.two", MIB, reads=[zeros, index, source])
    elements = MIB // 4
    assert scratch_of(spec_of(sketch, [elements], region=region)) == {0: 6 * MIB + elements}
    assert scratch_of(spec_of(sketch, [elements], attribute="reduce=mean", region=region)) == {0: 6 * MIB + elements}
    assert scratch_of(spec_of(sketch, [elements], attribute="reduce=amax", region=region)) == {}


def test_compiled_regions_take_such_operators_apart() -> None:
    """No scratch where the compiler writes the kernel."""
    sketch = Sketch()
    prediction = sketch.start(8 * MIB, INPUT)
    sketch.node("aten.mse_loss.default", 4, phase=LOSS, reads=[prediction])
    spec = spec_of(sketch, [1], region=0)
    assert scratch_of(spec) == {}
    assert outsized_results(spec.traces["eager"], spec.ops) == {}


def reuse_of_sum(*, phase: int, dies: bool, between: Sequence[str] = ()) -> int:
    """Return what the sum of two gradients takes the place of; the second one dies in any case.

    `between` are operators that read the first gradient; views and those in place return it.
    """
    sketch = Sketch()
    (first,) = sketch.node("aten.mm.default", MIB, phase=phase)
    for op in between:
        returned = [first] if op in ("aten.t.default", "aten.mul_.Tensor") else []
        sketch.node(op, phase=phase, reads=[first], writes=returned)
    (second,) = sketch.node("aten.mm.default", MIB, phase=phase)
    (total,) = sketch.node(ADD, MIB, phase=phase, reads=[first, second], dies=[first, second] if dies else [second])
    trace = sketch.trace()
    reuses = accumulated_in_place(observed_lifetimes(trace), trace, sketch.ops).reuses
    assert (np.delete(reuses, total) == NO_REUSE).all()
    return int(reuses[total])


def test_autograd_adds_into_the_first_gradient() -> None:
    """Where backward holds it alone; in the forward, or where something else keeps it, the sum is a third tensor."""
    assert reuse_of_sum(phase=BACKWARD, dies=True) == 0
    assert reuse_of_sum(phase=BACKWARD, dies=False) == NO_REUSE
    assert reuse_of_sum(phase=FORWARD, dies=True) == NO_REUSE


@pytest.mark.parametrize(
    ("between", "reused"),
    [
        (["aten.t.default"], NO_REUSE),
        (["aten.mul_.Tensor", "aten.t.default", "aten.t.default"], NO_REUSE),
        (["aten.mul_.Tensor"], 0),
        (["aten.mm.out"], 0),
        (["aten.mm.dtype_out"], 0),
        (["inductor.kernel"], 0),
        (["aten.t.default", "aten.mm.default"], 0),  # another gradient's matter
    ],
)
def test_a_view_of_a_gradient_is_never_held_alone(between: list[str], reused: int) -> None:
    """A transposed gradient, as of a linear layer's weight, shares its memory with its base: the sum is a third one."""
    assert reuse_of_sum(phase=BACKWARD, dies=True, between=between) == reused
