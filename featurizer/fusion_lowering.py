"""The kernels that inductor's lowering makes of a compiled graph, before its scheduler fuses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from peakcast.featurizer.fusion_graph import MOST_PARTS_SEEN, CompiledGraph
from peakcast.featurizer.fusion_operations import Operations, read_count
from peakcast.featurizer.op_kinds import OpKind

# inductor's realize_reads_threshold: a value with several readers that would make each read more buffers than this
# gets a buffer of its own.
SHARED_READS: Final = 4
# inductor's realize_acc_reads_threshold: the same with a single reader.
SINGLE_READS: Final = 8
# inductor's realize_opcount_threshold, in operations of the inlined expression: where it has several readers, or reads
# several elements (`realize_hint` in ir.py).
INLINED_OPS: Final = 30
# Never more than this: `run_node` in graph.py.
MOST_INLINED_OPS: Final = 100


class Move(IntEnum):
    """What reading through a view does to the order of elements."""

    TRANSPOSED = 1
    ELSEWHERE = 2
    NOTHING = 3  # transposed, of what lies in channels last: read in the order in which it lies


_NOTHING: Final[frozenset[int]] = frozenset()
WHOLE: Final[Mapping[int, int]] = {}  # no buffer is read in parts
# Such kernels can write right into a concatenation.
_GENERATED: Final = (OpKind.POINTWISE, OpKind.REDUCTION, OpKind.CONCAT)
# A buffer's own bit, where all of it is read.
ALL: Final = 1 << MOST_PARTS_SEEN


@dataclass(slots=True)
class Expression:
    """A value as its reader sees it: the buffers it reads, those of them not in place, and how much it computes.

    `parts` are the parts that it reads, as bits, of a buffer of which it reads parts.
    """

    reads: AbstractSet[int]
    displaced: AbstractSet[int]
    op_count: int
    parts: Mapping[int, int]
    reads_several: bool = False  # several elements
    joined_count: int = 0  # buffers that are read as one with another

    @property
    def read_count(self) -> int:
        """How often it reads: each part of a buffer is a read of its own, as `num_reads` in ir.py has it."""
        return len(self.reads) - self.joined_count + sum(bits.bit_count() - 1 for bits in self.parts.values())


@dataclass(slots=True)
class Kernel:
    """What computes `source`: `node` is when. One that writes in place of what it reads has no new storage."""

    node: int
    source: int
    kind: OpKind
    is_copy: bool
    expression: Expression
    writes: list[int]
    changes: list[int]  # storages made before that it writes to
    allocates_itself: bool  # a library call without `out=`
    number: int = 0  # among the kernels as they were lowered
    ancestors: int = 0  # bits by number: the kernels whose results it needs, directly or not
    sums_both_ways: bool = False  # fused into one that sums rows and columns at once


class _Layouts:
    """Which storages are read out of the order in which they lie, going through the nodes of a graph."""

    def __init__(self, graph: CompiledGraph) -> None:
        self._graph = graph
        self._moved: dict[int, Move] = {}  # by storage whose latest view moves elements
        self._channels_last: set[int] = set()

    def view(self, node: int, viewed: int) -> None:
        """Note a view."""
        self._moved.pop(viewed, None)
        if self._graph.transposes[node]:
            self._moved[viewed] = Move.NOTHING if viewed in self._channels_last else Move.TRANSPOSED
        elif self._graph.moves[node]:
            self._moved[viewed] = Move.ELSEWHERE

    def compute(self, node: int) -> set[int]:
        """Note a node that computes; returns what it reads out of order."""
        graph, writes = self._graph, self._graph.new[node]
        displaced = {read for read in graph.inputs[node] if self._moved.get(read, Move.NOTHING) is not Move.NOTHING}
        lies_last = graph.lays_out[node]
        if graph.kinds[node] is OpKind.POINTWISE and writes:
            alike = [read for read in graph.inputs[node] if graph.numel[read] == graph.numel[writes[0]]]
            # A value lies as what it is computed from, unless it is a copy: where all comes transposed, it does too.
            if not graph.is_copy[node] and all(self._moved.get(read) is Move.TRANSPOSED for read in alike):
                displaced.difference_update(alike)
            lies_last = any(read in self._channels_last and read not in self._moved for read in alike)
        if lies_last:
            self._channels_last.update(writes)
        return displaced


def lower(graph: CompiledGraph, first: int, end: int, returned: set[int]) -> tuple[list[Kernel], list[int]]:
    """Return the kernels of one compiled graph in order, and the storages that are never written."""
    inlined: dict[int, Expression] = {}
    layouts, operations = _Layouts(graph), Operations(graph)
    divided: dict[int, tuple[int, int]] = {}  # by storage whose latest view is a part: of how many, and reads so far
    late: dict[int, Kernel] = {}  # by storage that is written where its view is returned
    awaited: dict[int, Kernel] = {}  # by storage that is written where the first library call reads it
    kernels: list[Kernel] = []
    for node in range(first, end):
        writes = graph.new[node]
        if graph.is_view[node] and not writes:
            (viewed,) = graph.inputs[node]
            if viewed in late and graph.returned_view[viewed] == node:
                kernels.append(late.pop(viewed))
                del inlined[viewed]
            layouts.view(node, viewed)
            operations.view(node, viewed)
            if graph.parts[node] > 1:
                divided[viewed] = graph.parts[node], divided.get(viewed, (0, 0))[1]
            elif viewed in divided:
                del divided[viewed]
            continue
        kernels += [awaited.pop(storage) for storage in graph.inputs[node] if storage in awaited]
        kind = graph.kinds[node]
        expression = _read(graph.inputs[node], inlined, layouts.compute(node), divided)
        keys: set[int] = set()
        if kind is OpKind.POINTWISE:
            keys = operations.compute(node, inlined)
            expression = Expression(
                expression.reads,
                expression.displaced,
                len(keys),
                expression.parts,
                graph.lies_in_images[node] or read_count(keys) > 1,
                operations.joined_count(expression.reads),
            )
        kernel = Kernel(
            node,
            node,
            kind,
            graph.is_copy[node],
            expression,
            writes,
            graph.changed[node],
            graph.allocates_itself[node],
        )
        if kind is OpKind.POINTWISE and writes and not _gets_buffer(graph, node, end, returned, expression):
            for storage in writes:
                inlined[storage] = expression
            operations.inline(writes, keys)
        elif kind is OpKind.POINTWISE and _is_late(graph, node, end, expression):
            (storage,) = writes
            kernel.node = graph.returned_view[storage]
            late[storage] = kernel
            inlined[storage] = expression
            operations.inline(writes, keys)
        elif kind is OpKind.POINTWISE and _is_awaited(graph, node, end, returned, expression):
            awaited[writes[0]] = kernel
        else:
            kernels.append(kernel)
            if kind in _GENERATED:
                operations.generate(writes)
    return [*kernels, *awaited.values()], list(inlined)


def _read(
    storages: Sequence[int],
    inlined: dict[int, Expression],
    moved: AbstractSet[int],
    divided: dict[int, tuple[int, int]],
) -> Expression:
    """Join what a node reads into one expression. Sets are shared and never changed: most nodes read one value."""
    if len(storages) == 1 and storages[0] not in divided:
        (storage,) = storages
        inner = inlined.get(storage)
        if inner is None:
            alone = {storage}
            return Expression(alone, alone if storage in moved else _NOTHING, 0, WHOLE)
        displaced_there = inner.reads if storage in moved else inner.displaced
        return Expression(inner.reads, displaced_there, 0, inner.parts)
    reads: set[int] = set()
    displaced: set[int] = set()
    parted = False
    for storage in storages:
        inner = inlined.get(storage)
        parted = parted or storage in divided or (inner is not None and bool(inner.parts))
        if inner is None:
            reads.add(storage)
            if storage in moved:
                displaced.add(storage)
        else:
            reads |= inner.reads
            displaced |= inner.reads if storage in moved else inner.displaced
    return Expression(reads, displaced, 0, _parts(storages, inlined, divided) if parted else WHOLE)


def _parts(
    storages: Sequence[int], inlined: dict[int, Expression], divided: dict[int, tuple[int, int]]
) -> Mapping[int, int]:
    """Return the parts that a node reads of each buffer.

    A trace does not tell which part a view is: each reader is taken to read the next one, round and round.
    """
    parts: dict[int, int] = {}
    for storage in storages:
        inner = inlined.get(storage)
        bit = ALL
        if storage in divided:
            count, seen = divided[storage]
            divided[storage] = count, seen + 1
            bit = 1 << seen % count
        for read in (storage,) if inner is None else inner.reads:
            bits = ALL if inner is None else inner.parts.get(read, ALL)
            parts[read] = parts.get(read, 0) | (bit if bits == ALL else bits)
    return parts


def leaves(graph: CompiledGraph, storage: int, end: int, returned: set[int]) -> bool:
    """Tell whether something beyond fused kernels needs a value: a library, the caller or the graph's backward."""
    return graph.is_needed_in_memory[storage] or storage in returned or not 0 <= graph.died[storage] < end


