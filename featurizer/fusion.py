"""What inductor keeps of a compiled graph: which values get a buffer, when it is freed, and whose it takes over.

The rules follow inductor's lowering: a pointwise value is inlined into its readers unless something needs it in
memory, reductions and library kernels write buffers, and a fused kernel may write into an input that dies there.
Shapes: N nodes, S storages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from peakcast.featurizer.lifetimes import NEVER, Lifetimes, observed_lifetimes
from peakcast.featurizer.op_kinds import OpKind, op_kind, stem
from peakcast.featurizer.trace import Int64, Trace
from peakcast.featurizer.vocabulary import BACKWARD

# inductor's realize_reads_threshold: a value with several readers that would make each read more buffers than this
# gets a buffer of its own.
SHARED_READS: Final = 4
# inductor's realize_acc_reads_threshold: the same with a single reader.
SINGLE_READS: Final = 8
# inductor's realize_opcount_threshold, in operations of the inlined expression.
INLINED_OPS: Final = 30

# inductor's can_fusion_increase_peak_memory: kernels further apart than this in the graph's order are not fused.
SIBLING_DISTANCE: Final = 64
# Below this the choice moves nothing that counts.
SIBLING_BYTES: Final = 1 << 20

_FUSES_WITH_SIBLINGS: Final = (OpKind.POINTWISE, OpKind.WINDOW)
_NEEDS_BUFFER: Final = (OpKind.EXTERN, OpKind.WINDOW)
_WRITES_IN_PLACE: Final = (OpKind.POINTWISE, OpKind.REDUCTION, OpKind.SCATTER)


def fused_lifetimes(trace: Trace, ops: tuple[str, ...]) -> Lifetimes:
    """Return the lifetimes under inductor: those observed outside compiled regions, the rules' inside."""
    observed = observed_lifetimes(trace)
    if not (trace.region >= 0).any():
        return observed
    born, died, reuses = observed.born.copy(), observed.died.copy(), observed.reuses.copy()
    graph = _Graph(trace, ops)
    for first, end in _segments(trace):
        plan = _plan_segment(graph, first, end)
        for storage in plan.inlined:
            born[storage] = NEVER
        for storage, node in plan.moved.items():
            born[storage] = node
        for storage, node in plan.last_read.items():
            died[storage] = node
        for storage, taken in plan.takes_over.items():
            if born[taken] != NEVER:
                reuses[storage] = taken
    return Lifetimes(bytes=observed.bytes, role=observed.role, born=born, died=died, reuses=reuses)


