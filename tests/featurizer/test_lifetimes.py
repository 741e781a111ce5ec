"""Traces become allocations and frees in the order a process makes them."""

from __future__ import annotations

import dataclasses

import numpy as np
from handmade import MIB, Sketch

from peakcast.featurizer.lifetimes import NEVER, Lifetimes, StepEvents, observed_lifetimes, step_events
from peakcast.featurizer.trace import Trace
from peakcast.featurizer.vocabulary import (
    BACKWARD,
    CPU,
    GRADIENT,
    INPUT,
    OPTIMIZER,
    OPTIMIZER_STATE,
    OUTPUT,
    PARAMETER,
)
from peakcast.featurizer.workspace import Workspace

WORKSPACE_BYTES = 32 * MIB


def events_of(trace: Trace, *, workspace_nodes: tuple[int, ...] = (), is_first: bool = False) -> StepEvents:
    """Return the events of a trace as observed."""
    workspaces = [Workspace(node, WORKSPACE_BYTES) for node in workspace_nodes]
    return step_events(trace, observed_lifetimes(trace), workspaces, is_first=is_first)


def live_peak_bytes(step: StepEvents) -> int:
    """Return the highest sum of live sizes, in plain Python."""
    live = peak = sum(int(step.bytes[tensor]) for tensor in step.start)
    for event in step.events:
        live += int(step.bytes[event]) if event >= 0 else -int(step.bytes[~event])
        peak = max(peak, live)
    return peak


def test_outputs_come_before_dying_inputs_go() -> None:
    """At each node: outputs, then the workspace, then frees."""
    sketch = Sketch()
    x = sketch.start(4, INPUT)
    (y,) = sketch.node("aten.mm.default", 8, reads=[x], dies=[x])
    first, second = sketch.node("aten.split.default", 16, 32, reads=[y], dies=[y])
    step = events_of(sketch.trace(), workspace_nodes=(0,))
    (workspace,) = step.workspaces
    assert step.start.tolist() == [x]
    assert step.events.tolist() == [y, workspace, ~x, first, second, ~y]
    assert step.event_node.tolist() == [0, 0, 0, 1, 1, 1]
    assert step.bytes[workspace] == WORKSPACE_BYTES


def test_what_is_there_before_the_step_comes_in_the_order_of_a_process() -> None:
    """Parameters first, then inputs, optimizer state, gradients, by role and not by number."""
    sketch = Sketch()
    gradient, state, inputs, weight = (sketch.start(4, role) for role in (GRADIENT, OPTIMIZER_STATE, INPUT, PARAMETER))
    assert events_of(sketch.trace()).start.tolist() == [weight, inputs, state, gradient]


def test_only_bytes_on_the_gpu_count() -> None:
    """CPU storages and empty ones are never allocated."""
    sketch = Sketch()
    sketch.start(4, PARAMETER, device=CPU)
    sketch.start(0, INPUT)
    sketch.node("aten.empty.default", 0)
    step = events_of(sketch.trace())
    assert (len(step.start), len(step.events)) == (0, 0)


def test_a_buffer_taken_over_is_freed_with_its_last_user() -> None:
    """B takes A's memory, C takes B's: one allocation at A's birth, one free at C's death."""
    sketch = Sketch()
    (a,) = sketch.node("aten.a.default", 8)
    (b,) = sketch.node("aten.b.default", 8, dies=[a])
    (c,) = sketch.node("aten.c.default", 8, dies=[b])
    sketch.node("aten.d.default", dies=[c])
    trace = sketch.trace()
    fused = dataclasses.replace(observed_lifetimes(trace), reuses=np.array([-1, a, b], np.int32))
    step = step_events(trace, fused)
    assert step.events.tolist() == [a, ~a]
    assert step.event_node.tolist() == [0, 3]


def test_a_chain_that_outlives_the_step_is_not_freed() -> None:
    """The last user of the memory lives on, so the memory does."""
    sketch = Sketch()
    (a,) = sketch.node("aten.a.default", 8)
    sketch.node("aten.b.default", 8, dies=[a])
    trace = sketch.trace()
    fused = dataclasses.replace(observed_lifetimes(trace), reuses=np.array([-1, a], np.int32))
    assert step_events(trace, fused).events.tolist() == [a]


def test_buffers_that_are_not_materialised_do_not_appear_and_extra_ones_do() -> None:
    """A fused value has no memory; a buffer beyond the trace's storages has."""
    sketch = Sketch()
    (inlined,) = sketch.node("aten.exp.default", 8)
    sketch.node("aten.sum.default", 4, dies=[inlined])
    trace, observed = sketch.trace(), observed_lifetimes(sketch.trace())
    extended = Lifetimes(
        bytes=np.append(observed.bytes, 64),
        role=np.append(observed.role, observed.role[:1]),
        born=np.array([NEVER, 1, 0], np.int32),
        died=np.array([1, -1, 1], np.int32),
        reuses=np.full(3, -1, np.int32),
    )
    step = step_events(trace, extended)
    assert step.events.tolist() == [2, 1, ~2]


