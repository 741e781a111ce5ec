"""The rules of `fusion_rounds` once more, as loops that numba compiles: the same fused kernels for any graph.

Nothing imports this module but `fusion_kernel`. Shapes: K kernels, T storages that the graph touches, W words of bits
for K kernels.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from peakcast.featurizer.fusion_graph import MOST_PARTS_SEEN
from peakcast.featurizer.jit import entry, inner
from peakcast.featurizer.trace import Int64

Bits = NDArray[np.uint64]

# Values of `fusion_graph.Loop`.
_NO_LOOP, _FLAT, _ROWS, _COLUMNS, _PARTS = range(5)
_WINDOW: Final = 4  # of `OpKind`
# Rows of `of` [11, K].
(
    _GROUP,
    _LAST,  # the last kernel of its group
    _SIZE,  # how many kernels its group has
    _LOOP,
    _OUTER,
    _INNER,
    _FROM,  # in the table of what groups touch
    _TO,
    _IS_WINDOW,
    _SUMS,  # whether the group sums rows and columns in one
    _SOURCE,  # the kernel whose parts count, for a concatenation
) = range(11)
# Rows of `about` [6, T].
_BYTES, _NUMEL, _KEY, _MARK, _FLAGS, _HELD = range(6)
# What a group does with a storage.
_READS: Final = 1
_WRITES: Final = 2
_DISPLACED: Final = 4
_PARTS_FROM: Final = 8  # from this bit on: which parts of it
_ALL: Final = _PARTS_FROM << MOST_PARTS_SEEN  # all of it
# Places of `limits`.
_DISTANCE, _MOST_FUSED, _MOST_TRIED, _LEAST_SHARED, _MOST_HELD, _ROUNDS, _MOST_PAIRS = range(7)

Table = tuple[Int64, Int64]  # offsets and ids


@inner
def _has(bits: Bits, row: int, number: int) -> bool:
    return bool(bits[row, number >> 6] >> np.uint64(number & 63) & np.uint64(1))


@inner
def _put(bits: Bits, row: int, number: int) -> None:
    bits[row, number >> 6] |= np.uint64(1) << np.uint64(number & 63)


@inner
def _meet(one: Bits, row: int, other: Bits, other_row: int) -> bool:
    for word in range(one.shape[1]):
        if one[row, word] & other[other_row, word]:
            return True
    return False


@inner
def _find(of: Int64, number: int) -> int:
    while of[_GROUP, number] != number:
        number = of[_GROUP, number]
    return number


@inner
def _distance(of: Int64, one: int, other: int) -> int:
    distance: int = max(abs(one - of[_LAST, other]), abs(other - of[_LAST, one]))
    return distance


@inner
def _loops_fit(one: int, other: int, of: Int64, parts: Table) -> bool:
    """Tell whether the loops of two groups fit together; of rows and columns `_sums_as_well` tells the rest."""
    if of[_LOOP, one] > of[_LOOP, other]:
        one, other = other, one
    loop, other_loop = of[_LOOP, one], of[_LOOP, other]
    outer, inner_, other_outer, other_inner = of[_OUTER, one], of[_INNER, one], of[_OUTER, other], of[_INNER, other]
    if loop == other_loop:
        return bool(loop not in (_NO_LOOP, _PARTS) and outer == other_outer and inner_ == other_inner)
    if loop == _FLAT and other_loop == _ROWS:
        return bool(outer in (other_outer * other_inner, other_outer))
    if loop == _FLAT and other_loop == _PARTS:
        source = of[_SOURCE, other]
        for index in range(parts[0][source], parts[0][source + 1]):
            if parts[1][index] == outer:
                return True
        return False
    return bool(loop == _ROWS and other_loop == _COLUMNS and outer == other_inner and inner_ == other_outer)


@inner
def _mark(group: int, of: Int64, about: Int64, touched: Int64, flags: Int64, stamp: int) -> None:
    for entry_ in range(of[_FROM, group], of[_TO, group]):
        about[_MARK, touched[entry_]] = stamp
        about[_FLAGS, touched[entry_]] = flags[entry_]


@inner
def _sums_as_well(
    rows: int, columns: int, of: Int64, about: Int64, touched: Int64, flags: Int64, ancestors: Bits, stamp: int
) -> bool:
    if _has(ancestors, rows, columns) or _has(ancestors, columns, rows) or of[_SUMS, rows]:
        return False
    elements = of[_OUTER, rows] * of[_INNER, rows]
    _mark(rows, of, about, touched, flags, stamp)
    is_whole = False
    for entry_ in range(of[_FROM, columns], of[_TO, columns]):
        storage = touched[entry_]
        if not flags[entry_] & _READS or about[_MARK, storage] != stamp:
            continue
        if about[_FLAGS, storage] & _DISPLACED:
            return False
        if about[_FLAGS, storage] & _READS and about[_NUMEL, storage] == elements:
            is_whole = True
    return is_whole


@inner
def _read_apart(flags: int, other_flags: int) -> bool:
    """Tell whether two groups read different parts of a buffer, and neither writes it."""
    either, both = flags | other_flags, flags & other_flags
    return not either & (_WRITES | _ALL) and both < _PARTS_FROM


@inner
def _score(
    one: int,
    other: int,
    of: Int64,
    about: Int64,
    touched: Int64,
    flags: Int64,
    parts: Table,
    ancestors: Bits,
    descendants: Bits,
    needed: Bits,
    columns: Bits,
    limits: Int64,
    stamp: int,
) -> int:
    """Return the bytes that fusing two groups saves; -1 where they are not fused. Uses three stamps from `stamp` on."""
    if not _loops_fit(one, other, of, parts) or of[_SIZE, one] + of[_SIZE, other] > limits[_MOST_FUSED]:
        return -1
    loop, other_loop = of[_LOOP, one], of[_LOOP, other]
    is_mixed = (loop == _ROWS and other_loop == _COLUMNS) or (loop == _COLUMNS and other_loop == _ROWS)
    if is_mixed:
        rows, summed = (one, other) if loop == _ROWS else (other, one)
        if not _sums_as_well(rows, summed, of, about, touched, flags, ancestors, stamp):
            return -1
    if _meet(descendants, one, ancestors, other) or _meet(descendants, other, ancestors, one):
        return -1
    producer, consumer = min(one, other), max(one, other)
    is_made = _has(ancestors, consumer, producer)
    if _has(ancestors, producer, consumer):
        producer, consumer, is_made = consumer, producer, True
    if of[_SUMS, consumer]:
        return -1
    if is_mixed:
        size: int = of[_OUTER, one] * of[_INNER, one]
        return size
    stamp += 1
    _mark(producer, of, about, touched, flags, stamp)
    for entry_ in range(of[_FROM, producer], of[_TO, producer]):
        if flags[entry_] & _READS and about[_KEY, touched[entry_]] >= 0:
            about[_HELD, about[_KEY, touched[entry_]]] = stamp
    shared_bytes = shared_elements = held_bytes = 0
    is_in_place = True
    for entry_ in range(of[_FROM, consumer], of[_TO, consumer]):
        storage, key = touched[entry_], about[_KEY, touched[entry_]]
        if flags[entry_] & _READS and key >= 0 and about[_HELD, key] == stamp:
            about[_HELD, key] = stamp + 1
            held_bytes += about[_BYTES, storage]
        if about[_MARK, storage] == stamp and not _read_apart(about[_FLAGS, storage], flags[entry_]):
            shared_bytes += about[_BYTES, storage]
            shared_elements += about[_NUMEL, storage]
            if about[_FLAGS, storage] & _WRITES and flags[entry_] & _READS and flags[entry_] & _DISPLACED:
                is_in_place = False
    if shared_bytes < limits[_LEAST_SHARED] or held_bytes > limits[_MOST_HELD] * shared_bytes:
        return -1
    if of[_SUMS, producer]:
        if _meet(needed, consumer, columns, producer):
            return -1
        is_reduction = of[_LOOP, consumer] in (_ROWS, _COLUMNS)
        if is_reduction and shared_elements < of[_OUTER, producer] * of[_INNER, producer]:
            return -1
    if is_made:
        can_read = is_in_place or _is_inverted(consumer, of, about, touched, flags)
        can_read = can_read and not of[_IS_WINDOW, consumer] and _PARTS not in (loop, other_loop)
        return shared_bytes if can_read else -1
    return shared_bytes if _distance(of, one, other) <= limits[_DISTANCE] else -1


@inner
def _is_inverted(group: int, of: Int64, about: Int64, touched: Int64, flags: Int64) -> bool:
    """Tell whether a kernel can write where it reads instead: it moves the elements of one buffer, no more."""
    reads = writes = 0
    is_whole = True
    for entry_ in range(of[_FROM, group], of[_TO, group]):
        reads += (flags[entry_] & _READS) != 0
        writes += (flags[entry_] & _WRITES) != 0
        if flags[entry_] & _READS:
            is_whole = about[_NUMEL, touched[entry_]] == of[_OUTER, group]
    return reads == 1 and writes == 1 and is_whole and of[_SIZE, group] == 1 and of[_LOOP, group] == _FLAT


@inner
def _candidates(of: Int64, touched: Int64, storages: int, most_tried: int) -> tuple[Int64, int]:
    """Return the pairs of groups that touch one storage, as first * K + second, and how many were looked at."""
    count = of.shape[1]
    offsets = np.zeros(storages + 1, np.int64)
    for number in range(count):
        if of[_GROUP, number] == number and of[_LOOP, number] != _NO_LOOP:
            for entry_ in range(of[_FROM, number], of[_TO, number]):
                offsets[touched[entry_] + 1] += 1
    looked = 0
    for storage in range(storages):
        for place in range(offsets[storage + 1]):
            looked += min(most_tried, place)
        offsets[storage + 1] += offsets[storage]
    groups, filled = np.empty(offsets[storages], np.int64), offsets[:storages].copy()
    pairs = np.empty(looked, np.int64)
    made = 0
    for number in range(count):
        if of[_GROUP, number] == number and of[_LOOP, number] != _NO_LOOP:
            for entry_ in range(of[_FROM, number], of[_TO, number]):
                storage = touched[entry_]
                for place in range(max(offsets[storage], filled[storage] - most_tried), filled[storage]):
                    pairs[made] = groups[place] * count + number
                    made += 1
                groups[filled[storage]] = number
                filled[storage] += 1
    pairs.sort()
    return pairs, looked


@inner
def _needed(group: int, of: Int64, members: Table, before: Table, mark: Int64) -> Int64:
    """Return the groups whose results a group needs, in ascending order."""
    most = 0
    for place in range(members[0][group], members[0][group + 1]):
        number = members[1][place]
        most += before[0][number + 1] - before[0][number]
    needed = np.empty(most, np.int64)
    count = 0
    for place in range(members[0][group], members[0][group + 1]):
        number = members[1][place]
        for index in range(before[0][number], before[0][number + 1]):
            other = _find(of, before[1][index])
            if other != group and mark[other] != group:
                mark[other] = group
                needed[count] = other
                count += 1
    return np.sort(needed[:count])


@inner
def _ordered(of: Int64, members: Table, before: Table) -> Int64:
    """Return the groups by their first kernels, each after what it needs."""
    count = of.shape[1]
    order, is_seen, mark = np.empty(count, np.int64), np.zeros(count, np.bool_), np.full(count, -1, np.int64)
    stack, place = np.empty(count + 1, np.int64), np.empty(count + 1, np.int64)
    stop = np.empty(count + 1, np.int64)
    waiting = np.empty(len(before[1]) + 1, np.int64)
    filled = made = 0
    for start in range(count):
        if of[_GROUP, start] != start or is_seen[start]:
            continue
        is_seen[start] = True
        depth, following = 0, start
        while depth >= 0:
            if following >= 0:
                needed = _needed(following, of, members, before, mark)
                waiting[filled : filled + len(needed)] = needed
                stack[depth], place[depth], stop[depth] = following, filled, filled + len(needed)
                filled += len(needed)
            following = -1
            while place[depth] < stop[depth] and following < 0:
                if not is_seen[waiting[place[depth]]]:
                    following = waiting[place[depth]]
                    is_seen[following] = True
                place[depth] += 1
            if following >= 0:
                depth += 1
                continue
            order[made] = stack[depth]
            made += 1
            depth -= 1
        filled = 0
    return order[:made]


@inner
def _reach(before: Table, count: int) -> tuple[Bits, Bits]:
    words = (count + 63) >> 6
    ancestors, descendants = np.zeros((count, words), np.uint64), np.zeros((count, words), np.uint64)
    for number in range(count):
        for index in range(before[0][number], before[0][number + 1]):
            ancestors[number] |= ancestors[before[1][index]]
            _put(ancestors, number, before[1][index])
    for number in range(count - 1, -1, -1):
        for index in range(before[0][number], before[0][number + 1]):
            descendants[before[1][index]] |= descendants[number]
            _put(descendants, before[1][index], number)
    return ancestors, descendants


@inner
def _spread(named: Bits, of: Int64, target: Bits, added: Bits) -> None:
    """Add bits [W] to the rows of the groups of the kernels that other bits [W] name."""
    for word in range(len(named)):
        left, number = named[word], word << 6
        while left:
            if left & np.uint64(1):
                target[_find(of, number)] |= added
            left >>= np.uint64(1)
            number += 1


@inner
def _members(of: Int64) -> tuple[Int64, Table]:
    """Return the group of each kernel, and the kernels of each group."""
    count = of.shape[1]
    offsets = np.zeros(count + 1, np.int64)
    group_of = np.empty(count, np.int64)
    for number in range(count):
        group_of[number] = _find(of, number)
        offsets[group_of[number] + 1] += 1
    offsets = np.cumsum(offsets)
    fill, ids = offsets[:count].copy(), np.empty(count, np.int64)
    for number in range(count):
        ids[fill[group_of[number]]] = number
        fill[group_of[number]] += 1
    return group_of, (offsets, ids)


@entry
def fuse_rounds(
    loops: Int64, touching: Table, flags: Int64, sizes: Int64, before: Table, parts: Table, limits: Int64
) -> tuple[Int64, Table, Int64, Bits, Int64]:
    """Return the group of each kernel [K], the members of each, the groups in order, and the ancestors of each kernel.

    Last, whether the group of each kernel sums rows and columns in one.

    `loops` [4, K] are loop, outer, inner and kind; `touching` and `flags` what each kernel touches and how; `sizes`
    [3, T] bytes, elements and the number of a size and type, -1 where the storage is no candidate for reuse in turn;
    `before` the kernels that each needs; `parts` the elements of the parts of a concatenation.
    """
    count, storages = loops.shape[1], sizes.shape[1]
    of = np.zeros((11, count), np.int64)
    about = np.full((6, storages), -1, np.int64)
    about[:3] = sizes
    touched = touching[1]
    ancestors, descendants = _reach(before, count)
    own_ancestors = ancestors.copy()
    needed = ancestors.copy()  # by group, as they were before anything was fused: what was fused with one is none
    words = ancestors.shape[1]
    mask, columns = np.zeros((count, words), np.uint64), np.zeros((count, words), np.uint64)
    for number in range(count):
        of[_GROUP, number] = of[_LAST, number] = of[_SOURCE, number] = number
        of[_SIZE, number] = 1
        of[_LOOP, number], of[_OUTER, number], of[_INNER, number] = loops[0, number], loops[1, number], loops[2, number]
        of[_FROM, number], of[_TO, number] = touching[0][number], touching[0][number + 1]
        of[_IS_WINDOW, number] = loops[3, number] == _WINDOW
        _put(mask, number, number)
    stamp, filled = 0, len(touched)
    looks = limits[_MOST_PAIRS] * count
    for _ in range(limits[_ROUNDS]):
        pairs, looked = _candidates(of, touched, storages, limits[_MOST_TRIED])
        looks -= looked
        if looks < 0:
            break
        kept = 0
        fitting, scores = np.empty(looked, np.int64), np.empty(looked, np.int64)
        far, unlike = np.empty(looked, np.int64), np.empty(looked, np.int64)
        for index in range(looked):
            if index and pairs[index] == pairs[index - 1]:
                continue
            one, other = pairs[index] // count, pairs[index] % count
            stamp += 3
            reach = ancestors, descendants, needed, columns
            score = _score(one, other, of, about, touched, flags, parts, *reach, limits, stamp)
            if score >= 0:
                scores[kept], far[kept] = -score, _distance(of, one, other)
                unlike[kept] = (of[_LOOP, one] in (_ROWS, _COLUMNS)) != (of[_LOOP, other] in (_ROWS, _COLUMNS))
                fitting[kept] = pairs[index]
                kept += 1
        ranked = np.argsort(far[:kept], kind="mergesort")
        ranked = ranked[np.argsort(scores[:kept][ranked], kind="mergesort")]
        ranked = ranked[np.argsort(unlike[:kept][ranked], kind="mergesort")]
        is_fused = False
        for index in ranked:
            one, other = _find(of, fitting[index] // count), _find(of, fitting[index] % count)
            if one == other:
                continue
            stamp += 3
            reach = ancestors, descendants, needed, columns
            score = _score(one, other, of, about, touched, flags, parts, *reach, limits, stamp)
            if score < 0:
                continue
            is_fused = True
            into, gone = min(one, other), max(one, other)
            loop, other_loop = of[_LOOP, into], of[_LOOP, gone]
            if (loop == _ROWS and other_loop == _COLUMNS) or (loop == _COLUMNS and other_loop == _ROWS):
                columns[into] = mask[into] if loop == _COLUMNS else mask[gone]
                of[_SUMS, into] = 1
            else:
                columns[into] |= columns[gone]
                of[_SUMS, into] |= of[_SUMS, gone]
            mask[into] |= mask[gone]
            # Only for those before, or behind, one of the two is anything new.
            new_before = (ancestors[into] ^ ancestors[gone]) & ~mask[into]
            new_behind = (descendants[into] ^ descendants[gone]) & ~mask[into]
            ancestors[into] = (ancestors[into] | ancestors[gone]) & ~mask[into]
            descendants[into] = (descendants[into] | descendants[gone]) & ~mask[into]
            needed[into] |= needed[gone]
            _spread(new_before, of, descendants, mask[into] | descendants[into])
            _spread(new_behind, of, ancestors, mask[into] | ancestors[into])
            if other_loop == _PARTS or (loop == _FLAT and other_loop in (_ROWS, _COLUMNS)) or loop == _COLUMNS:
                of[_LOOP, into], of[_OUTER, into], of[_INNER, into] = (
                    other_loop,
                    of[_OUTER, gone],
                    of[_INNER, gone],
                )
                of[_SOURCE, into] = of[_SOURCE, gone]
            of[_GROUP, gone] = into
            of[_SIZE, into] += of[_SIZE, gone]
            of[_LAST, into] = max(of[_LAST, into], of[_LAST, gone])
            of[_IS_WINDOW, into] |= of[_IS_WINDOW, gone]
            most = filled + of[_TO, into] - of[_FROM, into] + of[_TO, gone] - of[_FROM, gone]
            if most > len(touched):
                more = np.empty(most + len(touched), np.int64)
                touched, flags = np.concatenate((touched, more)), np.concatenate((flags, more))
            begin = filled
            stamp += 3
            for group in (into, gone):
                for entry_ in range(of[_FROM, group], of[_TO, group]):
                    storage = touched[entry_]
                    if about[_MARK, storage] != stamp:
                        about[_MARK, storage], about[_FLAGS, storage] = stamp, filled
                        touched[filled], flags[filled] = storage, 0
                        filled += 1
                    flags[about[_FLAGS, storage]] |= flags[entry_]
            of[_FROM, into], of[_TO, into] = begin, filled
        if not is_fused:
            break
    group_of, members = _members(of)
    sums_both_ways: Int64 = of[_SUMS][group_of]
    return group_of, members, _ordered(of, members, before), own_ancestors, sums_both_ways
