"""What inductor keeps of a compiled graph: which values get a buffer, when it is freed, and whose it takes over.

The rules follow inductor's lowering and scheduler: a pointwise value is inlined into its readers unless something needs
it in memory, reductions and library kernels write buffers, kernels that read one buffer are fused side by side, and a
fused kernel may write into an input that dies there.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

import numpy as np

from peakcast.featurizer import compiled
from peakcast.featurizer.buffer_pool import BufferPool
from peakcast.featurizer.fusion_graph import CompiledGraph, GraphColumns, segments
from peakcast.featurizer.lifetimes import NEVER, Lifetimes, observed_lifetimes
from peakcast.featurizer.memory_order import MOST_LOOKS, Buffer, Program
from peakcast.featurizer.op_kinds import OpKind
from peakcast.featurizer.trace import Int32, Trace

# inductor's realize_reads_threshold: a value with several readers that would make each read more buffers than this
# gets a buffer of its own.
SHARED_READS: Final = 4
# inductor's realize_acc_reads_threshold: the same with a single reader.
SINGLE_READS: Final = 8
# inductor's realize_opcount_threshold, in operations of the inlined expression.
INLINED_OPS: Final = 30
# inductor's can_fusion_increase_peak_memory: kernels further apart than this in the graph's order are not fused.
SIBLING_DISTANCE: Final = 64
# Below this it does not matter which kernel writes a buffer.
SIBLING_BYTES: Final = 1 << 20
# inductor's max_fusion_size: kernels fused into one.
MOST_FUSED: Final = 64
# Buffers read by a kernel that others were fused into: keeps a stranger's long chain from taking quadratic time.
MOST_FUSED_READS: Final = 128

# A graph of more kernels keeps its own order and pools nothing: both take time with the square of their number in the
# worst case, and a graph may come from a stranger. The largest compiled graph of the corpus has 1,242.
MOST_REORDERED: Final = 4096

_LIMITS: Final = (
    SHARED_READS,
    SINGLE_READS,
    INLINED_OPS,
    SIBLING_DISTANCE,
    SIBLING_BYTES,
    MOST_REORDERED,
    MOST_FUSED,
    MOST_FUSED_READS,
)

_FUSES_WITH_SIBLINGS: Final = (OpKind.POINTWISE, OpKind.WINDOW)
_NOTHING: Final[frozenset[int]] = frozenset()
_WRITES_IN_PLACE: Final = (OpKind.POINTWISE, OpKind.REDUCTION, OpKind.SCATTER)


def fused_lifetimes(trace: Trace, ops: tuple[str, ...]) -> Lifetimes:
    """Return the lifetimes under inductor: those observed outside compiled regions, the rules' inside."""
    observed = observed_lifetimes(trace)
    if not (trace.region >= 0).any():
        return observed
    born, died, reuses = observed.born.copy(), observed.died.copy(), observed.reuses.copy()
    columns = GraphColumns.of(trace, ops)
    time = np.arange(len(trace), dtype=np.int32)
    fused = Lifetimes(bytes=observed.bytes, role=observed.role, born=born, died=died, reuses=reuses, time=time)
    fuse = compiled.loaded_fuse()
    if fuse is not None:
        fuse(columns, segments(trace), (born, died, reuses, time), _LIMITS, MOST_LOOKS)
        return fused
    graph = CompiledGraph(columns)
    for first, end in segments(trace):
        returned = graph.returned_and_dropped(end)
        kernels, inlined = _lower(graph, first, end, returned)
        kernels, absorbed = _fuse_into_readers(graph, kernels, end, returned)
        born[inlined + absorbed] = NEVER
        _fuse_siblings(graph, kernels)
        live_bytes = _reorder(graph, kernels, first, end, returned, time)
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
    return fused


@dataclass(slots=True)
class _Expression:
    """A value as its reader sees it: the buffers it reads, those of them not in place, and how much it computes."""

    reads: AbstractSet[int]
    displaced: AbstractSet[int]
    op_count: int


