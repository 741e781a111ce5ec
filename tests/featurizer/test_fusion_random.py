"""On any step at all, what the fusion rules decide can be run: every buffer exists while a kernel needs it."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from strategies import graph_specs, programs

from peakcast.featurizer.fusion import fused_lifetimes
from peakcast.featurizer.fusion_graph import CompiledGraph, GraphColumns, segments
from peakcast.featurizer.lifetimes import NEVER, NO_REUSE, Lifetimes, observed_lifetimes, step_events
from peakcast.featurizer.op_kinds import OpKind, op_kind
from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.trace import Int32, Trace

BLOCK_BYTES = 512


def segment_at(trace: Trace, nodes: Int32) -> Int32:
    """Return the number of the compiled graph's run that each node belongs to; -1 where it is eager, or no node."""
    numbers = np.full(len(trace) + 1, -1, np.int32)
    for number, (first, end) in enumerate(segments(trace)):
        numbers[first:end] = number
    return numbers[np.maximum(nodes, -1)]


def check_bounds(trace: Trace, lifetimes: Lifetimes) -> None:
    """Check what holds for every trace, however little sense it makes."""
    observed = observed_lifetimes(trace)
    made_in, freed_in = segment_at(trace, observed.born), segment_at(trace, observed.died)
    # Outside regions nothing changes; inside, a buffer is never written, or at another time of the run.
    is_written = lifetimes.born != NEVER
    assert (lifetimes.born[made_in < 0] == observed.born[made_in < 0]).all()
    assert (segment_at(trace, lifetimes.born)[is_written] == made_in[is_written]).all()
    # Deaths stay in the run they happen in; what outlives the step still does.
    assert (lifetimes.died[freed_in < 0] == observed.died[freed_in < 0]).all()
    assert (segment_at(trace, lifetimes.died) == freed_in).all()
    # Nothing dies before it is born.
    dies = is_written & (lifetimes.died >= 0)
    assert (lifetimes.died[dies] >= lifetimes.born[dies]).all()


def check_takeovers(lifetimes: Lifetimes) -> None:
    """Check that memory goes to one heir of the same size, where the other buffer dies or later, never in a ring."""
    heirs = np.flatnonzero(lifetimes.reuses != NO_REUSE)
    taken = lifetimes.reuses[heirs]
    assert len(set(taken.tolist())) == len(taken)
    blocks = -(-lifetimes.bytes // BLOCK_BYTES)
    assert (blocks[heirs] == blocks[taken]).all()
    written = lifetimes.born[heirs] != NEVER
    assert (lifetimes.born[taken] != NEVER).all()
    assert (lifetimes.died[taken[written]] <= lifetimes.born[heirs[written]]).all()
    for heir in heirs.tolist():
        chain = [heir]
        while lifetimes.reuses[chain[-1]] != NO_REUSE:
            chain.append(int(lifetimes.reuses[chain[-1]]))
            assert len(chain) <= len(lifetimes)


def check_events(trace: Trace, lifetimes: Lifetimes) -> None:
    """Check that a step allocates each tensor once, and frees only what lives."""
    step = step_events(trace, lifetimes)
    live = set(step.start)
    for event in step.events:
        if event >= 0:
            assert event not in live
            live.add(event)
        else:
            live.remove(~event)


@given(graph_specs())
@settings(max_examples=100)
def test_traces_that_make_no_sense(spec: GraphSpec) -> None:
    """Whatever a valid document says: ids in range and deaths after births are all that it must keep to."""
    for trace in spec.traces.values():
        lifetimes = fused_lifetimes(trace, spec.ops)
        check_bounds(trace, lifetimes)
        check_takeovers(lifetimes)
        check_events(trace, lifetimes)


@given(programs())
@settings(max_examples=100)
def test_programs(program: tuple[tuple[str, ...], Trace]) -> None:
    """The same for steps that could run."""
    ops, trace = program
    lifetimes = fused_lifetimes(trace, ops)
    check_bounds(trace, lifetimes)
    check_takeovers(lifetimes)
    check_events(trace, lifetimes)


@given(programs())
@settings(max_examples=100)
def test_what_a_kernel_reads_is_there_when_it_runs(program: tuple[tuple[str, ...], Trace]) -> None:
    """Followed through inlined values to buffers, each was written by an earlier kernel and is freed no earlier.

    Pointwise kernels over as many elements may be one, in which each reads what another computes.
    """
    ops, trace = program
    lifetimes = fused_lifetimes(trace, ops)
    graph = CompiledGraph(GraphColumns.of(trace, ops))
    maker = observed_lifetimes(trace).born

    def buffers(node: int) -> set[int]:
        found: set[int] = set()
        for storage in graph.inputs[node]:
            found |= buffers(int(maker[storage])) if lifetimes.born[storage] == NEVER else {storage}
        return found

    for node in range(len(trace)):
        written = graph.new[node]
        if graph.is_view[node] or (written and lifetimes.born[written[0]] == NEVER):
            continue
        assert lifetimes.time is not None or (trace.region < 0).all()
        time = node if lifetimes.time is None else int(lifetimes.time[node])
        runs_at = int(lifetimes.born[written[0]]) if written else time
        for storage in buffers(node):
            may_be_fused = {graph.kinds[node], graph.kinds[maker[storage]]} == {OpKind.POINTWISE}
            if graph.kinds[node] is OpKind.CONCAT:
                # It is allocated with its first part, and holds all of them when it is freed.
                freed_at = int(lifetimes.died[written[0]]) if written else time
                assert freed_at == -1 or lifetimes.born[storage] <= freed_at
            elif may_be_fused and maker[storage] >= 0 and graph.numel[storage] == trace.numel[node]:
                assert lifetimes.born[storage] <= runs_at
            else:
                assert lifetimes.born[storage] < runs_at
            assert lifetimes.died[storage] == -1 or lifetimes.died[storage] >= runs_at


@given(programs())
def test_library_kernels_and_eager_nodes_have_their_tensors(program: tuple[tuple[str, ...], Trace]) -> None:
    """What they read, and what outlives the step, is in memory."""
    ops, trace = program
    lifetimes = fused_lifetimes(trace, ops)
    graph = CompiledGraph(GraphColumns.of(trace, ops))
    for node in range(len(trace)):
        is_library = op_kind(ops[trace.op[node]]) is OpKind.EXTERN
        if not graph.is_view[node] and (is_library or trace.region[node] < 0):
            assert (lifetimes.born[graph.inputs[node]] != NEVER).all()
    assert (lifetimes.born[lifetimes.died < 0] != NEVER).all()


@given(programs())
def test_compiling_allocates_no_more_in_all(program: tuple[tuple[str, ...], Trace]) -> None:
    """Over the whole step, not at each node: a source that lives longer for its inlined reader may raise the peak."""
    ops, trace = program
    fused = step_events(trace, fused_lifetimes(trace, ops))
    eager = step_events(trace, observed_lifetimes(trace))
    assert set(fused.events) <= set(eager.events)
