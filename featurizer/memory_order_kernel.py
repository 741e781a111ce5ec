"""The orders of `memory_order` once more, as loops that numba compiles: the same order for the same program.

Nothing imports this module but `compiled.load`. Shapes: K kernels, B buffers, R reads. A ragged table is a pair of
offsets and ids, as in `trace.Csr`.
"""

from __future__ import annotations

import numpy as np

from peakcast.featurizer.jit import entry, inner
from peakcast.featurizer.trace import Int64

_NONE = -1
Table = tuple[Int64, Int64]
# Bytes [B], maker [B] (-1: given), whether output [B], readers by buffer; by kernel the buffers that it makes and
# reads, and the kernels that come before and after it.
Program = tuple[Int64, Int64, Int64, Table, Table, Table, Table, Table]


@inner
def _table(row: Int64, ids: Int64, rows: int) -> Table:
    """Return ids grouped by row, in the order they come in."""
    offsets = np.zeros(rows + 1, np.int64)
    for index in range(len(row)):
        offsets[row[index] + 1] += 1
    for index in range(rows):
        offsets[index + 1] += offsets[index]
    fill = offsets[:-1].copy()
    grouped = np.empty(len(row), np.int64)
    for index in range(len(row)):
        grouped[fill[row[index]]] = ids[index]
        fill[row[index]] += 1
    return offsets, grouped


@inner
def _program(
    count: int, size: Int64, maker: Int64, is_output: Int64, reader: Int64, read: Int64, before: Int64, after: Int64
) -> Program:
    """Link the kernels; `reader` and `read` [R] are distinct pairs, `before` and `after` pairs of kernels in turn."""
    buffers = len(size)
    readers = _table(read, reader, buffers)
    # By way of the readers: a kernel's buffers come in ascending order.
    owner = np.empty(len(read), np.int64)
    for buffer in range(buffers):
        owner[readers[0][buffer] : readers[0][buffer + 1]] = buffer
    reads = _table(readers[1], owner, count)
    made_at = np.flatnonzero(maker != _NONE)
    made = _table(maker[made_at], made_at, count)
    in_turn = _table(after, before, count)
    first = np.empty(len(before) + len(read), np.int64)
    second = np.empty(len(before) + len(read), np.int64)
    seen_by = np.full(count, _NONE, np.int64)
    edges = 0
    for kernel in range(count):
        seen_by[kernel] = kernel
        for index in range(in_turn[0][kernel], in_turn[0][kernel + 1]):
            other = in_turn[1][index]
            if seen_by[other] != kernel:
                seen_by[other] = kernel
                first[edges], second[edges] = other, kernel
                edges += 1
        for index in range(reads[0][kernel], reads[0][kernel + 1]):
            other = maker[reads[1][index]]
            if other != _NONE and seen_by[other] != kernel:
                seen_by[other] = kernel
                first[edges], second[edges] = other, kernel
                edges += 1
    predecessors = _table(second[:edges], first[:edges], count)
    successors = _table(first[:edges], second[:edges], count)
    return size, maker, is_output, readers, made, reads, predecessors, successors


@inner
def _live_bytes(program: Program, order: Int64) -> Int64:
    size, maker, is_output, readers = program[0], program[1], program[2], program[3]
    step = np.empty(len(order), np.int64)
    step[order] = np.arange(len(order))
    change = np.zeros(len(order) + 1, np.int64)
    for buffer in range(len(size)):
        start = 0 if maker[buffer] == _NONE else step[maker[buffer]]
        change[start] += size[buffer]
        if not is_output[buffer]:
            end = start if readers[0][buffer] == readers[0][buffer + 1] else 0
            for index in range(readers[0][buffer], readers[0][buffer + 1]):
                end = max(end, step[readers[1][index]])
            change[end + 1] -= size[buffer]
    return np.cumsum(change)


@inner
def _push(heap: Int64, length: int, net: int, kernel: int) -> int:
    """Push onto a heap [2, capacity] of pairs; returns its new length."""
    place = length
    while place > 0:
        parent = (place - 1) >> 1
        if heap[0, parent] < net or (heap[0, parent] == net and heap[1, parent] <= kernel):
            break
        heap[0, place], heap[1, place] = heap[0, parent], heap[1, parent]
        place = parent
    heap[0, place], heap[1, place] = net, kernel
    return length + 1