@dataclass(slots=True)
class _Kernel:
    """A node that runs: `node` is when. One that writes in place of what it reads has no new storage."""

    node: int
    kind: OpKind
    is_copy: bool
    expression: _Expression
    writes: list[int]
    changes: list[int]  # storages made before that it writes to
    allocates_itself: bool  # a library call without `out=`
    # Elements gone through, buffers read: one loop, or one for each part of a `cat`.
    loops: list[tuple[int, AbstractSet[int]]]


def _lower(graph: CompiledGraph, first: int, end: int, returned: set[int]) -> tuple[list[_Kernel], list[int]]:
    """Return the kernels of one compiled graph in order, and the storages that are never written."""
    inlined: dict[int, _Expression] = {}
    moved: set[int] = set()  # storages whose latest view moves elements
    kernels: list[_Kernel] = []
    for node in range(first, end):
        writes = graph.new[node]
        if graph.is_view[node] and not writes:
            (moved.add if graph.moves[node] else moved.discard)(graph.inputs[node][0])
            continue
        expression = _read(graph.inputs[node], inlined, moved)
        kind = graph.kinds[node]
        if kind is OpKind.POINTWISE and writes and not _gets_buffer(graph, writes, end, returned, expression):
            for storage in writes:
                inlined[storage] = expression
        else:
            loops = _loops(graph, node, kind, expression, inlined)
            own = graph.allocates_itself[node]
            kernels.append(
                _Kernel(node, kind, graph.is_copy[node], expression, writes, graph.changed[node], own, loops)
            )
    return kernels, list(inlined)


def _loops(
    graph: CompiledGraph, node: int, kind: OpKind, expression: _Expression, inlined: dict[int, _Expression]
) -> list[tuple[int, AbstractSet[int]]]:
    """Return what a kernel goes through. The parts of a concatenation are written by a kernel each."""
    writes = graph.new[node]
    if kind in _FUSES_WITH_SIBLINGS and len(writes) == 1:
        return [(graph.numel[writes[0]], expression.reads)]
    if kind is OpKind.CONCAT:
        return [(graph.numel[part], inlined[part].reads if part in inlined else {part}) for part in graph.inputs[node]]
    return []


def _read(storages: Sequence[int], inlined: dict[int, _Expression], moved: set[int]) -> _Expression:
    """Join what a node reads into one expression. Sets are shared and never changed: most nodes read one value."""
    if len(storages) == 1:
        (storage,) = storages
        inner = inlined.get(storage)
        if inner is None:
            alone = {storage}
            return _Expression(alone, alone if storage in moved else _NOTHING, 1)
        return _Expression(inner.reads, inner.reads if storage in moved else inner.displaced, inner.op_count + 1)
    reads: set[int] = set()
    displaced: set[int] = set()
    op_count = 1
    for storage in storages:
        inner = inlined.get(storage)
        if inner is None:
            reads.add(storage)
            if storage in moved:
                displaced.add(storage)
        else:
            reads |= inner.reads
            displaced |= inner.reads if storage in moved else inner.displaced
            op_count += inner.op_count
    return _Expression(reads, displaced, op_count)


def _leaves(graph: CompiledGraph, storage: int, end: int, returned: set[int]) -> bool:
    """Tell whether something beyond fused kernels needs a value: a library, the caller or the graph's backward."""
    return graph.is_needed_in_memory[storage] or storage in returned or not 0 <= graph.died[storage] < end


def _gets_buffer(
    graph: CompiledGraph, writes: list[int], end: int, returned: set[int], expression: _Expression
) -> bool:
    """Tell whether a pointwise value is written to memory."""
    readers = 0
    for storage in writes:
        if _leaves(graph, storage, end, returned):
            return True
        readers = max(readers, graph.readers[storage])
    most_reads = SHARED_READS if readers > 1 else SINGLE_READS
    return len(expression.reads) > most_reads or expression.op_count > INLINED_OPS


