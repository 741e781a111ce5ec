"""The rules of `fusion` and `buffer_pool` once more, as loops that numba compiles: the same lifetimes for any trace.

Nothing imports this module but `compiled.load`. A compiled graph is lowered, then ordered (`memory_order_kernel`), then
its buffers are placed. Shapes: N nodes, S storages, K kernels, I items (buffers read, of all kernels and inlined
values). A ragged table is a pair of offsets and ids, as in `trace.Csr`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from peakcast.featurizer.fusion_graph import GraphColumns
from peakcast.featurizer.jit import entry, inner
from peakcast.featurizer.memory_order_kernel import best_order
from peakcast.featurizer.trace import Csr, Int32, Int64

_NONE: Final = -1
_NEVER: Final = -2
# Values of `OpKind`.
_POINTWISE: Final = 1
_REDUCTION: Final = 2
_SCATTER: Final = 3
_WINDOW: Final = 4
_CONCAT: Final = 5

# Rows of `nodes` [5, N].
_KIND, _IS_VIEW, _MOVES, _IS_COPY, _ALLOCATES_ITSELF = range(5)
# Rows of `storages` [9, S].
_READERS, _NEEDED, _NUMEL, _DTYPE, _BYTES, _BORN, _DIED, _DONATED, _RETURNED = range(9)
# Rows of `state` [16, S], which is good for one graph: `_GRAPH` says for which.
(
    _GRAPH,
    _EXPRESSION,  # what an inlined storage is read as
    _MOVED,  # whether its latest view moves elements
    _MARK,  # its item in the expression being joined
    _SIBLING,  # the earlier kernel that its own was fused with
    _MADE,  # the step that makes it
    _BUFFER,
    _IS_CHANGED,  # whether a kernel writes to it in place
    _CHANGED_AT,  # the latest step that did
    _SINCE,  # its accesses since
    _LAST,  # the last kernel that reads or writes it
    _WRITTEN,  # the kernel that makes it
    _TAKEN,  # the storage whose memory it takes over
    _GONE,  # whether another took its memory over
    _KERNELS,  # how many kernels read it
    _READER,  # one of them
) = range(16)
# Places of `limits`.
(
    _SHARED_READS,
    _SINGLE_READS,
    _INLINED_OPS,
    _SIBLING_DISTANCE,
    _SIBLING_BYTES,
    _MOST_REORDERED,
    _MOST_FUSED,
    _MOST_FUSED_READS,
) = range(8)

Table = tuple[Int64, Int64]
Columns = tuple[Int64, Int64, Table, Table, Table]  # nodes, storages; read, made and changed by node
# By kernel [K]: when it runs, its node, its expression; by expression: its first item and the one after its last; by
# item: the storage, and whether it is read out of place.
Kernels = tuple[Int64, Int64, Int64, Int64, Int64, Int64, Int64]
# As `memory_order_kernel.best_order` takes it: the node times; size, maker, is_output; reader, read; before, after.
Steps = tuple[Int64, Int64, Int64, Int64, Int64, Int64, Int64, Int64]


@inner
def _slot(keys: Int64, first: int, second: int) -> int:
    """Return the place of a pair in a hash table [3, power of two], where it is put if it was not there."""
    mask = keys.shape[1] - 1
    mixed = first * 0x9E3779B97F4A7C1 + second * 0x2545F4914F6CDD1D
    slot: int = (mixed ^ (mixed >> 29)) & mask
    while keys[0, slot] != _NONE and (keys[0, slot] != first or keys[1, slot] != second):
        slot = (slot + 1) & mask
    if keys[0, slot] == _NONE:
        keys[0, slot], keys[1, slot], keys[2, slot] = first, second, _NONE
    return slot


@inner
def _new_slots(most: int) -> Int64:
    size = 16
    while size < 2 * most:
        size *= 2
    keys = np.empty((3, size), np.int64)
    keys[0, :] = _NONE
    return keys


@inner
def _dies(storage: int, first: int, end: int, storages: Int64) -> bool:
    died = storages[_DIED, storage]
    return bool(first <= died < end and not (storages[_RETURNED, storage] and died == end - 1))


@inner
def _begin(first: int, end: int, columns: Columns, state: Int64) -> Int64:
    """Forget, for each storage that the graph touches, what is known of it; returns those storages in order."""
    most = 0
    for table in (columns[2], columns[3], columns[4]):
        most += table[0][end] - table[0][first]
    touched = np.empty(most, np.int64)
    count = 0
    for table in (columns[2], columns[3], columns[4]):
        for index in range(table[0][first], table[0][end]):
            storage = table[1][index]
            if state[_GRAPH, storage] != first:
                state[:, storage] = _NONE
                state[_GRAPH, storage] = first
                touched[count] = storage
                count += 1
    return np.sort(touched[:count])


@inner
def _join(
    node: int, columns: Columns, state: Int64, spans: Int64, items: Int64, displaced: Int64, start: int
) -> tuple[int, int]:
    """Join what a node reads into one expression from item `start` on; returns its end and how much it computes."""
    offsets, ids = columns[2]
    end, ops = start, 1
    for index in range(offsets[node], offsets[node + 1]):
        storage = ids[index]
        moved = 1 if state[_MOVED, storage] == 1 else 0
        inner_value = state[_EXPRESSION, storage]
        if inner_value == _NONE:
            if state[_MARK, storage] < start:
                state[_MARK, storage] = end
                items[end], displaced[end] = storage, 0
                end += 1
            displaced[state[_MARK, storage]] |= moved
            continue
        ops += spans[2, inner_value]
        for item in range(spans[0, inner_value], spans[1, inner_value]):
            read = items[item]
            if state[_MARK, read] < start:
                state[_MARK, read] = end
                items[end], displaced[end] = read, 0
                end += 1
            displaced[state[_MARK, read]] |= moved | displaced[item]
    return end, ops


@inner
def _leaves(storage: int, end: int, storages: Int64) -> bool:
    died = storages[_DIED, storage]
    is_returned = storages[_RETURNED, storage] and died == end - 1
    return bool(storages[_NEEDED, storage] or not 0 <= died < end or is_returned)


@inner
def _gets_buffer(node: int, end: int, columns: Columns, limits: Int64, reads: int, ops: int) -> bool:
    storages, (offsets, ids) = columns[1], columns[3]
    readers = 0
    for index in range(offsets[node], offsets[node + 1]):
        storage = ids[index]
        if _leaves(storage, end, storages):
            return True
        readers = max(readers, storages[_READERS, storage])
    most_reads = limits[_SHARED_READS] if readers > 1 else limits[_SINGLE_READS]
    return bool(reads > most_reads or ops > limits[_INLINED_OPS])


@inner
def _lowered(first: int, end: int, columns: Columns, state: Int64, born: Int32, limits: Int64) -> Kernels:
    """Return the kernels of a graph in the order of its nodes; what is inlined is never born."""
    nodes, (offsets, ids), (new_offsets, new_ids) = columns[0], columns[2], columns[3]
    # An inlined value reads no more than `_SINGLE_READS` buffers.
    reads = offsets[end] - offsets[first]
    most_items = max(limits[_SINGLE_READS], limits[_SHARED_READS], 1) * reads + 1
    items, displaced = np.empty(most_items, np.int64), np.empty(most_items, np.int64)
    spans = np.empty((3, end - first), np.int64)
    node_of = np.empty(end - first, np.int64)
    source, expression = np.empty_like(node_of), np.empty_like(node_of)
    kernels = expressions = filled = 0
    for node in range(first, end):
        makes = new_offsets[node + 1] - new_offsets[node]
        if nodes[_IS_VIEW, node] and makes == 0:
            state[_MOVED, ids[offsets[node]]] = nodes[_MOVES, node]
            continue
        stop, ops = _join(node, columns, state, spans, items, displaced, filled)
        spans[0, expressions], spans[1, expressions], spans[2, expressions] = filled, stop, ops
        if (
            nodes[_KIND, node] == _POINTWISE
            and makes
            and not _gets_buffer(node, end, columns, limits, stop - filled, ops)
        ):
            for index in range(new_offsets[node], new_offsets[node + 1]):
                state[_EXPRESSION, new_ids[index]] = expressions
                born[new_ids[index]] = _NEVER
        else:
            node_of[kernels], source[kernels], expression[kernels] = node, node, expressions
            kernels += 1
        expressions += 1
        filled = stop
    return (
        node_of[:kernels].copy(),
        source[:kernels].copy(),
        expression[:kernels].copy(),
        spans[0, :expressions].copy(),
        spans[1, :expressions].copy(),
        items[:filled].copy(),
        displaced[:filled].copy(),
    )


@inner
def _only_reader(kernel: int, end: int, columns: Columns, state: Int64, kernels: Kernels) -> int:
    """Return the one kernel that reads what a pointwise kernel makes, if it is pointwise, as long and later."""
    nodes, storages, (new_offsets, new_ids) = columns[0], columns[1], columns[3]
    node_of, source = kernels[0], kernels[1]
    node = source[kernel]
    if nodes[_KIND, node] != _POINTWISE or new_offsets[node + 1] - new_offsets[node] != 1:
        return _NONE
    written = new_ids[new_offsets[node]]
    if state[_KERNELS, written] != 1 or _leaves(written, end, storages):
        return _NONE
    into: int = state[_READER, written]
    other = source[into]
    if nodes[_KIND, other] != _POINTWISE or new_offsets[other + 1] - new_offsets[other] != 1:
        return _NONE
    is_as_long = storages[_NUMEL, new_ids[new_offsets[other]]] == storages[_NUMEL, written]
    return into if is_as_long and node_of[into] > node_of[kernel] else _NONE


@inner
def _fused_into_readers(
    end: int, columns: Columns, state: Int64, kernels: Kernels, born: Int32, limits: Int64
) -> Kernels:
    """Fuse pointwise kernels into the one pointwise kernel that reads them; returns those left."""
    (new_offsets, new_ids), (changed_offsets, changed_ids) = columns[3], columns[4]
    node_of, source, expression, starts, stops, items, displaced = kernels
    for kernel in range(len(node_of)):
        for item in range(starts[expression[kernel]], stops[expression[kernel]]):
            state[_KERNELS, items[item]] = max(state[_KERNELS, items[item]], 0) + 1
            state[_READER, items[item]] = kernel
        for index in range(changed_offsets[source[kernel]], changed_offsets[source[kernel] + 1]):
            state[_IS_CHANGED, changed_ids[index]] = 1
    filled = len(items)
    is_left = np.ones(len(node_of), np.bool_)
    for kernel in range(len(node_of)):
        into = _only_reader(kernel, end, columns, state, kernels)
        if into == _NONE:
            continue
        written = new_ids[new_offsets[source[kernel]]]
        own, others = expression[kernel], expression[into]
        is_steady = True
        for item in range(starts[own], stops[own]):
            is_steady = is_steady and state[_IS_CHANGED, items[item]] != 1
        if not is_steady:
            continue
        most = filled + stops[own] - starts[own] + stops[others] - starts[others]
        if most > len(items):
            more = np.empty(most + len(items), np.int64)
            items, displaced = np.concatenate((items, more)), np.concatenate((displaced, more))
        stop, moved = filled, 0
        for item in range(starts[others], stops[others]):
            if items[item] == written:
                moved = displaced[item]
                continue
            state[_MARK, items[item]] = stop
            items[stop], displaced[stop] = items[item], displaced[item]
            stop += 1
        first_own = stop
        for item in range(starts[own], stops[own]):
            read = items[item]
            if state[_MARK, read] < filled:
                state[_MARK, read] = stop
                items[stop], displaced[stop] = read, 0
                stop += 1
            displaced[state[_MARK, read]] |= displaced[item] | moved
        begin, filled = filled, stop
        if stop - begin + 1 > limits[_MOST_FUSED_READS]:
            continue
        for item in range(starts[own], stops[own]):
            read = items[item]
            if state[_MARK, read] < first_own:
                state[_KERNELS, read] -= 1
            state[_READER, read] = into
        starts[others], stops[others] = begin, stop
        is_left[kernel] = False
        born[written] = _NEVER
    left = np.flatnonzero(is_left)
    return node_of[left], source[left], expression[left], starts, stops, items, displaced


@inner
def _fuse_siblings(first: int, end: int, columns: Columns, state: Int64, kernels: Kernels, limits: Int64) -> None:
    """Move kernels to an earlier one with as long a loop that reads or makes a buffer they read."""
    nodes, storages, (offsets, ids), (new_offsets, new_ids), _ = columns
    node_of, source, expression, starts, stops, items, _ = kernels
    # What kernels read and make, and what the parts of concatenations read: none of these more than an inlined value.
    most = max(limits[_SINGLE_READS], limits[_SHARED_READS], 1) * (offsets[end] - offsets[first])
    latest = _new_slots(most + len(items) + len(node_of) + 1)
    place, fused = np.zeros(end - first, np.int64), np.zeros(end - first, np.int64)
    for kernel in range(len(node_of)):
        place[node_of[kernel] - first] = kernel
    for kernel in range(len(node_of)):
        node, runs_at = source[kernel], node_of[kernel]
        kind, begin, stop = nodes[_KIND, node], starts[expression[kernel]], stops[expression[kernel]]
        if (kind in (_POINTWISE, _WINDOW)) and new_offsets[node + 1] - new_offsets[node] == 1:
            written = new_ids[new_offsets[node]]
            elements = storages[_NUMEL, written]
            if storages[_BYTES, written] >= limits[_SIBLING_BYTES]:
                sibling = _NONE
                for item in range(begin, stop):
                    sibling = max(sibling, latest[2, _slot(latest, items[item], elements)])
                if sibling != _NONE and sibling < node and fused[sibling - first] < limits[_MOST_FUSED]:
                    exists, reads_made = True, False
                    for item in range(begin, stop):
                        read = items[item]
                        exists = exists and state[_IS_CHANGED, read] != 1
                        at = state[_SIBLING, read] if state[_SIBLING, read] != _NONE else storages[_BORN, read]
                        if at >= sibling:
                            reads_made = True
                            exists = exists and (
                                kind == _POINTWISE
                                and at == sibling
                                and latest[2, _slot(latest, read, elements)] == sibling
                                and nodes[_KIND, storages[_BORN, read]] == _POINTWISE
                                and storages[_NUMEL, read] == elements
                            )
                    is_near = reads_made or kernel - place[sibling - first] <= limits[_SIBLING_DISTANCE]
                    if exists and is_near:
                        runs_at = sibling
                        state[_SIBLING, written] = sibling
                        fused[sibling - first] += 1
            for item in range(begin, stop):
                latest[2, _slot(latest, items[item], elements)] = runs_at
            if kind == _POINTWISE:
                latest[2, _slot(latest, written, elements)] = runs_at
        elif kind == _CONCAT:
            for index in range(offsets[node], offsets[node + 1]):
                part = ids[index]
                value = state[_EXPRESSION, part]
                if value == _NONE:
                    latest[2, _slot(latest, part, storages[_NUMEL, part])] = runs_at
                else:
                    for item in range(starts[value], stops[value]):
                        latest[2, _slot(latest, items[item], storages[_NUMEL, part])] = runs_at
        node_of[kernel] = runs_at


@inner
def _steps(first: int, end: int, columns: Columns, state: Int64, kernels: Kernels, touched: Int64) -> Steps:
    """Return the program of a graph as the orders take it. Kernels that run at one node are one step."""
    storages, (new_offsets, new_ids), (changed_offsets, changed_ids) = columns[1], columns[3], columns[4]
    node_of, source, expression, starts, stops, items, _ = kernels
    step_of = np.full(end - first, _NONE, np.int64)
    for node in node_of:
        step_of[node - first] = 0
    times = np.flatnonzero(step_of == 0)
    step_of[times] = np.arange(len(times))
    changes = accesses = reads = 0
    for kernel in range(len(node_of)):
        node = source[kernel]
        reads += stops[expression[kernel]] - starts[expression[kernel]]
        for index in range(new_offsets[node], new_offsets[node + 1]):
            state[_MADE, new_ids[index]] = step_of[node_of[kernel] - first]
        for index in range(changed_offsets[node], changed_offsets[node + 1]):
            state[_IS_CHANGED, changed_ids[index]] = 1
            changes += 1
    # Which step reads what, each pair once: in the order of the steps, so that one look back tells.
    in_order = np.argsort(node_of, kind="mergesort")
    reader, read = np.empty(reads, np.int64), np.empty(reads, np.int64)
    pairs = 0
    for kernel in in_order:
        step = step_of[node_of[kernel] - first]
        for item in range(starts[expression[kernel]], stops[expression[kernel]]):
            storage = items[item]
            if state[_LAST, storage] != step:  # borrowed: nothing is known of last reads yet
                state[_LAST, storage] = step
                reader[pairs], read[pairs] = step, storage
                pairs += 1
            if state[_IS_CHANGED, storage] == 1:
                accesses += 1
    before, after = _in_turn(columns, state, kernels, step_of, first, changes + accesses)
    size = np.empty(len(touched), np.int64)
    maker, is_output = np.empty_like(size), np.empty_like(size)
    buffers = 0
    for storage in touched:
        is_read = state[_LAST, storage] != _NONE
        state[_LAST, storage] = _NONE
        made = state[_MADE, storage]
        dies = _dies(storage, first, end, storages)
        if made != _NONE or (is_read and dies and storages[_DONATED, storage]):
            size[buffers], maker[buffers], is_output[buffers] = storages[_BYTES, storage], made, not dies
            state[_BUFFER, storage] = buffers
            buffers += 1
    kept = 0
    for pair in range(pairs):
        buffer = state[_BUFFER, read[pair]]
        if buffer != _NONE and maker[buffer] != reader[pair]:
            reader[kept], read[kept] = reader[pair], buffer
            kept += 1
    return (
        times + first,
        size[:buffers],
        maker[:buffers],
        is_output[:buffers],
        reader[:kept],
        read[:kept],
        before,
        after,
    )


@inner
def _in_turn(
    columns: Columns, state: Int64, kernels: Kernels, step_of: Int64, first: int, accesses: int
) -> tuple[Int64, Int64]:
    """Return pairs of steps in turn, so that each read of a changing buffer finds what it would."""
    changed_offsets, changed_ids = columns[4]
    node_of, source, expression, starts, stops, items, _ = kernels
    before, after = np.empty(2 * accesses, np.int64), np.empty(2 * accesses, np.int64)
    step_since, earlier = np.empty(accesses, np.int64), np.empty(accesses, np.int64)
    pairs = noted = 0
    for kernel in range(len(node_of)):
        step, node = step_of[node_of[kernel] - first], source[kernel]
        for part in range(2):  # what it writes to, then what it only reads
            begin, stop = changed_offsets[node], changed_offsets[node + 1]
            if part:
                begin, stop = starts[expression[kernel]], stops[expression[kernel]]
            for index in range(begin, stop):
                storage = items[index] if part else changed_ids[index]
                if state[_IS_CHANGED, storage] != 1:
                    continue
                # A kernel's second access tells nothing new: it was marked by the first.
                if state[_WRITTEN, storage] == kernel:
                    continue
                state[_WRITTEN, storage] = kernel  # borrowed, and given back below
                written = state[_CHANGED_AT, storage]
                if written != _NONE:
                    before[pairs], after[pairs] = written, step
                    pairs += 1
                if part == 0:
                    entry_ = state[_SINCE, storage]
                    while entry_ != _NONE:
                        before[pairs], after[pairs] = step_since[entry_], step
                        pairs += 1
                        entry_ = earlier[entry_]
                    state[_CHANGED_AT, storage] = step
                    state[_SINCE, storage] = _NONE
                step_since[noted], earlier[noted] = step, state[_SINCE, storage]
                state[_SINCE, storage] = noted
                noted += 1
    for kernel in range(len(node_of)):
        node = source[kernel]
        for index in range(changed_offsets[node], changed_offsets[node + 1]):
            state[_WRITTEN, changed_ids[index]] = _NONE
    return before[:pairs], after[:pairs]


@entry
def lower(
    first: int, end: int, columns: Columns, state: Int64, born: Int32, limits: Int64
) -> tuple[Int64, Kernels, Steps]:
    """Return what a graph touches, its kernels and its program; note in `born` what is never materialised."""
    touched = _begin(first, end, columns, state)
    kernels = _lowered(first, end, columns, state, born, limits)
    kernels = _fused_into_readers(end, columns, state, kernels, born, limits)
    _fuse_siblings(first, end, columns, state, kernels, limits)
    return touched, kernels, _steps(first, end, columns, state, kernels, touched)


@inner
def _last_reads(
    first: int,
    end: int,
    columns: Columns,
    state: Int64,
    kernels: Kernels,
    touched: Int64,
    lifetimes: tuple[Int32, Int32],
) -> None:
    """Note when each buffer is written, and when it is last read or written where it dies in the graph."""
    storages, (new_offsets, new_ids) = columns[1], columns[3]
    node_of, source, expression, starts, stops, items, _ = kernels
    born, died = lifetimes
    for kernel in range(len(node_of)):
        node, runs_at = source[kernel], node_of[kernel]
        for index in range(new_offsets[node], new_offsets[node + 1]):
            storage = new_ids[index]
            state[_WRITTEN, storage] = runs_at
            if born[storage] != _NEVER:
                born[storage] = runs_at
            if _dies(storage, first, end, storages):
                state[_LAST, storage] = max(state[_LAST, storage], runs_at)
        for item in range(starts[expression[kernel]], stops[expression[kernel]]):
            if _dies(items[item], first, end, storages):
                state[_LAST, items[item]] = max(state[_LAST, items[item]], runs_at)
    for storage in touched:
        if state[_LAST, storage] != _NONE:
            died[storage] = max(state[_LAST, storage], born[storage])


@inner
def _take_over(first: int, columns: Columns, state: Int64, kernels: Kernels, kernel: int) -> None:
    """Let a kernel write in place of what dies there: of the same bytes and type, lowest number first."""
    nodes, storages, (new_offsets, new_ids) = columns[0], columns[1], columns[3]
    node_of, source, expression, starts, stops, items, displaced = kernels
    node, runs_at = source[kernel], node_of[kernel]
    kind = nodes[_KIND, node]
    if (kind not in (_POINTWISE, _REDUCTION, _SCATTER)) or nodes[_IS_COPY, node]:
        return
    for index in range(new_offsets[node], new_offsets[node + 1]):
        written, chosen = new_ids[index], _NONE
        for item in range(starts[expression[kernel]], stops[expression[kernel]]):
            storage = items[item]
            if displaced[item] or state[_GONE, storage] == 1 or state[_LAST, storage] != runs_at:
                continue
            born = state[_WRITTEN, storage] if state[_WRITTEN, storage] != _NONE else storages[_BORN, storage]
            may_go = born < runs_at and (born >= first or storages[_DONATED, storage])
            alike = (
                storages[_BYTES, storage] == storages[_BYTES, written]
                and storages[_DTYPE, storage] == storages[_DTYPE, written]
            )
            if may_go and alike and (chosen == _NONE or storage < chosen):
                chosen = storage
        if chosen != _NONE:
            state[_TAKEN, written] = chosen
            state[_GONE, chosen] = 1


@inner
def _pool(
    columns: Columns, state: Int64, kernels: Kernels, in_order: Int64, touched: Int64, times: Int64, live_bytes: Int64
) -> None:
    """Let buffers take over freed ones of the same bytes and type, last freed first, where that keeps to the peak."""
    nodes, storages, (new_offsets, new_ids) = columns[0], columns[1], columns[3]
    node_of, source = kernels[0], kernels[1]
    peak_bytes = live_bytes.max()
    step_of = np.empty(times[-1] + 1 - times[0] if len(times) else 0, np.int64)
    step_of[times - (times[0] if len(times) else 0)] = np.arange(len(times))
    passed_on = np.zeros(state.shape[1], np.bool_)
    for storage in touched:
        if state[_TAKEN, storage] != _NONE:
            passed_on[state[_TAKEN, storage]] = True
    most = 0
    for kernel in in_order:
        most += new_offsets[source[kernel] + 1] - new_offsets[source[kernel]]
    dies_at, dying = np.empty(most, np.int64), np.empty(most, np.int64)
    count = 0
    for kernel in in_order:
        for index in range(new_offsets[source[kernel]], new_offsets[source[kernel] + 1]):
            storage = new_ids[index]
            if state[_LAST, storage] != _NONE and not passed_on[storage]:
                dies_at[count], dying[count] = step_of[state[_LAST, storage] - times[0]], storage
                count += 1
    by_step = np.argsort(dies_at[:count], kind="mergesort")
    freed = _new_slots(most + 1)
    freed_at, below = np.empty(count, np.int64), np.empty(count, np.int64)  # by place in `by_step`
    place = next_kernel = 0
    for step in range(len(times)):
        while next_kernel < len(in_order) and node_of[in_order[next_kernel]] == times[step]:
            node = source[in_order[next_kernel]]
            next_kernel += 1
            if nodes[_ALLOCATES_ITSELF, node]:
                continue
            for index in range(new_offsets[node], new_offsets[node + 1]):
                storage = new_ids[index]
                if state[_TAKEN, storage] != _NONE:
                    continue
                size_bytes = storages[_BYTES, storage]
                slot = _slot(freed, size_bytes, storages[_DTYPE, storage])
                top = freed[2, slot]
                if top == _NONE:
                    continue
                fits = True
                for between in range(freed_at[top] + 1, step):
                    fits = fits and size_bytes + live_bytes[between] <= peak_bytes
                if fits:
                    for between in range(freed_at[top] + 1, step):
                        live_bytes[between] += size_bytes
                    freed[2, slot] = below[top]
                    state[_TAKEN, storage] = dying[by_step[top]]
        while place < count and dies_at[by_step[place]] == step:
            storage = dying[by_step[place]]
            slot = _slot(freed, storages[_BYTES, storage], storages[_DTYPE, storage])
            freed_at[place], below[place] = step, freed[2, slot]
            freed[2, slot] = place
            place += 1


@entry
def place(
    first: int,
    end: int,
    columns: Columns,
    state: Int64,
    touched: Int64,
    kernels: Kernels,
    times: Int64,
    order: Int64,
    live_bytes: Int64,
    lifetimes: tuple[Int32, Int32, Int32, Int32],
) -> None:
    """Run the kernels in an order, and note births, deaths, reuses and times in `lifetimes`.

    An empty `order` leaves them as they are, and pools nothing.
    """
    born, died, reuses, time = lifetimes
    node_of = kernels[0]
    if len(order):
        moved_to = np.empty(end - first, np.int64)
        for position in range(len(order)):
            moved_to[times[order[position]] - first] = times[position]
            time[times[order[position]]] = times[position]
        for kernel in range(len(node_of)):
            node_of[kernel] = moved_to[node_of[kernel] - first]
    in_order = np.argsort(node_of, kind="mergesort") if len(order) else np.arange(len(node_of))
    _last_reads(first, end, columns, state, kernels, touched, (born, died))
    for kernel in in_order:
        _take_over(first, columns, state, kernels, kernel)
    if len(order):
        _pool(columns, state, kernels, in_order, touched, times, live_bytes)
    for storage in touched:
        other = state[_TAKEN, storage]
        if other != _NONE and born[other] != _NEVER:
            reuses[storage] = other


def fuse(
    graph: GraphColumns,
    segments: Iterable[tuple[int, int]],
    lifetimes: tuple[Int32, Int32, Int32, Int32],
    limits: tuple[int, ...],
    most_looks: int,
) -> None:
    """Note in `lifetimes` (births, deaths, reuses by storage; times by node) what the compiler makes of each segment.

    `limits` are the numbers of `fusion`, in the order of the places named above; `most_looks` is that of
    `memory_order`.
    """
    nodes = np.array((graph.kind, graph.is_view, graph.moves, graph.is_copy, graph.allocates_itself), np.int64)
    storages = np.array(
        (
            graph.readers,
            graph.is_needed_in_memory,
            graph.numel,
            graph.dtype,
            graph.bytes,
            graph.born,
            graph.died,
            graph.is_donated,
            graph.is_returned,
        ),
        np.int64,
    )
    columns = nodes, storages, _int64(graph.inputs), _int64(graph.new), _int64(graph.changed)
    _fuse_segments(columns, segments, lifetimes, limits, most_looks)


def _fuse_segments(
    columns: Columns,
    segments: Iterable[tuple[int, int]],
    lifetimes: tuple[Int32, Int32, Int32, Int32],
    limits: tuple[int, ...],
    most_looks: int,
) -> None:
    state = np.full((16, columns[1].shape[1]), _NONE, np.int64)
    bounds = np.array(limits, np.int64)
    nothing = np.empty(0, np.int64)
    for first, end in segments:
        touched, kernels, steps = lower(first, end, columns, state, lifetimes[0], bounds)
        times, size, maker, is_output, reader, read, before, after = steps
        order, live_bytes = nothing, nothing
        if 0 < len(times) <= bounds[_MOST_REORDERED]:
            order, live_bytes = best_order(len(times), size, maker, is_output, reader, read, before, after, most_looks)
        place(first, end, columns, state, touched, kernels, times, order, live_bytes, lifetimes)


def warm_up() -> None:
    """Compile, or read from the cache: one node that makes a storage."""
    made, nothing = (np.array([0, 1]), np.array([0])), (np.array([0, 0]), np.zeros(0, np.int64))
    columns = np.zeros((5, 1), np.int64), np.zeros((9, 1), np.int64), nothing, made, nothing
    births, deaths, reuses, times = (np.zeros(1, np.int32) for _ in range(4))
    _fuse_segments(columns, [(0, 1)], (births, deaths, reuses, times), (1,) * 8, 1)


def _int64(csr: Csr) -> Table:
    return csr.offsets.astype(np.int64), csr.ids.astype(np.int64)