def branching(*branch_bytes: tuple[int, ...]) -> Trace:
    """Return 10 bytes live outside a `cond` that returns 1; each branch allocates its sizes, then the 1 from them."""
    ops = ["aten.exp.default", "higher_order.cond", "aten.sum.default"]
    branches = []
    for sizes in branch_bytes:
        inner = Sketch()
        operand = inner.start(10, INPUT)
        made = [inner.node("aten.exp.default", size, reads=[operand])[0] for size in sizes]
        inner.node("aten.sum.default", 1, role=OUTPUT, dies=made)
        branches.append(inner.trace(ops))
    outer = Sketch()
    (x,) = outer.node("aten.exp.default", 10)
    (y,) = outer.node("higher_order.cond", 1, reads=[x], branches=branches)
    outer.node("aten.sum.default", 1, reads=[y], dies=[x, y])
    return outer.trace(ops)


def test_of_branches_the_larger_counts_never_the_sum() -> None:
    """10 outside; branches of 100 + 1 and 70 + 1: the peak is 111, not 182; the operand is not counted twice."""
    assert live_peak_bytes(events_of(branching((100,), (70,)))) == 10 + 100 + 1
    assert live_peak_bytes(events_of(branching((70,), (100,)))) == 10 + 100 + 1
    assert live_peak_bytes(events_of(branching((30, 30), (50,)))) == 10 + 60 + 1


def test_of_two_conds_each_counts_at_its_own_node() -> None:
    """What a branch takes is given back when its node ends."""
    trace = branching((100,), (70,))
    step = events_of(trace)
    live_after = np.cumsum([step.bytes[e] if e >= 0 else -step.bytes[~e] for e in step.events])
    ends = [np.flatnonzero(step.event_node == node)[-1] for node in range(3)]
    # x; x and y; the last sum alone.
    assert live_after[ends].tolist() == [10, 11, 1]


def test_branches_within_branches() -> None:
    """The inner `cond` adds its larger branch to what the outer branch holds."""
    ops = ["aten.exp.default", "higher_order.cond", "aten.sum.default"]
    middle = Sketch()
    (held,) = middle.node("aten.exp.default", 5)
    inner = branching((100,), (70,))
    (made,) = middle.node("higher_order.cond", 1, reads=[held], branches=inner.branches[0][1])
    middle.node("aten.sum.default", 1, role=OUTPUT, dies=[held, made])
    outer = Sketch()
    outer.node("higher_order.cond", 1, branches=[middle.trace(ops)])
    assert live_peak_bytes(events_of(outer.trace(ops))) == 5 + 100 + 1


def training_step() -> tuple[Trace, dict[str, int]]:
    """Return a step with everything that a first one does not find: state, kept gradients, the last step's loss."""
    sketch = Sketch()
    ids = {
        "weight": sketch.start(4, PARAMETER),
        "state": sketch.start(8, OPTIMIZER_STATE),
        "kept_gradient": sketch.start(4, GRADIENT),
        "last_loss": sketch.start(2, OUTPUT),
    }
    (ids["loss"],) = sketch.node("aten.mean.default", 2, role=OUTPUT, dies=[ids["last_loss"]])
    sketch.node("aten.add_.Tensor", phase=BACKWARD, reads=[ids["kept_gradient"]], writes=[ids["kept_gradient"]])
    (ids["scratch"],) = sketch.node("aten._foreach_sqrt.default", 4, phase=OPTIMIZER)
    sketch.node("aten._foreach_div_.default", phase=OPTIMIZER, dies=[ids["scratch"]])
    return sketch.trace(), ids


def test_a_first_step_finds_only_model_and_inputs() -> None:
    """Gradients are born where they are first touched, states at the first optimizer node, before its scratch."""
    trace, ids = training_step()
    step = events_of(trace, is_first=True)
    assert step.start.tolist() == [ids["weight"]]
    assert step.events.tolist() == [ids["loss"], ids["kept_gradient"], ids["state"], ids["scratch"], ~ids["scratch"]]
    assert step.event_node.tolist() == [0, 1, 2, 2, 3]


def test_what_outlives_a_step_is_what_the_next_one_finds() -> None:
    """This step's loss stands for the one the next step finds and drops; state and gradients stay in place."""
    trace, ids = training_step()
    step = events_of(trace)
    assert step.start.tolist() == [ids["weight"], ids["state"], ids["kept_gradient"], ids["last_loss"]]
    assert step.survivors == {ids["loss"]: ids["last_loss"]}
    assert step.left == []


def test_what_outlives_a_step_for_nothing_is_dropped_by_the_next() -> None:
    """An output that no storage at the next start matches in bytes is left over."""
    sketch = Sketch()
    (y,) = sketch.node("aten.exp.default", 6, role=OUTPUT)
    step = events_of(sketch.trace())
    assert (step.survivors, step.left) == ({}, [y])


def test_later_steps_find_the_workspaces() -> None:
    """Taken in the first step, never again."""
    sketch = Sketch()
    (y,) = sketch.node("aten.mm.default", 6)
    step = events_of(sketch.trace(), workspace_nodes=(0,)).with_workspaces_taken()
    assert step.start == list(step.workspaces)
    assert step.events.tolist() == [y]
    assert step.event_node.tolist() == [0]