def _gets_buffer(graph: CompiledGraph, node: int, end: int, returned: set[int], expression: Expression) -> bool:
    """Tell whether a pointwise value is written to memory."""
    readers = 0
    for storage in graph.new[node]:
        if leaves(graph, storage, end, returned):
            return True
        readers = max(readers, graph.readers[storage])
    return graph.is_written[node] or _is_much(expression, readers)


def _is_much(expression: Expression, readers: int) -> bool:
    is_shared = readers > 1
    most_ops = INLINED_OPS if is_shared or expression.reads_several else MOST_INLINED_OPS
    return expression.read_count > (SHARED_READS if is_shared else SINGLE_READS) or expression.op_count > most_ops


def _is_awaited(graph: CompiledGraph, node: int, end: int, returned: set[int], expression: Expression) -> bool:
    """Tell whether a value is written for library calls alone: inductor does so where it lowers the first of them."""
    writes = graph.new[node]
    return (
        len(writes) == 1
        and graph.is_awaited[writes[0]]
        and 0 <= graph.died[writes[0]] < end
        and writes[0] not in returned
        and not graph.is_written[node]
        and not _is_much(expression, graph.readers[writes[0]])
        and all(graph.last_change[read] < node for read in expression.reads)
    )


def _is_late(graph: CompiledGraph, node: int, end: int, expression: Expression) -> bool:
    """Tell whether a value leaves the graph by a view that comes after what else reads it."""
    writes = graph.new[node]
    return (
        len(writes) == 1
        and node < graph.returned_view[writes[0]] < end
        and not graph.is_needed_in_memory[writes[0]]
        and not graph.is_written[node]
        and not _is_much(expression, graph.readers[writes[0]] + 1)
    )