def _fuse_into_readers(
    graph: CompiledGraph, kernels: list[_Kernel], end: int, returned: set[int]
) -> tuple[list[_Kernel], list[int]]:
    """Fuse pointwise kernels into the one pointwise kernel that reads them; returns those left, and what they made.

    A value gets a buffer for all that it reads, and yet inductor's scheduler fuses its kernel with its reader's: what
    lives within one kernel is never written, and what the first reads waits for the second.
    """
    readers: dict[int, int] = {}  # buffer -> how many kernels read it
    reader: dict[int, _Kernel] = {}  # of one reader: which
    for kernel in kernels:
        for storage in kernel.expression.reads:
            readers[storage] = readers.get(storage, 0) + 1
            reader[storage] = kernel
    changed = _changed(kernels)
    left: list[_Kernel] = []
    absorbed: list[int] = []
    for kernel in kernels:
        into = _only_reader(kernel, readers, reader)
        if (
            into is None
            or _leaves(graph, kernel.writes[0], end, returned)
            or changed & kernel.expression.reads
            or len(kernel.expression.reads | into.expression.reads) > MOST_FUSED_READS
        ):
            left.append(kernel)
            continue
        (storage,) = kernel.writes
        own, others = kernel.expression, into.expression
        for read in own.reads:
            readers[read] -= read in others.reads
            reader[read] = into
        displaced = own.reads if storage in others.displaced else own.displaced
        into.expression = _Expression(
            (others.reads - {storage}) | own.reads, (others.displaced - {storage}) | displaced, others.op_count
        )
        into.loops = [(into.loops[0][0], into.expression.reads)]
        absorbed.append(storage)
    return left, absorbed


def _changed(kernels: list[_Kernel]) -> set[int]:
    """Return what is written in place: what reads it is not moved."""
    return {storage for kernel in kernels for storage in kernel.changes}


def _only_reader(kernel: _Kernel, readers: dict[int, int], reader: dict[int, _Kernel]) -> _Kernel | None:
    """Return the one kernel that reads what a pointwise kernel makes, if it is pointwise, as long and later."""
    if kernel.kind is not OpKind.POINTWISE or len(kernel.writes) != 1 or readers.get(kernel.writes[0]) != 1:
        return None
    into = reader[kernel.writes[0]]
    if into.kind is not OpKind.POINTWISE or len(into.writes) != 1 or into.loops[0][0] != kernel.loops[0][0]:
        return None
    return into if into.node > kernel.node else None


def _fuse_siblings(graph: CompiledGraph, kernels: list[_Kernel]) -> None:
    """Move kernels to an earlier one with as long a loop that reads or makes what they read, where all of that exists.

    Where a pointwise kernel reads what the earlier one makes, there is no limit to how far apart they are: so one
    kernel writes all that a backward recomputes of a residual stream.
    """
    latest: dict[tuple[int, int], int] = {}  # (buffer read or made, elements) -> node of the latest kernel
    written_at: dict[int, int] = {}
    fused: dict[int, int] = {}  # node -> how many kernels have moved there
    changed = _changed(kernels)
    place = {kernel.node: index for index, kernel in enumerate(kernels)}
    for index, kernel in enumerate(kernels):
        if kernel.kind in _FUSES_WITH_SIBLINGS and kernel.loops and graph.bytes[kernel.writes[0]] >= SIBLING_BYTES:
            elements, reads = kernel.loops[0]
            found = [latest[storage, elements] for storage in reads if (storage, elements) in latest]
            sibling = max(found, default=kernel.node)
            late = [storage for storage in reads if written_at.get(storage, graph.born[storage]) >= sibling]
            exists = not changed & reads and all(
                kernel.kind is OpKind.POINTWISE
                and written_at.get(storage, graph.born[storage]) == sibling
                and latest.get((storage, elements)) == sibling
                and graph.kinds[graph.born[storage]] is OpKind.POINTWISE
                and graph.numel[storage] == elements
                for storage in late
            )
            is_near = bool(late) or index - place[sibling] <= SIBLING_DISTANCE
            if sibling < kernel.node and exists and is_near and fused.get(sibling, 0) < MOST_FUSED:
                kernel.node = sibling
                written_at[kernel.writes[0]] = sibling
                fused[sibling] = fused.get(sibling, 0) + 1
        for elements, reads in kernel.loops:
            latest.update(((storage, elements), kernel.node) for storage in reads)
        if kernel.kind is OpKind.POINTWISE and kernel.loops:
            latest[kernel.writes[0], kernel.loops[0][0]] = kernel.node