class _Graph:
    """The columns of a trace as Python lists: the rules walk node by node."""

    def __init__(self, trace: Trace, ops: tuple[str, ...]) -> None:
        kinds, stems = [op_kind(op) for op in ops], [stem(op) for op in ops]
        self.kinds = [kinds[op] for op in trace.op.tolist()]
        self.stems = [stems[op] for op in trace.op.tolist()]
        self.inputs = _rows(trace.inputs.offsets, trace.inputs.ids)
        self.outputs = _rows(trace.outputs.offsets, trace.outputs.ids)
        self.bytes = (-(-trace.storages.bytes // 512) * 512).tolist()
        self.born = trace.storages.born.tolist()
        self.died = trace.storages.died.tolist()
        self.donated = self._donated(trace)

    def _donated(self, trace: Trace) -> list[bool]:
        """Tell which storages a compiled backward may overwrite: saved by a compiled forward, seen by nobody else."""
        born = trace.storages.born
        inside = (born >= 0) & (trace.region[born] >= 0) & (trace.phase[born] != BACKWARD)
        node_of_read = np.repeat(np.arange(len(trace)), np.diff(trace.inputs.offsets))
        read_outside = trace.inputs.ids[trace.region[node_of_read] < 0]
        inside[read_outside] = False
        return inside.tolist()  # type: ignore[no-any-return]


def _rows(offsets: Int64 | np.ndarray, ids: Int64 | np.ndarray) -> list[list[int]]:  # type: ignore[type-arg]
    flat, bounds = ids.tolist(), offsets.tolist()
    return [flat[start:end] for start, end in zip(bounds, bounds[1:], strict=False)]


def _segments(trace: Trace) -> Iterator[tuple[int, int]]:
    """Yield [first, end) of each run of one compiled graph, forward and backward apart."""
    code = np.where(trace.region < 0, -1, trace.region * 2 + (trace.phase == BACKWARD))
    edges = np.flatnonzero(np.diff(code)) + 1
    bounds = [0, *edges.tolist(), len(code)]
    for first, end in zip(bounds, bounds[1:], strict=False):
        if code[first] >= 0:
            yield first, end


_Kernel = tuple[int, frozenset[int], list[int]]  # node, buffers read, storages written
# Views that move elements: what is read through one is not read where it is written.
_MOVING_VIEWS: Final = frozenset(
    {"permute", "transpose", "t", "slice", "select", "expand", "as_strided", "unfold", "split", "split_with_sizes"}
)


@dataclass(slots=True)
class _Segment:
    inlined: list[int] = field(default_factory=list)  # storages that never exist
    moved: dict[int, int] = field(default_factory=dict)  # storage -> earlier node whose kernel writes it too
    last_read: dict[int, int] = field(default_factory=dict)  # storage -> node after which it is freed
    takes_over: dict[int, int] = field(default_factory=dict)  # storage -> dying storage whose memory it gets


def _plan_segment(graph: _Graph, first: int, end: int) -> _Segment:
    """Apply the rules to one compiled graph."""
    plan = _Segment()
    readers = _readers(graph, first, end)
    view_of: dict[int, str] = {}  # storage -> the view it was last seen through
    displaced_of: dict[int, set[int]] = {}  # inlined storage -> buffers its expression reads out of place
    displaced_at: dict[int, set[int]] = {}  # node -> the same for its kernel
    sources: dict[int, frozenset[int]] = {}  # inlined storage -> buffers its expression reads
    op_count: dict[int, int] = {}  # inlined storage -> operations of its expression
    kernels: list[_Kernel] = []
    for node in range(first, end):
        kind = graph.kinds[node]
        new = [storage for storage in graph.outputs[node] if graph.born[storage] == node]
        if not new and _is_view(graph, node):
            view_of[graph.inputs[node][0]] = graph.stems[node]
            continue
        reads: set[int] = set()
        out_of_place: set[int] = set()
        count = 1
        for storage in graph.inputs[node]:
            moves = view_of.get(storage) in _MOVING_VIEWS
            if storage in sources:
                reads |= sources[storage]
                count += op_count[storage]
                out_of_place |= sources[storage] if moves else displaced_of.get(storage, set())
            else:
                reads.add(storage)
                if moves:
                    out_of_place.add(storage)
        buffers = frozenset(reads)
        if kind is OpKind.POINTWISE and new and not _gets_buffer(graph, new, readers, end, len(buffers), count):
            for storage in new:
                sources[storage] = buffers
                displaced_of[storage] = out_of_place
                op_count[storage] = count
            plan.inlined += new
            continue
        kernels.append((node, buffers, new))
        displaced_at[node] = out_of_place
    kernels = _fuse_siblings(graph, kernels, plan)
    for node, buffers, new in kernels:
        for storage in (*buffers, *new):
            if first <= graph.died[storage] < end:
                plan.last_read[storage] = node
    _find_takeovers(graph, kernels, plan, first, displaced_at)
    return plan


def _fuse_siblings(graph: _Graph, kernels: list[_Kernel], plan: _Segment) -> list[_Kernel]:
    """Let one kernel write what several would: of one size, from a buffer they share, close by, and possible then."""
    latest: dict[tuple[int, int], int] = {}  # (buffer read, bytes written) -> node of the latest kernel
    moved = []
    for node, buffers, new in kernels:
        at = node
        if graph.kinds[node] in _FUSES_WITH_SIBLINGS and len(new) == 1:
            size_bytes = graph.bytes[new[0]]
            if size_bytes >= SIBLING_BYTES:
                shared = [latest[key] for storage in buffers if (key := (storage, size_bytes)) in latest]
                earliest = max(shared, default=node)
                ready = all(plan.moved.get(storage, graph.born[storage]) < earliest for storage in buffers)
                if ready and node - earliest <= SIBLING_DISTANCE:
                    at = earliest
                    if at != node:
                        plan.moved[new[0]] = at
                for storage in buffers:
                    latest[storage, size_bytes] = at
        moved.append((at, buffers, new))
    return moved


def _readers(graph: _Graph, first: int, end: int) -> dict[int, list[int]]:
    """Return, for each storage, the nodes of the segment that compute with it (views do not)."""
    readers: dict[int, list[int]] = {}
    for node in range(first, end):
        if _is_view(graph, node):
            continue
        for storage in graph.inputs[node]:
            readers.setdefault(storage, []).append(node)
    return readers


def _is_view(graph: _Graph, node: int) -> bool:
    """Tell whether a node only renames what it reads. One that writes in place has no result but what it wrote to."""
    outputs = graph.outputs[node]
    return len(graph.inputs[node]) == 1 and outputs == graph.inputs[node]


def _gets_buffer(
    graph: _Graph, new: list[int], readers: dict[int, list[int]], end: int, reads: int, op_count: int
) -> bool:
    """Tell whether a pointwise value is written to memory."""
    users: set[int] = set()
    for storage in new:
        died = graph.died[storage]
        if died < 0 or died >= end:
            return True  # an output of the graph, or saved for its backward
        users.update(readers.get(storage, ()))
    if any(graph.kinds[user] in _NEEDS_BUFFER for user in users):
        return True
    if len(users) > 1 and (reads > SHARED_READS or op_count > INLINED_OPS):
        return True
    return reads > SINGLE_READS or op_count > INLINED_OPS


def _find_takeovers(
    graph: _Graph, kernels: list[_Kernel], plan: _Segment, first: int, displaced_at: dict[int, set[int]]
) -> None:
    """Let a fused kernel write into a buffer of the same size that dies there."""
    taken: set[int] = set()
    for node, buffers, new in kernels:
        # A copy is there because its layout differs from what it reads: no element stays in its place.
        if graph.kinds[node] not in _WRITES_IN_PLACE or graph.stems[node] == "clone":
            continue
        for storage in new:
            for dying in buffers:
                if (
                    plan.last_read.get(dying) == node
                    and graph.bytes[dying] == graph.bytes[storage]
                    and dying not in taken
                    and dying not in displaced_at.get(node, ())
                    and (graph.born[dying] >= first or graph.donated[dying])
                ):
                    plan.takes_over[storage] = dying
                    taken.add(dying)
                    break