@inner
def _pop(heap: Int64, length: int) -> int:
    """Drop the first of a heap of pairs; returns its new length."""
    length -= 1
    net, kernel = heap[0, length], heap[1, length]
    place = 0
    while 2 * place + 1 < length:
        child = 2 * place + 1
        if child + 1 < length and (
            heap[0, child + 1] < heap[0, child]
            or (heap[0, child + 1] == heap[0, child] and heap[1, child + 1] < heap[1, child])
        ):
            child += 1
        if net < heap[0, child] or (net == heap[0, child] and kernel <= heap[1, child]):
            break
        heap[0, place], heap[1, place] = heap[0, child], heap[1, child]
        place = child
    heap[0, place], heap[1, place] = net, kernel
    return length


@inner
def _choose(
    heap: Int64, length: int, aside: Int64, allocates: Int64, frees: Int64, is_done: Int64, gap: int
) -> tuple[int, int]:
    """Take the next kernel off the heap: the kernel, _NONE where there is none, and the heap's length."""
    set_aside = 0
    chosen = _NONE
    while length:
        net, kernel = heap[0, 0], heap[1, 0]
        length = _pop(heap, length)
        if is_done[kernel] or net != allocates[kernel] - frees[kernel]:
            continue
        if allocates[kernel] <= gap:
            chosen = kernel
            break
        aside[set_aside] = kernel
        set_aside += 1
    if chosen == _NONE and set_aside:
        chosen = aside[0]
        for index in range(1, set_aside):  # those set aside come in the order of what they take in the end
            if allocates[aside[index]] < allocates[chosen]:
                chosen = aside[index]
    for index in range(set_aside):
        kernel = aside[index]
        if kernel != chosen:
            length = _push(heap, length, allocates[kernel] - frees[kernel], kernel)
    return chosen, length


@inner
def _least_peak_first(program: Program, allocates: Int64, most_looks: int) -> Int64:
    size, maker, is_output, readers, made, reads, predecessors, successors = program
    count = len(allocates)
    waiting = np.diff(predecessors[0])
    uses = np.diff(readers[0]) + is_output
    frees = np.zeros(count, np.int64)
    for kernel in range(count):
        for index in range(reads[0][kernel], reads[0][kernel + 1]):
            if uses[reads[1][index]] == 1:
                frees[kernel] += size[reads[1][index]]
        for index in range(made[0][kernel], made[0][kernel + 1]):
            if uses[made[1][index]] == 0:
                frees[kernel] += size[made[1][index]]
    live, peak = 0, 0
    for buffer in range(len(size)):
        if maker[buffer] == _NONE:
            live += size[buffer]
        if is_output[buffer]:
            peak += size[buffer]
    peak = max(live, peak)
    capacity = 2 * count + len(readers[1]) + 1
    heap, aside = np.empty((2, capacity), np.int64), np.empty(capacity, np.int64)
    length = 0
    for kernel in range(count):
        if not waiting[kernel]:
            length = _push(heap, length, allocates[kernel] - frees[kernel], kernel)
    is_done = np.zeros(count, np.int64)
    order = np.arange(count)
    done = 0
    looks = most_looks * count
    while length:
        looks -= length
        if looks <= 0:
            break
        kernel, length = _choose(heap, length, aside, allocates, frees, is_done, peak - live)
        if kernel == _NONE:
            break
        is_done[kernel] = 1
        order[done] = kernel
        done += 1
        live += allocates[kernel]
        peak = max(peak, live)
        live -= frees[kernel]
        for index in range(successors[0][kernel], successors[0][kernel + 1]):
            successor = successors[1][index]
            waiting[successor] -= 1
            if not waiting[successor]:
                length = _push(heap, length, allocates[successor] - frees[successor], successor)
        for index in range(reads[0][kernel], reads[0][kernel + 1]):
            buffer = reads[1][index]
            uses[buffer] -= 1
            if uses[buffer] == 1:
                for place in range(readers[0][buffer], readers[0][buffer + 1]):
                    reader = readers[1][place]
                    if not is_done[reader]:
                        frees[reader] += size[buffer]
                        if not waiting[reader]:
                            length = _push(heap, length, allocates[reader] - frees[reader], reader)
    return order if done == count else np.arange(count)


@inner
def _is_earlier(one: int, other: int, offsets: Int64, ran_at: Int64) -> bool:
    """Compare two kernels by when what came before them ran, earliest first, then by number."""
    one_length, other_length = offsets[one + 1] - offsets[one], offsets[other + 1] - offsets[other]
    for index in range(min(one_length, other_length)):
        first, second = ran_at[offsets[one] + index], ran_at[offsets[other] + index]
        if first != second:
            return bool(first < second)
    return bool(one_length < other_length or (one_length == other_length and one < other))


