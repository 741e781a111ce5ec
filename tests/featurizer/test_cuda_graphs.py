"""CUDA graphs copy what comes from outside, hold a workspace within a segment only, and keep a pool of their own."""

from __future__ import annotations

import numpy as np
import pytest
from fusing import EXP, MM
from handmade import MIB, Sketch

from peakcast.featurizer.allocator_config import AllocatorConfig
from peakcast.featurizer.autotune import with_autotuning
from peakcast.featurizer.cuda_graphs import GraphedLifetimes, graphed
from peakcast.featurizer.kernel_trials import L2_CACHE_BYTES
from peakcast.featurizer.lifetimes import observed_lifetimes, step_events
from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.steps import Steps
from peakcast.featurizer.trace import Trace
from peakcast.featurizer.vocabulary import BACKWARD, INPUT, LOSS, PARAMETER

WORKSPACE = 32 * MIB


def training() -> Trace:
    """Return a compiled product, a loss outside, and the compiled backward."""
    sketch = Sketch()
    weight, x = sketch.start(4 * MIB, PARAMETER), sketch.start(8 * MIB, INPUT)
    (saved,) = sketch.node(MM, 16 * MIB, reads=[weight, x])
    (y,) = sketch.node(EXP, 16 * MIB, reads=[saved])
    (tangent,) = sketch.node(EXP, 16 * MIB, phase=LOSS, reads=[y], dies=[y])
    (inner,) = sketch.node(EXP, 16 * MIB, phase=BACKWARD, reads=[tangent, saved], dies=[saved])
    sketch.node(MM, 4 * MIB, phase=BACKWARD, reads=[inner, weight], dies=[inner, tangent])
    trace = sketch.trace()
    trace.region[:] = [0, 0, -1, 0, 0]
    return trace


def recorded(trace: Trace) -> GraphedLifetimes:
    """Return the trace as recorded; both products take a workspace."""
    products = np.array([True, False, False, False, True])
    return graphed(trace, observed_lifetimes(trace), [(products, WORKSPACE)])


def test_inputs_and_tangents_are_copied_until_their_last_use() -> None:
    """The input from the forward's start to its product, the tangent from the backward's start to its first node."""
    found = recorded(training())
    copies = found.copies
    spans = [
        (int(found.lifetimes.bytes[c]), int(found.lifetimes.born[c]), int(found.lifetimes.died[c])) for c in copies
    ]
    assert sorted(spans) == [(8 * MIB, 0, 0), (16 * MIB, 3, 3)]


def test_weights_and_what_another_segment_made_are_not_copied() -> None:
    """The backward reads the weight and the saved product where they are: two copies, of nothing else."""
    assert len(recorded(training()).copies) == 2


def test_no_workspace_is_held_across_a_segment() -> None:
    """The forward's goes at the forward's end, the backward's at the end of the backward."""
    found = recorded(training())
    lifetimes = found.lifetimes
    held = np.flatnonzero(lifetimes.bytes == WORKSPACE)
    assert [(int(lifetimes.born[one]), int(lifetimes.died[one])) for one in held] == [(0, 1), (4, 4)]


def test_before_the_recording_nothing_is_copied() -> None:
    """The backward's first node holds weight 4, input 8, product 16, tangent 16 and its own 16; then a copy of 16."""
    trace = training()
    found = graphed(trace, observed_lifetimes(trace), [])
    steps = Steps(
        step_events(trace, found.first, is_first=True), step_events(trace, found.lifetimes), AllocatorConfig()
    )
    assert steps.peaks.first_allocated_bytes == (4 + 8 + 16 + 16 + 16) * MIB
    assert steps.peaks.steady_allocated_bytes == (4 + 8 + 16 + 16 + 16 + 16) * MIB


def test_the_pool_keeps_its_blocks_to_itself() -> None:
    """40 MiB freed outside do not serve 40 MiB inside: both are reserved, where one pool would reserve them once."""
    sketch = Sketch()
    (outside,) = sketch.node(EXP, 40 * MIB)
    sketch.node(EXP, 2 * MIB, reads=[outside], dies=[outside])
    (inside,) = sketch.node(EXP, 40 * MIB)
    sketch.node(EXP, 2 * MIB, reads=[inside], dies=[inside])
    trace = sketch.trace()
    trace.region[:] = [-1, -1, 0, 0]
    found = graphed(trace, observed_lifetimes(trace), [])
    step = step_events(trace, found.lifetimes)
    apart, together = Steps(step, step, AllocatorConfig(), found.pool_of(step)), Steps(step, step, AllocatorConfig())
    assert apart.peaks.first_allocated_bytes == together.peaks.first_allocated_bytes
    # 40 MiB rounds to itself; each 2 MiB tensor takes a segment of 20 MiB.
    assert together.peaks.first_reserved_bytes == (40 + 20) * MIB
    assert apart.peaks.first_reserved_bytes == 2 * (40 + 20) * MIB
    assert apart.required_bytes == pytest.approx(2 * (40 + 20) * MIB, abs=20 * MIB)


def test_a_graph_without_nodes_has_no_pool() -> None:
    """What is there before the step lies outside."""
    sketch = Sketch()
    sketch.start(4 * MIB, PARAMETER)
    trace = sketch.trace()
    found = graphed(trace, observed_lifetimes(trace), [])
    assert found.pool_of(step_events(trace, found.lifetimes)).tolist() == [False]


def test_what_timing_kernels_took_stays_in_the_pool() -> None:
    """One pool gives it back where memory is short; a private one never does, so that it is required for good."""
    sketch = Sketch()
    (made,) = sketch.node(EXP, 40 * MIB)
    sketch.node(EXP, 40 * MIB, reads=[made], dies=[made])
    trace = sketch.trace()
    trace.region[:] = 0
    spec = GraphSpec(ops=tuple(sketch.ops), dtypes=("float32",), lines=("step.py:1",), traces={"inductor": trace})
    found = graphed(trace, observed_lifetimes(trace), [])
    step = step_events(trace, found.lifetimes)
    tuned = with_autotuning(step, trace, spec, found.lifetimes, recorded=True)
    apart = Steps(step, step, AllocatorConfig(), found.pool_of(step), tuned)
    together = Steps(step, step, AllocatorConfig(), tuned=tuned)
    assert together.required_bytes == pytest.approx(80 * MIB, abs=2 * MIB)
    assert apart.required_bytes == apart.peaks.first_reserved_bytes == 80 * MIB + L2_CACHE_BYTES
