"""The prior of hand-made steps is what adding up by hand gives; its parts always add up to its peak."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from handmade import MIB, Sketch
from hypothesis import given
from strategies import graph_specs

from peakcast.featurizer.allocator_config import AllocatorConfigError
from peakcast.featurizer.prior import Prior, simulate, source_plan
from peakcast.featurizer.run import DeviceSpec, RunSpec
from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.trace import Trace
from peakcast.featurizer.vocabulary import (
    BACKWARD,
    GRADIENT,
    INPUT,
    LOSS,
    OPTIMIZER,
    OPTIMIZER_STATE,
    OUTPUT,
    PARAMETER,
    QUANTITIES,
    SAVED,
)

RUN = RunSpec(optimizer="AdamW", implementation="foreach")
HOPPER = DeviceSpec(name="NVIDIA H200")


def training() -> Sketch:
    """Return a step of one weight: product, loss, product in the backward, an optimizer with scratch."""
    sketch = Sketch()
    weight, x = sketch.start(20 * MIB, PARAMETER), sketch.start(12 * MIB, INPUT)
    sketch.start(40 * MIB, OPTIMIZER_STATE)
    (saved,) = sketch.node("aten.mm.default", 60 * MIB, role=SAVED, reads=[x, weight])
    (loss,) = sketch.node("aten.mean.default", 4, phase=LOSS, role=OUTPUT, reads=[saved])
    (gradient,) = sketch.node(
        "aten.mm.default", 20 * MIB, phase=BACKWARD, role=GRADIENT, reads=[saved, x], dies=[saved, loss]
    )
    (scratch,) = sketch.node("aten._foreach_sqrt.default", 20 * MIB, phase=OPTIMIZER)
    sketch.node("aten._foreach_addcdiv_.default", phase=OPTIMIZER, reads=[gradient], dies=[scratch, gradient])
    return sketch


def prior_of(sketch: Sketch, run: RunSpec = RUN, device: DeviceSpec = HOPPER) -> Prior:
    """Simulate a sketch."""
    return simulate(sketch.spec(), "eager", run, device)


def test_peaks_of_a_training_step() -> None:
    """Steady: 20 + 12 + 40, two workspaces of 32, 60 saved, 20 of gradient, and the loss; the first lacks the state."""
    prior = prior_of(training())
    assert prior.steady_allocated_bytes == (20 + 12 + 40 + 64 + 60 + 20) * MIB + 512
    # At the same node without state; the optimizer then holds 20 + 12 + 64 + 20 + 40 and 20 of scratch: as much.
    assert prior.first_allocated_bytes == (20 + 12 + 64 + 60 + 20) * MIB + 512
    assert (prior.peak_node, prior.peak_phase) == (2, BACKWARD)


def test_reserved_of_a_training_step() -> None:
    """Worked out by segments: the state takes what the forward left free, so the second step needs 60 MiB anew."""
    prior = prior_of(training())
    # Segments of step 1: 20, 12, 60 saved, 32, 2 (loss), 20 gradient, 32; then state 40 and scratch 20 fit into the 60.
    assert prior.first_reserved_bytes == (20 + 12 + 60 + 32 + 2 + 20 + 32) * MIB
    # Step 2: of the 60 only 20 are free, so 60 saved are new; the gradient finds its old place.
    assert prior.steady_reserved_bytes == prior.first_reserved_bytes + 60 * MIB
    # Nothing cached can be given back when the 60 are asked for except the 20 of the gradient, asked for again later.
    assert prior.steady_allocated_bytes <= prior.required_bytes <= prior.steady_reserved_bytes


def test_parts_at_the_peak() -> None:
    """Each part is what its role holds at the second node, and together with rounding they are the peak."""
    prior = prior_of(training())
    parts = prior.parts
    assert (parts.parameters_bytes, parts.inputs_bytes, parts.optimizer_state_bytes) == (20 * MIB, 12 * MIB, 40 * MIB)
    assert (parts.saved_activations_bytes, parts.gradients_bytes) == (60 * MIB, 20 * MIB)
    assert (parts.workspace_bytes, parts.outputs_bytes, parts.temporaries_bytes) == (64 * MIB, 4, 0)
    assert parts.rounding_bytes == 508


def test_top_tensors_name_their_origin() -> None:
    """The largest is the saved product, from node 0; what was there before the step has no node. No workspace."""
    first, second, *_ = prior_of(training()).top_tensors
    assert (first.bytes, first.node, first.op, first.line, first.role) == (
        60 * MIB,
        0,
        "aten.mm.default",
        "model.py:1",
        "saved",
    )
    assert (second.bytes, second.node, second.op, second.line, second.role) == (
        40 * MIB,
        -1,
        "",
        None,
        "optimizer_state",
    )


def test_watermark_is_what_lives_after_each_node() -> None:
    """136 MiB stand through the step; each node adds its outputs and drops what dies."""
    watermark = prior_of(training()).watermark_bytes
    assert watermark.tolist() == [196 * MIB, 196 * MIB + 512, 156 * MIB, 176 * MIB, 136 * MIB]


def test_a_resumed_first_step_holds_the_state() -> None:
    """Loaded from a checkpoint, the state is there from the start: the first step is like the others."""
    prior = prior_of(training(), RUN.model_copy(update={"step_of_interest": "resumed"}))
    assert prior.first_allocated_bytes == prior.steady_allocated_bytes


def test_parts_of_the_first_step_where_it_is_of_interest() -> None:
    """Then the parts are those of its own peak, without state."""
    prior = prior_of(training(), RUN.model_copy(update={"step_of_interest": "first"}))
    assert prior.optimizer_state_bytes == 0
    assert prior.saved_activations_bytes == 60 * MIB


def test_the_workspace_follows_the_card() -> None:
    """An A100 takes 8,519,680 bytes for each thread in place of 32 MiB; an unknown card is flagged."""
    assert prior_of(training(), device=DeviceSpec(name="NVIDIA A100-SXM4-80GB")).workspace_bytes == 2 * 8_519_680
    unknown = prior_of(training(), device=DeviceSpec(name="Z9000"))
    assert not unknown.is_known_device
    assert unknown.workspace_bytes == 64 * MIB


def test_inference_takes_one_workspace() -> None:
    """Weight 20, input 12, output 16, one workspace; the next step's output comes after the last one was dropped."""
    sketch = Sketch()
    weight, x = sketch.start(20 * MIB, PARAMETER), sketch.start(12 * MIB, INPUT)
    sketch.node("aten.mm.default", 16 * MIB, role=OUTPUT, reads=[x, weight])
    prior = prior_of(sketch, RunSpec(task="inference"))
    assert prior.first_allocated_bytes == prior.steady_allocated_bytes == (20 + 12 + 16 + 32) * MIB


