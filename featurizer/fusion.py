"""What inductor keeps of a compiled graph: which values get a buffer, when it is freed, and whose it takes over.

The rules follow inductor's lowering and scheduler: a pointwise value is inlined into its readers unless something needs
it in memory, reductions and library kernels write buffers, kernels that read one buffer are fused side by side, and a
fused kernel may write into an input that dies there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from peakcast.featurizer import compiled
from peakcast.featurizer.buffer_pool import BufferPool
from peakcast.featurizer.concatenations import with_early_births
from peakcast.featurizer.fusion_graph import CompiledGraph, GraphColumns, segments
from peakcast.featurizer.fusion_lowering import INLINED_OPS, MOST_INLINED_OPS, SHARED_READS, SINGLE_READS, Kernel, lower
from peakcast.featurizer.fusion_rounds import (
    LEAST_SHARED_BYTES,
    MOST_FUSED,
    MOST_FUSED_READS,
    MOST_HELD,
    MOST_PAIRS,
    MOST_TRIED,
    ROUNDS,
    SIBLING_DISTANCE,
    fuse_kernels,
)
from peakcast.featurizer.lifetimes import NEVER, Lifetimes, observed_lifetimes
from peakcast.featurizer.memory_order import MOST_LOOKS, Buffer, Program
from peakcast.featurizer.op_kinds import OpKind
from peakcast.featurizer.trace import Trace

# A graph of more kernels keeps its own order and pools nothing: both take time with the square of their number in the
# worst case, and a graph may come from a stranger. The largest compiled graph of the corpus has 1,242.
MOST_REORDERED: Final = 4096

_LIMITS: Final = (
    SHARED_READS,
    SINGLE_READS,
    INLINED_OPS,
    MOST_INLINED_OPS,
    MOST_REORDERED,
    SIBLING_DISTANCE,
    MOST_FUSED,
    MOST_TRIED,
    LEAST_SHARED_BYTES,
    MOST_HELD,
    ROUNDS,
    MOST_PAIRS,
    MOST_FUSED_READS,
)

_WRITES_IN_PLACE: Final = (OpKind.POINTWISE, OpKind.REDUCTION, OpKind.SCATTER)


def fused_lifetimes(trace: Trace, ops: tuple[str, ...], attributes: tuple[str, ...] = ()) -> Lifetimes:
    """Return the lifetimes under inductor: those observed outside compiled regions, the rules' inside."""
    observed = observed_lifetimes(trace)
    if not (trace.region >= 0).any():
        return observed
    born, died, reuses = observed.born.copy(), observed.died.copy(), observed.reuses.copy()
    columns = GraphColumns.of(trace, ops, attributes)
    born[columns.is_unread] = NEVER
    time = np.arange(len(trace), dtype=np.int32)
    fused = Lifetimes(bytes=observed.bytes, role=observed.role, born=born, died=died, reuses=reuses, time=time)
    fuse = compiled.loaded_fuse()
    if fuse is not None:
        fuse(columns, segments(trace), (born, died, reuses, time), _LIMITS, MOST_LOOKS)
        return with_early_births(fused, columns, trace)
    graph = CompiledGraph(columns)
    for first, end in segments(trace):
        returned = graph.returned_and_dropped(end)
        kernels, unwritten = lower(graph, first, end, returned)
        live_bytes: list[int] = []
        if len(kernels) <= MOST_REORDERED:
            kernels, within, leaders = fuse_kernels(graph, kernels, _in_turn(kernels), end, returned)
            unwritten += within
            moves, live_bytes = _reorder(graph, kernels, within, first, end, returned)
            time[[leaders[at] for at in moves]] = list(moves.values())
        born[unwritten] = NEVER
        written_at = {storage: kernel.node for kernel in kernels for storage in kernel.writes}
        written = [storage for storage in written_at if born[storage] != NEVER]
        born[written] = [written_at[storage] for storage in written]
        last_read = _last_reads(graph, kernels, first, end, returned)
        buffers = list(last_read)
        # A trace from a stranger may read what is not born yet.
        died[buffers] = np.maximum(list(last_read.values()), born[buffers])
        taken = _takeovers(graph, kernels, written_at, last_read, first)
        if live_bytes:
            _pool(graph, kernels, last_read, taken, live_bytes)
        for storage, other in taken.items():
            if born[other] != NEVER:
                reuses[storage] = other
    return with_early_births(fused, columns, trace)


def _reorder(
    graph: CompiledGraph,
    kernels: list[Kernel],
    within: Mapping[int, int],
    first: int,
    end: int,
    returned: set[int],
) -> tuple[dict[int, int], list[int]]:
    """Give the kernels the times at which inductor runs them. Kernels of one time are one.

    What lives `within` one, by its time, is never written, but counts in inductor's estimate. Returns at which of these
    times that of each runs, and what inductor estimates to live at each.
    """
    times = sorted({kernel.node for kernel in kernels})
    number = {node: index for index, node in enumerate(times)}
    maker: dict[int, int] = {}
    readers: dict[int, set[int]] = {}
    beside: set[int] = set()  # what a library call returns beside other results
    for kernel in kernels:
        index = number[kernel.node]
        maker.update(dict.fromkeys(kernel.writes, index))
        if kernel.allocates_itself and len(kernel.writes) > 1:
            beside.update(kernel.writes)
        for storage in kernel.expression.reads:
            readers.setdefault(storage, set()).add(index)
    buffers = []
    for storage in sorted(maker.keys() | readers.keys()):
        dies = first <= graph.died[storage] < end and storage not in returned
        made_at = maker.get(storage)
        if storage in beside and dies and storage not in readers:
            continue  # `dead_node_elimination` in scheduler.py: no node of the graph
        if made_at is not None or (dies and graph.is_saved[storage]):
            read_at = readers.get(storage, set()) - {made_at}
            buffers.append(Buffer(graph.bytes[storage], made_at, read_at, is_output=not dies))
    program = Program(len(times), buffers, _in_turn(kernels, number))
    order = program.best_order()
    place = {times[index]: times[position] for position, index in enumerate(order)}
    for kernel in kernels:
        kernel.node = place[kernel.node]
    kernels.sort(key=lambda kernel: kernel.node)
    live_bytes = program.live_bytes(order)
    position = {index: at for at, index in enumerate(order)}
    for storage, time in within.items():
        live_bytes[position[number[time]]] += graph.bytes[storage]
    return place, live_bytes


