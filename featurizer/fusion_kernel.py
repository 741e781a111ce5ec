"""The rules of `fusion` and `buffer_pool` once more, as loops that numba compiles: the same lifetimes for any trace.

Nothing imports this module but `compiled.load`. A compiled graph is lowered, then ordered (`memory_order_kernel`), then
its buffers are placed. Shapes: N nodes, S storages, K kernels, I items (buffers read, of all kernels and inlined
values). A ragged table is a pair of offsets and ids, as in `trace.Csr`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from peakcast.featurizer.fusion_graph import MOST_PARTS_SEEN, GraphColumns
from peakcast.featurizer.fusion_rounds_kernel import Bits, fuse_rounds
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

# Rows of `nodes` [19, N].
(
    _KIND,
    _IS_VIEW,
    _MOVES,
    _TRANSPOSES,
    _LAYS_OUT,
    _IS_COPY,
    _ALLOCATES_ITSELF,
    _IS_WRITTEN,
    _LOOP,
    _OUTER,
    _INNER,
    _OPS,
    _PARTS,
    _OP,
    _CONSTANTS,
    _MADE_NUMEL,
    _IN_IMAGES,
    _IS_JOINED,
    _BROADCASTS,
) = range(19)
# Rows of `storages` [13, S].
(
    _READERS,
    _NEEDED,
    _NUMEL,
    _DTYPE,
    _BYTES,
    _BORN,
    _DIED,
    _DONATED,
    _RETURNED,
    _RETURNED_VIEW,
    _LAST_CHANGE,
    _IS_AWAITED,
    _SAVED,
) = range(13)
# Rows of `state` [26, S], which is good for one graph: `_GRAPH` says for which.
(
    _GRAPH,
    _EXPRESSION,  # what an inlined storage is read as
    _MOVED,  # what reading through its latest view does, where that moves elements: `fusion_lowering.Move`
    _MARK,  # its item in the expression being joined
    _LATE,  # the node that makes it, where it is written with the view that is returned
    _MADE,  # the step that makes it
    _BUFFER,
    _IS_CHANGED,  # whether a kernel writes to it in place
    _CHANGED_AT,  # the latest step that did
    _SINCE,  # its accesses since
    _LAST,  # the last kernel that reads or writes it
    _WRITTEN,  # the kernel that makes it
    _TAKEN,  # the storage whose memory it takes over
    _GONE,  # whether another took its memory over
    _PLACE,  # among those that the graph touches
    _READ_IN,  # the fused kernel that alone reads it; -2: several do
    _DIVIDED,  # in how many parts like its latest view, where that is a part
    _PARTS_READ,  # how many were read since the first
    _AWAITED,  # the node that makes it, where it is written for the first library call that reads it
    _AWAITED_AS,  # the expression of that node
    _WITHIN,  # when the fused kernel runs that it lives within, and is never written
    _LAID_OUT,  # whether it lies in channels last
    _SEEN_BY,  # its latest view that is of some elements
    _SEEN_NUMEL,  # of how many
    _GENERATED,  # whether a generated kernel writes it
    _JOINED,  # the concatenation that it is written right into
) = range(26)
_SEVERAL: Final = -2
_TRANSPOSED, _ELSEWHERE, _MOVED_TO_NOWHERE = 1, 2, 3
_ALL: Final = 1 << MOST_PARTS_SEEN  # the bit of a buffer that is read whole
# Places of `limits`; the rest are those of `fusion_rounds_kernel`.
_SHARED_READS, _SINGLE_READS, _INLINED_OPS, _MOST_OPS, _MOST_REORDERED = range(5)
_OF_ROUNDS: Final = 5
_MOST_FUSED_READS: Final = -1
# What a kernel does with a storage, as in `fusion_rounds_kernel`.
_READS: Final = 1
_WRITES: Final = 2
_DISPLACED: Final = 4
_PARTS_FROM: Final = 8  # from this bit on: which parts of it
_NO_LOOP: Final = 0
# What a key stands for, as in `fusion_operations`.
_OPERATION, _READ, _CONSTANT, _JOIN = range(4)
_KIND_BITS: Final = 2
_KEY_MASK: Final = (1 << 60) - 1

Table = tuple[Int64, Int64]
Columns = tuple[Int64, Int64, Table, Table, Table]  # nodes, storages; read, made and changed by node
# By kernel [K]: when it runs, its node, its expression, its number as it was lowered; by expression: its first item and
# the one after its last; by item: the storage, and whether it is read out of place.
Kernels = tuple[Int64, Int64, Int64, Int64, Int64, Int64, Int64, Int64]
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
def _add(
    read: int, moved: int, bits: int, start: int, end: int, state: Int64, found: tuple[Int64, Int64, Int64]
) -> int:
    """Add a buffer to the expression from item `start` to `end`; returns its new end."""
    items, displaced, parts = found
    if state[_MARK, read] < start:
        state[_MARK, read] = end
        items[end], displaced[end], parts[end] = read, 0, 0
        end += 1
    displaced[state[_MARK, read]] |= moved
    parts[state[_MARK, read]] |= bits
    return end


@inner
def _lies_as_it_reads(node: int, columns: Columns, state: Int64) -> int:
    """Return how many elements a pointwise value has that lies as what it reads, all of that transposed; else -1.

    Note on the way where a value lies in channels last.
    """
    nodes, storages, (offsets, ids), (new_offsets, new_ids) = columns[0], columns[1], columns[2], columns[3]
    if new_offsets[node + 1] == new_offsets[node]:
        return _NONE
    is_laid_out = bool(nodes[_LAYS_OUT, node])
    numel, is_transposed = storages[_NUMEL, new_ids[new_offsets[node]]], not nodes[_IS_COPY, node]
    if nodes[_KIND, node] == _POINTWISE:
        is_laid_out = False
        for index in range(offsets[node], offsets[node + 1]):
            storage = ids[index]
            if storages[_NUMEL, storage] == numel:
                is_transposed = is_transposed and state[_MOVED, storage] == _TRANSPOSED
                is_laid_out = is_laid_out or (state[_LAID_OUT, storage] == 1 and state[_MOVED, storage] == _NONE)
    if is_laid_out:
        for index in range(new_offsets[node], new_offsets[node + 1]):
            state[_LAID_OUT, new_ids[index]] = 1
    return int(numel) if is_transposed and nodes[_KIND, node] == _POINTWISE else _NONE


@inner
def _join(
    node: int, columns: Columns, state: Int64, spans: Int64, found: tuple[Int64, Int64, Int64], start: int
) -> tuple[int, int]:
    """Join what a node reads into one expression from item `start` on; returns its end, and how often it reads."""
    offsets, ids = columns[2]
    items, displaced, parts = found
    end = start
    numel = _lies_as_it_reads(node, columns, state)
    for index in range(offsets[node], offsets[node + 1]):
        storage = ids[index]
        move = state[_MOVED, storage]
        moved = 1 if move == _ELSEWHERE or (move == _TRANSPOSED and columns[1][_NUMEL, storage] != numel) else 0
        bit = _ALL
        if state[_DIVIDED, storage] > 1:
            state[_PARTS_READ, storage] += 1
            bit = 1 << state[_PARTS_READ, storage] % state[_DIVIDED, storage]
        inner_value = state[_EXPRESSION, storage]
        if inner_value == _NONE:
            end = _add(storage, moved, bit, start, end, state, found)
            continue
        for item in range(spans[0, inner_value], spans[1, inner_value]):
            bits = bit if parts[item] == _ALL else parts[item]
            end = _add(items[item], moved | displaced[item], bits, start, end, state, found)
    reads = 0
    for item in range(start, end):
        bits = parts[item]
        while bits:
            bits &= bits - 1
            reads += 1
    return end, reads


@inner
def _mixed(one: int, other: int) -> int:
    """Return a number that stands for the two."""
    mixed: int = (one * 0x9E3779B1 + other * 0x85EBCA77 + 0x27D4EB2F) & _KEY_MASK
    return mixed ^ (mixed >> 31)


@inner
def _is_new(key: int, node: int, table: Int64) -> bool:
    """Put a key into a hash table [2, power of two], of keys and the nodes that put them there; tells if it is new."""
    mask = table.shape[1] - 1
    slot = ((key >> _KIND_BITS) ^ (key >> 23) ^ key << 5) & mask
    while table[1, slot] == node and table[0, slot] != key:
        slot = (slot + 1) & mask
    if table[1, slot] == node:
        return False
    table[0, slot], table[1, slot] = key, node
    return True


@inner
def _most_keys(node: int, columns: Columns, state: Int64, spans: Int64) -> int:
    offsets, ids = columns[2]
    most = columns[0][_OPS, node] + columns[0][_CONSTANTS, node]
    for index in range(offsets[node], offsets[node + 1]):
        value = state[_EXPRESSION, ids[index]]
        most += 1 if value == _NONE else spans[3, value] - spans[2, value]
    return int(most)


@inner
def _is_joining(node: int, columns: Columns, state: Int64) -> bool:
    """Note a concatenation all of whose parts are written: `Operations` in fusion_operations.py."""
    offsets, ids = columns[2]
    if not columns[0][_IS_JOINED, node]:
        return False
    for index in range(offsets[node], offsets[node + 1]):
        if state[_EXPRESSION, ids[index]] != _NONE or state[_GENERATED, ids[index]] != 1:
            return False
    for index in range(offsets[node], offsets[node + 1]):
        state[_JOINED, ids[index]] = node
    return True


@inner
def _compute(
    node: int, columns: Columns, state: Int64, spans: Int64, keys: Int64, start: int, table: Int64
) -> tuple[int, int]:
    """Put the keys of what a pointwise node computes from `start` on; returns their end, and how many are reads."""
    nodes, (offsets, ids) = columns[0], columns[2]
    end, reads = start, 0
    for index in range(offsets[node], offsets[node + 1]):
        storage = ids[index]
        value, view, joined = state[_EXPRESSION, storage], state[_SEEN_BY, storage], state[_JOINED, storage]
        if value == _NONE:
            key = _mixed(storage if joined == _NONE else -2 - joined, view) << _KIND_BITS | _READ
            if _is_new(key, node, table):
                keys[end] = key
                end, reads = end + 1, reads + 1
            continue
        for place in range(spans[2, value], spans[3, value]):
            key = keys[place]
            kind = key & 3
            if view != _NONE and kind != _CONSTANT:
                key = _mixed(key >> _KIND_BITS, view) << _KIND_BITS | kind
            if _is_new(key, node, table):
                keys[end] = key
                end, reads = end + 1, reads + (kind == _READ)
    if not _is_joining(node, columns, state):
        for number in range(nodes[_OPS, node]):
            keys[end] = _mixed(node, number) << _KIND_BITS | _OPERATION
            end += _is_new(keys[end], node, table)
    for number in range(nodes[_CONSTANTS, node]):
        keys[end] = (nodes[_OP, node] << 1 | number) << _KIND_BITS | _CONSTANT
        end += _is_new(keys[end], node, table)
    return end, reads


@inner
def _joined_count(node: int, items: Int64, state: Int64, table: Int64) -> int:
    """Return how many of these buffers are read as one with another."""
    count = 0
    for read in items:
        joined = state[_JOINED, read]
        if joined != _NONE and not _is_new(joined << _KIND_BITS | _JOIN, node, table):
            count += 1
    return count


@inner
def _leaves(storage: int, end: int, storages: Int64) -> bool:
    died = storages[_DIED, storage]
    is_returned = storages[_RETURNED, storage] and died == end - 1
    return bool(storages[_NEEDED, storage] or not 0 <= died < end or is_returned)


@inner
def _is_much(readers: int, much: tuple[int, int, bool], limits: Int64) -> bool:
    """Tell whether a value is too much to inline: by its reads, operations, and whether it reads several elements."""
    reads, ops, reads_several = much
    is_shared = readers > 1
    most_ops = limits[_INLINED_OPS] if is_shared or reads_several else limits[_MOST_OPS]
    return bool(reads > (limits[_SHARED_READS] if is_shared else limits[_SINGLE_READS]) or ops > most_ops)


@inner
def _gets_buffer(node: int, end: int, columns: Columns, limits: Int64, much: tuple[int, int, bool]) -> bool:
    storages, (offsets, ids) = columns[1], columns[3]
    readers = 0
    for index in range(offsets[node], offsets[node + 1]):
        storage = ids[index]
        if _leaves(storage, end, storages):
            return True
        readers = max(readers, storages[_READERS, storage])
    return bool(columns[0][_IS_WRITTEN, node] or _is_much(readers, much, limits))


@inner
def _is_awaited(
    node: int, end: int, columns: Columns, limits: Int64, much: tuple[int, int, bool], items: Int64
) -> bool:
    nodes, storages, (offsets, ids) = columns[0], columns[1], columns[3]
    if offsets[node + 1] - offsets[node] != 1:
        return False
    storage = ids[offsets[node]]
    died = storages[_DIED, storage]
    is_returned = storages[_RETURNED, storage] and died == end - 1
    if not storages[_IS_AWAITED, storage] or not 0 <= died < end or is_returned:
        return False
    for read in items:
        if storages[_LAST_CHANGE, read] >= node:
            return False
    return not (nodes[_IS_WRITTEN, node] or _is_much(storages[_READERS, storage], much, limits))


@inner
def _is_late(node: int, end: int, columns: Columns, limits: Int64, much: tuple[int, int, bool]) -> bool:
    nodes, storages, (offsets, ids) = columns[0], columns[1], columns[3]
    if offsets[node + 1] - offsets[node] != 1:
        return False
    storage = ids[offsets[node]]
    is_much = nodes[_IS_WRITTEN, node] or _is_much(storages[_READERS, storage] + 1, much, limits)
    return bool(node < storages[_RETURNED_VIEW, storage] < end and not storages[_NEEDED, storage] and not is_much)


@inner
def _lowered(first: int, end: int, columns: Columns, state: Int64, born: Int32, limits: Int64) -> Kernels:
    """Return the kernels of a graph in the order of its nodes; what is inlined is never born."""
    nodes, (offsets, ids), (new_offsets, new_ids) = columns[0], columns[2], columns[3]
    # An inlined value reads no more than `_SINGLE_READS` buffers.
    most_reads = offsets[end] - offsets[first]
    most_items = max(limits[_SINGLE_READS], limits[_SHARED_READS], 1) * most_reads + 1
    items, displaced, parts = (
        np.empty(most_items, np.int64),
        np.empty(most_items, np.int64),
        np.empty(most_items, np.int64),
    )
    found = items, displaced, parts
    # Its items, and the keys of what it computes, which only inlined values keep.
    spans = np.empty((4, end - first), np.int64)
    keys, keys_filled = np.empty(16 * (end - first), np.int64), 0
    table = _new_slots(1)[:2]
    table[1, :] = _NONE
    node_of = np.empty(end - first, np.int64)
    source, expression = np.empty_like(node_of), np.empty_like(node_of)
    kernels = expressions = filled = 0
    for node in range(first, end):
        makes = new_offsets[node + 1] - new_offsets[node]
        if nodes[_IS_VIEW, node] and makes == 0:
            viewed = ids[offsets[node]]
            if state[_LATE, viewed] != _NONE and columns[1][_RETURNED_VIEW, viewed] == node:
                node_of[kernels], source[kernels] = node, state[_LATE, viewed]
                expression[kernels] = state[_EXPRESSION, viewed]
                state[_LATE, viewed] = state[_EXPRESSION, viewed] = _NONE
                kernels += 1
            state[_MOVED, viewed] = _NONE
            if nodes[_MOVES, node]:
                state[_MOVED, viewed] = _ELSEWHERE
                if nodes[_TRANSPOSES, node]:
                    state[_MOVED, viewed] = _MOVED_TO_NOWHERE if state[_LAID_OUT, viewed] == 1 else _TRANSPOSED
            if nodes[_PARTS, node] > 1:
                state[_DIVIDED, viewed] = nodes[_PARTS, node]
            elif state[_DIVIDED, viewed] > 1:
                state[_DIVIDED, viewed] = state[_PARTS_READ, viewed] = _NONE
            if nodes[_BROADCASTS, node]:
                continue
            if nodes[_MOVES, node] or nodes[_PARTS, node] > 1:
                state[_SEEN_BY, viewed], state[_SEEN_NUMEL, viewed] = node, nodes[_MADE_NUMEL, node]
            elif state[_SEEN_NUMEL, viewed] != nodes[_MADE_NUMEL, node]:
                state[_SEEN_BY, viewed] = state[_SEEN_NUMEL, viewed] = _NONE
            continue
        for index in range(offsets[node], offsets[node + 1]):
            read = ids[index]
            if state[_AWAITED, read] != _NONE:
                node_of[kernels] = source[kernels] = state[_AWAITED, read]
                expression[kernels] = state[_AWAITED_AS, read]
                state[_AWAITED, read] = _NONE
                kernels += 1
        stop, reads = _join(node, columns, state, spans, found, filled)
        spans[0, expressions], spans[1, expressions] = filled, stop
        keys_end, reads_several = keys_filled, False
        if nodes[_KIND, node] == _POINTWISE:
            most = _most_keys(node, columns, state, spans)
            if keys_filled + most > len(keys):
                keys = np.append(keys, np.empty(max(len(keys), most), np.int64))
            if table.shape[1] < 2 * (most + stop - filled):
                table = _new_slots(most + stop - filled)[:2]
                table[1, :] = _NONE
            keys_end, elements = _compute(node, columns, state, spans, keys, keys_filled, table)
            reads_several = bool(nodes[_IN_IMAGES, node] or elements > 1)
            reads -= _joined_count(node, items[filled:stop], state, table)
        spans[2, expressions], spans[3, expressions] = keys_filled, keys_end
        much = reads, keys_end - keys_filled, reads_several
        if nodes[_KIND, node] == _POINTWISE and makes and not _gets_buffer(node, end, columns, limits, much):
            for index in range(new_offsets[node], new_offsets[node + 1]):
                state[_EXPRESSION, new_ids[index]] = expressions
                born[new_ids[index]] = _NEVER
            keys_filled = keys_end
        elif nodes[_KIND, node] == _POINTWISE and _is_late(node, end, columns, limits, much):
            storage = new_ids[new_offsets[node]]
            state[_EXPRESSION, storage], state[_LATE, storage] = expressions, node
            keys_filled = keys_end
        elif nodes[_KIND, node] == _POINTWISE and _is_awaited(node, end, columns, limits, much, items[filled:stop]):
            storage = new_ids[new_offsets[node]]
            state[_AWAITED, storage], state[_AWAITED_AS, storage] = node, expressions
        else:
            node_of[kernels], source[kernels], expression[kernels] = node, node, expressions
            kernels += 1
            if nodes[_KIND, node] in (_POINTWISE, _REDUCTION, _CONCAT):
                for index in range(new_offsets[node], new_offsets[node + 1]):
                    state[_GENERATED, new_ids[index]] = 1
        expressions += 1
        filled = stop
    for node in range(first, end):  # what a trace from a stranger awaits in vain
        if new_offsets[node + 1] - new_offsets[node] == 1:
            storage = new_ids[new_offsets[node]]
            if state[_AWAITED, storage] == node:
                node_of[kernels], source[kernels], expression[kernels] = node, node, state[_AWAITED_AS, storage]
                kernels += 1
    return (
        node_of[:kernels].copy(),
        source[:kernels].copy(),
        expression[:kernels].copy(),
        np.arange(kernels),
        spans[0, :expressions].copy(),
        spans[1, :expressions].copy(),
        items[:filled].copy(),
        (displaced[:filled] != 0) | parts[:filled] << 1,  # until `described` has told which parts are read
    )


@inner
def _in_turn(
    columns: Columns, state: Int64, kernels: Kernels, step_of: Int64, first: int, accesses: int
) -> tuple[Int64, Int64]:
    """Return pairs of steps in turn, so that each read of a changing buffer finds what it would."""
    changed_offsets, changed_ids = columns[4]
    node_of, source, expression, _, starts, stops, items, _ = kernels
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


@inner
def _turns(columns: Columns, state: Int64, kernels: Kernels, step_of: Int64, first: int) -> tuple[Int64, Int64]:
    """Return pairs of steps in turn, so that each read of a changing buffer finds what it would."""
    changed_offsets, changed_ids = columns[4]
    source, expression, starts, stops, items = kernels[1], kernels[2], kernels[4], kernels[5], kernels[6]
    accesses = 0
    for kernel in range(len(source)):
        for index in range(changed_offsets[source[kernel]], changed_offsets[source[kernel] + 1]):
            state[_IS_CHANGED, changed_ids[index]] = 1
            accesses += 1
    if accesses == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    for kernel in range(len(source)):
        for item in range(starts[expression[kernel]], stops[expression[kernel]]):
            accesses += state[_IS_CHANGED, items[item]] == 1
            state[_CHANGED_AT, items[item]] = state[_SINCE, items[item]] = _NONE
        for index in range(changed_offsets[source[kernel]], changed_offsets[source[kernel] + 1]):
            state[_CHANGED_AT, changed_ids[index]] = state[_SINCE, changed_ids[index]] = _NONE
    return _in_turn(columns, state, kernels, step_of, first, accesses)


@entry
def described(
    first: int, end: int, columns: Columns, state: Int64, touched: Int64, kernels: Kernels
) -> tuple[Int64, Table, Int64, Int64, Table, Table]:
    """Return the kernels as `fusion_rounds_kernel.fuse_rounds` takes them."""
    nodes, storages, (offsets, ids), (new_offsets, new_ids), (changed_offsets, _) = columns
    node_of, source, expression, _, starts, stops, items, displaced = kernels
    count = len(source)
    for place in range(len(touched)):
        state[_PLACE, touched[place]] = place
    step_of = np.full(end - first, _NONE, np.int64)
    for kernel in range(count):
        step_of[node_of[kernel] - first] = kernel
    turn_before, turn_after = _turns(columns, state, kernels, step_of, first)
    # What each touches: a storage that it both makes and reads counts once.
    most = len(turn_before)
    for kernel in range(count):
        most += stops[expression[kernel]] - starts[expression[kernel]]
        most += new_offsets[source[kernel] + 1] - new_offsets[source[kernel]]
    touch_offsets, touching, flags = np.zeros(count + 1, np.int64), np.empty(most, np.int64), np.zeros(most, np.int64)
    loops = np.zeros((4, count), np.int64)
    readers, maker = np.zeros(len(touched), np.int64), np.full(len(touched), _NONE, np.int64)
    at = np.full(len(touched), _NONE, np.int64)
    filled = parts_count = 0
    for kernel in range(count):
        node = source[kernel]
        is_steady = changed_offsets[node + 1] == changed_offsets[node]
        begin = filled
        for item in range(starts[expression[kernel]], stops[expression[kernel]]):
            place = state[_PLACE, items[item]]
            is_steady = is_steady and state[_IS_CHANGED, items[item]] != 1
            readers[place] += 1
            at[place], touching[filled] = filled, place
            flags[filled] = _READS | (_DISPLACED if displaced[item] & 1 else 0) | (displaced[item] >> 1) * _PARTS_FROM
            filled += 1
        for index in range(new_offsets[node], new_offsets[node + 1]):
            place = state[_PLACE, new_ids[index]]
            maker[place] = kernel
            if at[place] < begin:
                at[place], touching[filled] = filled, place
                filled += 1
            flags[at[place]] |= _WRITES
        touch_offsets[kernel + 1] = filled
        if is_steady and new_offsets[node + 1] > new_offsets[node]:
            loops[0, kernel] = nodes[_LOOP, node]
        loops[1, kernel], loops[2, kernel], loops[3, kernel] = (
            nodes[_OUTER, node],
            nodes[_INNER, node],
            nodes[_KIND, node],
        )
        if nodes[_KIND, node] == _CONCAT:
            parts_count += offsets[node + 1] - offsets[node]
    part_offsets, parts = np.zeros(count + 1, np.int64), np.empty(parts_count, np.int64)
    before_count = 0
    edges = np.empty(most, np.int64)
    for kernel in range(count):
        part_offsets[kernel + 1] = part_offsets[kernel]
        if nodes[_KIND, source[kernel]] == _CONCAT:
            for index in range(offsets[source[kernel]], offsets[source[kernel] + 1]):
                parts[part_offsets[kernel + 1]] = storages[_NUMEL, ids[index]]
                part_offsets[kernel + 1] += 1
        for entry_ in range(touch_offsets[kernel], touch_offsets[kernel + 1]):
            made = maker[touching[entry_]]
            if flags[entry_] & _READS and made != _NONE and made < kernel:
                edges[before_count] = kernel * count + made
                before_count += 1
    for pair in range(len(turn_before)):
        if turn_before[pair] < turn_after[pair]:
            edges[before_count] = turn_after[pair] * count + turn_before[pair]
            before_count += 1
    edges = np.unique(edges[:before_count])
    before_offsets = np.zeros(count + 1, np.int64)
    for edge in edges:
        before_offsets[edge // count + 1] += 1
    sizes = np.empty((3, len(touched)), np.int64)
    slots = _new_slots(len(touched) + 1)
    keys = 0
    for place in range(len(touched)):
        storage = touched[place]
        sizes[0, place], sizes[1, place], sizes[2, place] = storages[_BYTES, storage], storages[_NUMEL, storage], _NONE
        died = storages[_DIED, storage]
        is_returned = storages[_RETURNED, storage] and died == end - 1
        if maker[place] != _NONE and readers[place] == 1 and not is_returned and 0 <= died < end:
            slot = _slot(slots, storages[_BYTES, storage], storages[_DTYPE, storage])
            if slots[2, slot] == _NONE:
                slots[2, slot] = keys
                keys += 1
            sizes[2, place] = slots[2, slot]
    before = (np.cumsum(before_offsets), edges % max(count, 1))
    return loops, (touch_offsets, touching[:filled].copy()), flags[:filled].copy(), sizes, before, (part_offsets, parts)


@inner
def _forgotten(storage: int, kernel: int, group: int, kernels: Kernels, members: Table) -> bool:
    """Have nobody read a storage that later kernels of a group read; False if one does that is not behind its maker."""
    _, _, expression, _, starts, stops, items, displaced = kernels
    for index in range(members[0][group], members[0][group + 1]):
        other = members[1][index]
        if other <= kernel:
            for item in range(starts[expression[other]], stops[expression[other]]):
                if items[item] == storage:
                    return False
    for index in range(members[0][group], members[0][group + 1]):
        reader = expression[members[1][index]]
        kept = starts[reader]
        for item in range(starts[reader], stops[reader]):
            if items[item] != storage:
                items[kept], displaced[kept] = items[item], displaced[item]
                kept += 1
        stops[reader] = kept
    return True


@entry
def joined(
    first: int,
    end: int,
    columns: Columns,
    state: Int64,
    kernels: Kernels,
    group_of: Int64,
    members: Table,
    order: Int64,
    born: Int32,
    most_reads: int,
) -> tuple[Kernels, Int64]:
    """Give the kernels their times, and compute what lives within one right in what reads it.

    Returns the kernels left, and by time the node that leads the kernel that runs then.
    """
    nodes, storages, (new_offsets, new_ids) = columns[0], columns[1], columns[3]
    node_of, source, expression, number, starts, stops, items, displaced = kernels
    leaders = np.arange(first, end)
    leading = np.empty(len(order), np.int64)
    for place in range(len(order)):
        leading[place] = node_of[members[1][members[0][order[place]]]]
    times = np.sort(leading)
    moved = np.empty_like(node_of)
    for place in range(len(order)):
        leaders[times[place] - first] = leading[place]
        for index in range(members[0][order[place]], members[0][order[place] + 1]):
            moved[members[1][index]] = times[place]
    for kernel in range(len(source)):
        for item in range(starts[expression[kernel]], stops[expression[kernel]]):
            read_in = state[_READ_IN, items[item]]
            state[_READ_IN, items[item]] = group_of[kernel] if read_in in (_NONE, group_of[kernel]) else _SEVERAL
    is_left = np.ones(len(source), np.bool_)
    filled = len(items)
    reading = np.empty(len(source), np.int64)
    for kernel in range(len(source)):
        node = source[kernel]
        kind = nodes[_KIND, node]
        if kind == _REDUCTION and new_offsets[node + 1] - new_offsets[node] > 1:
            for index in range(new_offsets[node], new_offsets[node + 1]):
                written, group = new_ids[index], group_of[kernel]
                if state[_READ_IN, written] != group or _leaves(written, end, storages):
                    continue
                current = node_of, source, expression, number, starts, stops, items, displaced
                if _forgotten(written, kernel, group, current, members):
                    born[written] = _NEVER
                    state[_WITHIN, written] = moved[kernel]
        if kind not in (_POINTWISE, _REDUCTION, _WINDOW) or new_offsets[node + 1] - new_offsets[node] != 1:
            continue
        written = new_ids[new_offsets[node]]
        group = group_of[kernel]
        if state[_READ_IN, written] != group or _leaves(written, end, storages):
            continue
        found, fits = 0, True
        own = expression[kernel]
        for index in range(members[0][group], members[0][group + 1]):
            other = members[1][index]
            if not is_left[other]:
                continue
            theirs = expression[other]
            is_reader = False
            for item in range(starts[theirs], stops[theirs]):
                is_reader = is_reader or items[item] == written
            if not is_reader:
                continue
            common = 0
            for item in range(starts[own], stops[own]):
                for their_item in range(starts[theirs], stops[theirs]):
                    common += items[item] == items[their_item]
            size = stops[own] - starts[own] + stops[theirs] - starts[theirs] - common
            fits = fits and other > kernel and size <= most_reads
            reading[found] = other
            found += 1
        if found == 0 or not fits:
            continue
        for index in range(found):
            theirs = expression[reading[index]]
            most = filled + stops[own] - starts[own] + stops[theirs] - starts[theirs]
            if most > len(items):
                more = np.empty(most + len(items), np.int64)
                items, displaced = np.concatenate((items, more)), np.concatenate((displaced, more))
            begin, moves = filled, kind == _WINDOW
            for item in range(starts[theirs], stops[theirs]):
                if items[item] == written:
                    moves = moves or displaced[item]
                    continue
                items[filled], displaced[filled] = items[item], displaced[item]
                filled += 1
            middle = filled
            for item in range(starts[own], stops[own]):
                read = items[item]
                at = begin
                while at < middle and items[at] != read:
                    at += 1
                is_alike = (
                    storages[_BYTES, read] == storages[_BYTES, written]
                    and storages[_DTYPE, read] == storages[_DTYPE, written]
                )
                if at == middle:
                    at = filled
                    # The reader may have read the storage itself, if it is the one that is computed.
                    items[at], displaced[at] = read, 0 if is_alike else 1
                    filled += 1
                displaced[at] |= 1 if moves else displaced[item]
            starts[theirs], stops[theirs] = begin, filled
        is_left[kernel] = False
        born[written] = _NEVER
        state[_WITHIN, written] = moved[kernel]
    left = np.flatnonzero(is_left)
    return (moved[left], source[left], expression[left], number[left], starts, stops, items, displaced), leaders


@entry
def steps(first: int, end: int, columns: Columns, state: Int64, kernels: Kernels, touched: Int64) -> Steps:
    """Return the program of a graph as the orders take it. Kernels that run at one node are one step."""
    nodes, storages, (new_offsets, new_ids) = columns[0], columns[1], columns[3]
    node_of, source, expression, _, starts, stops, items, _ = kernels
    step_of = np.full(end - first, _NONE, np.int64)
    for node in node_of:
        step_of[node - first] = 0
    times = np.flatnonzero(step_of == 0)
    step_of[times] = np.arange(len(times))
    reads = 0
    for kernel in range(len(node_of)):
        node = source[kernel]
        reads += stops[expression[kernel]] - starts[expression[kernel]]
        for index in range(new_offsets[node], new_offsets[node + 1]):
            if state[_WITHIN, new_ids[index]] == _NONE:
                state[_MADE, new_ids[index]] = step_of[node_of[kernel] - first]
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
    before, after = _turns(columns, state, kernels, step_of, first)
    size = np.empty(len(touched), np.int64)
    maker, is_output = np.empty_like(size), np.empty_like(size)
    buffers = 0
    for storage in touched:
        is_read = state[_LAST, storage] != _NONE
        state[_LAST, storage] = _NONE
        made = state[_MADE, storage]
        dies = _dies(storage, first, end, storages)
        if made != _NONE and dies and not is_read:
            made_by = storages[_BORN, storage]
            if nodes[_ALLOCATES_ITSELF, made_by] and new_offsets[made_by + 1] - new_offsets[made_by] > 1:
                continue
        if made != _NONE or (is_read and dies and storages[_SAVED, storage]):
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


@entry
def lower(first: int, end: int, columns: Columns, state: Int64, born: Int32, limits: Int64) -> tuple[Int64, Kernels]:
    """Return what a graph touches, and its kernels; note in `born` what is never materialised."""
    touched = _begin(first, end, columns, state)
    return touched, _lowered(first, end, columns, state, born, limits)


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
    node_of, source, expression, _, starts, stops, items, _ = kernels
    born, died = lifetimes
    for kernel in range(len(node_of)):
        node, runs_at = source[kernel], node_of[kernel]
        for index in range(new_offsets[node], new_offsets[node + 1]):
            storage = new_ids[index]
            if state[_WITHIN, storage] != _NONE:
                continue
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
def _is_read_beside(storage: int, place: int, in_order: Int64, kernels: Kernels, ancestors: Bits) -> bool:
    """Tell whether another kernel that runs at the time reads a storage too, and need not run before."""
    node_of, expression, number, starts, stops, items = (
        kernels[0],
        kernels[2],
        kernels[3],
        kernels[4],
        kernels[5],
        kernels[6],
    )
    own = in_order[place]
    begin = place
    while begin > 0 and node_of[in_order[begin - 1]] == node_of[own]:
        begin -= 1
    while begin < len(in_order) and node_of[in_order[begin]] == node_of[own]:
        other = in_order[begin]
        begin += 1
        if other == own:
            continue
        bit = ancestors[number[own], number[other] >> 6] >> np.uint64(number[other] & 63) & np.uint64(1)
        for item in range(starts[expression[other]], stops[expression[other]]):
            if items[item] == storage and not bit:
                return True
    return False


@inner
def _take_over(
    first: int,
    columns: Columns,
    state: Int64,
    kernels: Kernels,
    place: int,
    in_order: Int64,
    ancestors: Bits,
    sums_both_ways: Int64,
) -> None:
    """Let a kernel write in place of what dies there: of the same bytes and type, lowest number first."""
    kernel = in_order[place]
    nodes, storages, (new_offsets, new_ids) = columns[0], columns[1], columns[3]
    node_of, source, expression, number, starts, stops, items, displaced = kernels
    node, runs_at = source[kernel], node_of[kernel]
    kind = nodes[_KIND, node]
    if (kind not in (_POINTWISE, _REDUCTION, _SCATTER)) or nodes[_IS_COPY, node] or sums_both_ways[number[kernel]]:
        return
    for index in range(new_offsets[node], new_offsets[node + 1]):
        written, chosen = new_ids[index], _NONE
        if state[_WITHIN, written] != _NONE:
            continue
        for item in range(starts[expression[kernel]], stops[expression[kernel]]):
            storage = items[item]
            if displaced[item] or state[_GONE, storage] == 1 or state[_LAST, storage] != runs_at:
                continue
            born = state[_WRITTEN, storage] if state[_WRITTEN, storage] != _NONE else storages[_BORN, storage]
            may_go = born < runs_at and (born >= first or storages[_DONATED, storage])
            made_by = storages[_BORN, storage]
            may_go = may_go and not (made_by >= 0 and nodes[_KIND, made_by] == _SCATTER)
            alike = (
                storages[_BYTES, storage] == storages[_BYTES, written]
                and storages[_DTYPE, storage] == storages[_DTYPE, written]
            )
            is_first = may_go and alike and (chosen == _NONE or storage < chosen)
            if is_first and not _is_read_beside(storage, place, in_order, kernels, ancestors):
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
                if state[_TAKEN, storage] != _NONE or state[_WITHIN, storage] != _NONE:
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
def placed(
    first: int,
    end: int,
    columns: Columns,
    state: Int64,
    touched: Int64,
    kernels: Kernels,
    ancestors: Bits,
    sums_both_ways: Int64,
    leaders: Int64,
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
            time[leaders[times[order[position]] - first]] = times[position]
        for kernel in range(len(node_of)):
            node_of[kernel] = moved_to[node_of[kernel] - first]
    in_order = np.argsort(node_of, kind="mergesort") if len(order) else np.arange(len(node_of))
    _last_reads(first, end, columns, state, kernels, touched, (born, died))
    for place in range(len(in_order)):
        _take_over(first, columns, state, kernels, place, in_order, ancestors, sums_both_ways)
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
    nodes = np.array(
        (
            graph.kind,
            graph.is_view,
            graph.moves,
            graph.transposes,
            graph.lays_out,
            graph.is_copy,
            graph.allocates_itself,
            graph.is_written,
            graph.loop,
            graph.outer,
            graph.inner,
            graph.op_count,
            graph.parts,
            graph.op,
            graph.constant_count,
            graph.made_numel,
            graph.lies_in_images,
            graph.is_joined,
            graph.broadcasts,
        ),
        np.int64,
    )
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
            graph.returned_view,
            graph.last_change,
            graph.is_awaited,
            graph.is_saved,
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
    state = np.full((26, columns[1].shape[1]), _NONE, np.int64)
    bounds = np.array(limits, np.int64)
    nothing = np.empty(0, np.int64)
    nobody = np.empty((0, 0), np.uint64)
    for first, end in segments:
        touched, kernels = lower(first, end, columns, state, lifetimes[0], bounds)
        times, order, live_bytes, leaders, ancestors = nothing, nothing, nothing, nothing, nobody
        count = len(kernels[0])
        sums_both_ways = np.zeros(count, np.int64)
        is_fused = 0 < count <= bounds[_MOST_REORDERED]
        loops = described(first, end, columns, state, touched, kernels) if is_fused else None
        kernels[7][:] &= 1
        if loops is not None:
            group_of, members, groups, ancestors, sums_both_ways = fuse_rounds(*loops, bounds[_OF_ROUNDS:])
            kernels, leaders = joined(
                first,
                end,
                columns,
                state,
                kernels,
                group_of,
                members,
                groups,
                lifetimes[0],
                limits[_MOST_FUSED_READS],
            )
            times, size, maker, is_output, reader, read, before, after = steps(
                first, end, columns, state, kernels, touched
            )
            order, live_bytes = best_order(len(times), size, maker, is_output, reader, read, before, after, most_looks)
            within = touched[state[_WITHIN, touched] != _NONE]
            if len(within):
                position = np.argsort(order)[np.searchsorted(times, state[_WITHIN, within])]
                np.add.at(live_bytes, position, columns[1][_BYTES, within])
        placed(
            first,
            end,
            columns,
            state,
            touched,
            kernels,
            ancestors,
            sums_both_ways,
            leaders,
            times,
            order,
            live_bytes,
            lifetimes,
        )


def warm_up() -> None:
    """Compile, or read from the cache: one node that makes a storage."""
    made, nothing = (np.array([0, 1]), np.array([0])), (np.array([0, 0]), np.zeros(0, np.int64))
    columns = np.zeros((19, 1), np.int64), np.zeros((13, 1), np.int64), nothing, made, nothing
    births, deaths, reuses, times = (np.zeros(1, np.int32) for _ in range(4))
    _fuse_segments(columns, [(0, 1)], (births, deaths, reuses, times), (1,) * 13, 1)


def _int64(csr: Csr) -> Table:
    return csr.offsets.astype(np.int64), csr.ids.astype(np.int64)