@inner
def _breadth_first(program: Program, count: int) -> Int64:
    predecessors, successors = program[6], program[7]
    offsets = predecessors[0]
    waiting = np.diff(offsets)
    # By kernel, as `predecessors`: when each ran, which comes out in ascending order.
    ran_at = np.empty(len(predecessors[1]), np.int64)
    filled = offsets[:-1].copy()
    heap = np.empty(count + 1, np.int64)
    length = 0
    for kernel in range(count):  # none before them: their numbers are in order, and so are a heap
        if not waiting[kernel]:
            heap[length] = kernel
            length += 1
    order = np.arange(count)
    done = 0
    while length:
        kernel = heap[0]
        length -= 1
        moved, place = heap[length], 0
        while 2 * place + 1 < length:
            child = 2 * place + 1
            if child + 1 < length and _is_earlier(heap[child + 1], heap[child], offsets, ran_at):
                child += 1
            if _is_earlier(moved, heap[child], offsets, ran_at):
                break
            heap[place] = heap[child]
            place = child
        heap[place] = moved
        for index in range(successors[0][kernel], successors[0][kernel + 1]):
            successor = successors[1][index]
            ran_at[filled[successor]] = done
            filled[successor] += 1
            waiting[successor] -= 1
            if not waiting[successor]:
                place = length
                while place > 0 and _is_earlier(successor, heap[(place - 1) >> 1], offsets, ran_at):
                    heap[place] = heap[(place - 1) >> 1]
                    place = (place - 1) >> 1
                heap[place] = successor
                length += 1
        order[done] = kernel
        done += 1
    return order if done == count else np.arange(count)


@inner
def _smallest_first(program: Program, allocates: Int64) -> Int64:
    size, reads, predecessors, successors = program[0], program[5], program[6], program[7]
    count = len(allocates)
    touched = allocates.copy()
    for kernel in range(count):
        for index in range(reads[0][kernel], reads[0][kernel + 1]):
            touched[kernel] += size[reads[1][index]]
    roots = np.argsort(touched, kind="mergesort")
    # What comes before each kernel, those that touch most first: gone through from the other end.
    offsets = predecessors[0]
    before, filled = np.empty(len(predecessors[1]), np.int64), offsets[:-1].copy()
    for kernel in roots[::-1]:
        for index in range(successors[0][kernel], successors[0][kernel + 1]):
            successor = successors[1][index]
            before[filled[successor]] = kernel
            filled[successor] += 1
    seen = np.zeros(count, np.int64)
    order = np.empty(count, np.int64)
    stack = np.empty(2 * count + len(before) + 1, np.int64)  # ~kernel: what comes before it is done
    done = 0
    for root in roots:
        stack[0] = root
        length = 1
        while length:
            length -= 1
            kernel = stack[length]
            if kernel < 0:
                order[done] = ~kernel
                done += 1
            elif not seen[kernel]:
                seen[kernel] = 1
                stack[length] = ~kernel
                length += 1
                for index in range(offsets[kernel], offsets[kernel + 1]):
                    if not seen[before[index]]:
                        stack[length] = before[index]
                        length += 1
    return order


@entry
def best_order(
    count: int,
    size: Int64,
    maker: Int64,
    is_output: Int64,
    reader: Int64,
    read: Int64,
    before: Int64,
    after: Int64,
    most_looks: int,
) -> tuple[Int64, Int64]:
    """Return the first of the orders with the lowest peak, and what lives in each of its steps.

    `maker` [B] is -1 for what the graph is given; `reader` and `read` [R] are distinct pairs of a kernel and a buffer;
    of each pair in `before` and `after` the first must have run.
    """
    program = _program(count, size, maker, is_output, reader, read, before, after)
    allocates = np.zeros(count, np.int64)
    for buffer in range(len(size)):
        if maker[buffer] != _NONE:
            allocates[maker[buffer]] += size[buffer]
    best = np.arange(count)
    best_live = _live_bytes(program, best)
    for order in (
        _least_peak_first(program, allocates, most_looks),
        _breadth_first(program, count),
        _smallest_first(program, allocates),
    ):
        live = _live_bytes(program, order)
        if live.max() < best_live.max():
            best, best_live = order, live
    return best, best_live