def _pool(
    graph: CompiledGraph,
    kernels: list[Kernel],
    last_read: dict[int, int],
    taken: dict[int, int],
    live_bytes: list[int],
) -> None:
    """Add to `taken` the freed buffers of the graph that later ones of the same size and type take over."""
    pool = BufferPool(live_bytes)
    passed_on = set(taken.values())
    dying: dict[int, list[int]] = {}
    for kernel in kernels:
        for storage in kernel.writes:
            if storage in last_read and storage not in passed_on:
                dying.setdefault(last_read[storage], []).append(storage)
    times = sorted({kernel.node for kernel in kernels})
    by_time: dict[int, list[Kernel]] = {}
    for kernel in kernels:
        by_time.setdefault(kernel.node, []).append(kernel)
    for step, at in enumerate(times):
        for kernel in by_time[at]:
            if kernel.allocates_itself:
                continue
            for storage in kernel.writes:
                if storage not in taken:
                    size_bytes = graph.bytes[storage]
                    other = pool.take((size_bytes, graph.dtype[storage]), size_bytes, step)
                    if other is not None:
                        taken[storage] = other
        for storage in dying.get(at, ()):
            pool.put((graph.bytes[storage], graph.dtype[storage]), storage, step)


def _in_turn(kernels: list[Kernel], step_of: Mapping[int, int] | None = None) -> dict[int, set[int]]:
    """Return what must have run before each kernel, so that each read of a changing buffer finds what it would.

    Kernels are named by their place in the list, or by the step that `step_of` tells for their time.
    """
    changed: dict[int, list[tuple[int, bool]]] = {}  # storages written in place -> kernels, and whether they write
    in_place = {storage for kernel in kernels for storage in kernel.changes}
    if not in_place:
        return {}
    for place, kernel in enumerate(kernels):
        index = place if step_of is None else step_of[kernel.node]
        for storage in in_place.intersection((*kernel.expression.reads, *kernel.changes)):
            changed.setdefault(storage, []).append((index, storage in kernel.changes))
    after: dict[int, set[int]] = {}
    for accesses in changed.values():
        written: int | None = None
        since: set[int] = set()
        for index, writes in accesses:
            before = after.setdefault(index, set())
            if written is not None:
                before.add(written)
            if writes:
                before |= since
                written, since = index, set()
            since.add(index)
    return after


def _last_reads(
    graph: CompiledGraph, kernels: list[Kernel], first: int, end: int, returned: set[int]
) -> dict[int, int]:
    """Return, for each buffer that dies in [first, end), the last kernel that reads or writes it."""
    last: dict[int, int] = {}
    for kernel in kernels:
        for storage in (*kernel.expression.reads, *kernel.writes):
            if first <= graph.died[storage] < end and storage not in returned:
                last[storage] = max(kernel.node, last.get(storage, 0))
    return last


def _takeovers(
    graph: CompiledGraph, kernels: list[Kernel], born_at: dict[int, int], last_read: dict[int, int], first: int
) -> dict[int, int]:
    """Return, for each buffer that a fused kernel writes in place, the dying one of the same size it takes over.

    What another kernel that was fused with it reads as well stays, unless that had to run before in any case. A clone
    is there because its layout differs from what it reads: no element stays in its place. Nor does a kernel that sums
    rows and columns write in place: `_codegen_mix_order_reduction` in torch/_inductor/codegen/simd.py never asks.
    """
    taken: dict[int, int] = {}
    gone: set[int] = set()
    reading: dict[tuple[int, int], int] = {}  # time, storage -> which kernels read it then, as bits
    for kernel in kernels:
        for storage in kernel.expression.reads:
            reading[kernel.node, storage] = reading.get((kernel.node, storage), 0) | 1 << kernel.number
    for kernel in kernels:
        if kernel.kind not in _WRITES_IN_PLACE or kernel.is_copy or kernel.sums_both_ways or not kernel.writes:
            continue
        dying: dict[tuple[int, int], list[int]] = {}  # by bytes and type
        for storage in sorted(kernel.expression.reads - kernel.expression.displaced, reverse=True):
            born = born_at.get(storage, graph.born[storage])
            # Only older ones, so that no chain of takeovers bites its own tail, whatever a stranger's trace says.
            may_go = born < kernel.node and (born >= first or graph.is_donated[storage])
            may_go = may_go and not graph.is_scattered(storage)
            others = reading[kernel.node, storage] & ~(kernel.ancestors | 1 << kernel.number)
            if may_go and not others and last_read.get(storage) == kernel.node and storage not in gone:
                dying.setdefault((graph.bytes[storage], graph.dtype[storage]), []).append(storage)
        for written in kernel.writes:
            alike = dying.get((graph.bytes[written], graph.dtype[written]))
            if alike:
                taken[written] = alike.pop()
                gone.add(taken[written])
    return taken