def test_an_output_held_until_overwritten_counts_twice() -> None:
    """`y = model(x)` in a loop: the old y lives until the new one is there."""
    sketch = Sketch()
    last = sketch.start(16 * MIB, OUTPUT)
    sketch.node("aten.exp.default", 16 * MIB, role=OUTPUT)
    sketch.node("aten.exp_.default", dies=[last])
    prior = prior_of(sketch, RunSpec(task="inference"))
    assert (prior.first_allocated_bytes, prior.steady_allocated_bytes) == (16 * MIB, 32 * MIB)


def test_device_bytes_add_context_and_libraries() -> None:
    """767 MiB beyond reserved, as measured."""
    prior = prior_of(training())
    assert prior.device_bytes == prior.steady_reserved_bytes + 767 * MIB


def test_allocator_options_change_the_answer() -> None:
    """11 MiB take 12 of a segment that is not split, and 11 where segments expand; the driver's own pool is flagged."""
    sketch = Sketch()
    sketch.start(11 * MIB, PARAMETER)
    sketch.node("aten.exp.default")
    assert prior_of(sketch).steady_allocated_bytes == 12 * MIB
    expandable = RUN.model_copy(update={"allocator": "expandable_segments:True"})
    assert prior_of(sketch, expandable).steady_allocated_bytes == 11 * MIB
    assert not prior_of(sketch, RUN.model_copy(update={"allocator": "backend:cudaMallocAsync"})).is_native_allocator
    with pytest.raises(AllocatorConfigError, match="unknown allocator option"):
        prior_of(sketch, RUN.model_copy(update={"allocator": "nonsense:1"}))


@pytest.mark.parametrize(
    ("plans", "asked", "source"),
    [
        (["eager", "inductor"], "inductor", "inductor"),
        (["eager", "inductor"], "inductor:budget=0.5", "inductor"),
        (["eager", "inductor", "inductor:budget=0.5"], "inductor:max-autotune", "inductor"),
        (["eager", "inductor"], "hybrid", "inductor"),
        (["eager", "inductor"], "eager:checkpoint", "eager"),
        (["eager"], "inductor", "eager"),
    ],
)
def test_a_plan_without_a_trace_is_derived_from_the_nearest(plans: list[str], asked: str, source: str) -> None:
    """Its own trace, else one of the same compiler, else of the same kind, else any."""
    trace = training().trace()
    spec = GraphSpec(
        ops=tuple(training().ops), dtypes=("float32",), lines=("model.py:1",), traces=dict.fromkeys(plans, trace)
    )
    assert source_plan(spec, asked) == source


def test_unknown_plans_are_refused() -> None:
    """The message says which names there are."""
    with pytest.raises(ValueError, match="unknown plan 'fast'; allowed: eager"):
        source_plan(training().spec(), "fast")


def eagerly(trace: Trace) -> Trace:
    """Return the trace with nothing compiled."""
    return dataclasses.replace(trace, region=np.full(len(trace), -1, np.int32))


@given(spec=graph_specs())
def test_holds_for_any_graph(spec: GraphSpec) -> None:
    """Whatever the trace: parts add up, quantities are in order, the watermark stays under the peak."""
    spec = dataclasses.replace(spec, traces={plan: eagerly(trace) for plan, trace in spec.traces.items()})
    for plan, trace in spec.traces.items():
        prior = simulate(spec, plan, RUN, HOPPER)
        parts = [getattr(prior.parts, name) for name in type(prior.parts).__slots__]
        assert sum(parts) == prior.steady_allocated_bytes
        assert min(parts) >= 0
        assert all(getattr(prior, f"{quantity}_bytes") >= 0 for quantity in QUANTITIES)
        assert prior.steady_allocated_bytes <= prior.steady_reserved_bytes
        assert prior.first_allocated_bytes <= prior.first_reserved_bytes
        assert prior.required_bytes >= max(prior.first_allocated_bytes, prior.steady_allocated_bytes)
        assert prior.watermark_bytes.shape == (len(trace),)
        assert prior.watermark_bytes.max(initial=0) <= prior.steady_allocated_bytes
        assert -1 <= prior.peak_node < len(trace)