def _reorder(
    graph: CompiledGraph, kernels: list[_Kernel], first: int, end: int, returned: set[int], time: Int32
) -> list[int]:
    """Give the kernels the times at which inductor runs them, and note in `time` [N] which node runs when.

    Kernels of one time are one. The times of a graph are those of its nodes, dealt out anew. Returns what inductor
    estimates to live at each of them; nothing where there are too many.
    """
    times = sorted({kernel.node for kernel in kernels})
    if len(times) > MOST_REORDERED:
        return []
    number = {node: index for index, node in enumerate(times)}
    maker: dict[int, int] = {}
    readers: dict[int, set[int]] = {}
    changed: dict[
        int, list[tuple[int, bool]]
    ] = {}  # storages written in place -> their kernels, and whether they write
    in_place = {storage for kernel in kernels for storage in kernel.changes}
    for kernel in kernels:
        index = number[kernel.node]
        maker.update(dict.fromkeys(kernel.writes, index))
        for storage in kernel.expression.reads:
            readers.setdefault(storage, set()).add(index)
        for storage in in_place.intersection((*kernel.expression.reads, *kernel.changes)):
            changed.setdefault(storage, []).append((index, storage in kernel.changes))
    buffers = []
    for storage in sorted(maker.keys() | readers.keys()):
        dies = first <= graph.died[storage] < end and storage not in returned
        made_at = maker.get(storage)
        if made_at is not None or (dies and graph.is_donated[storage]):
            read_at = readers.get(storage, set()) - {made_at}
            buffers.append(Buffer(graph.bytes[storage], made_at, read_at, is_output=not dies))
    program = Program(len(times), buffers, _in_turn(changed))
    order = program.best_order()
    place = {times[index]: times[position] for position, index in enumerate(order)}
    time[list(place)] = list(place.values())
    for kernel in kernels:
        kernel.node = place[kernel.node]
    kernels.sort(key=lambda kernel: kernel.node)
    return program.live_bytes(order)


def _pool(
    graph: CompiledGraph,
    kernels: list[_Kernel],
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
    by_time: dict[int, list[_Kernel]] = {}
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


def _in_turn(changed: dict[int, list[tuple[int, bool]]]) -> dict[int, set[int]]:
    """Return what must have run before each kernel, so that each read of a changing buffer finds what it would."""
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
    graph: CompiledGraph, kernels: list[_Kernel], first: int, end: int, returned: set[int]
) -> dict[int, int]:
    """Return, for each buffer that dies in [first, end), the last kernel that reads or writes it."""
    last: dict[int, int] = {}
    for kernel in kernels:
        for storage in (*kernel.expression.reads, *kernel.writes):
            if first <= graph.died[storage] < end and storage not in returned:
                last[storage] = max(kernel.node, last.get(storage, 0))
    return last


def _takeovers(
    graph: CompiledGraph, kernels: list[_Kernel], born_at: dict[int, int], last_read: dict[int, int], first: int
) -> dict[int, int]:
    """Return, for each buffer that a fused kernel writes in place, the dying one of the same size it takes over.

    A clone is there because its layout differs from what it reads: no element stays in its place.
    """
    taken: dict[int, int] = {}
    gone: set[int] = set()
    for kernel in kernels:
        if kernel.kind not in _WRITES_IN_PLACE or kernel.is_copy or not kernel.writes:
            continue
        dying: dict[tuple[int, int], list[int]] = {}  # by bytes and type
        for storage in sorted(kernel.expression.reads - kernel.expression.displaced, reverse=True):
            born = born_at.get(storage, graph.born[storage])
            # Only older ones, so that no chain of takeovers bites its own tail, whatever a stranger's trace says.
            may_go = born < kernel.node and (born >= first or graph.is_donated[storage])
            if may_go and last_read.get(storage) == kernel.node and storage not in gone:
                dying.setdefault((graph.bytes[storage], graph.dtype[storage]), []).append(storage)
        for written in kernel.writes:
            alike = dying.get((graph.bytes[written], graph.dtype[written]))
            if alike:
                taken[written] = alike.pop()
                gone.add(taken[written])
    return taken
