"""The caching allocator of `allocator_native` and the steps of `steps`, once more, as loops that numba compiles.

Nothing imports this module but `compiled.load`: it needs numba, and importing it compiles or reads the compiled code
from numba's cache. Where numba is not there the Python classes answer alone, with the same numbers. Plain options only:
segments of fixed size and no `max_split_size_mb`.

A block is a row of `blocks` that knows its neighbours in its segment; the free lists hold rows in the order of size,
then address. All sizes are in units of 512 bytes unless they end in `_bytes`. Shapes: T tensors, E events, L leftovers.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from peakcast.featurizer.allocator import GRANULARITY_BYTES
from peakcast.featurizer.allocator_native import (
    CHUNK,
    LARGE_SEGMENT,
    NOT_HELD,
    OWN_SEGMENT,
    SEGMENT_STEP,
    SMALL,
    SMALL_SEGMENT,
    TOP,
    UNIT_BYTES,
)
from peakcast.featurizer.jit import entry, inner
from peakcast.featurizer.trace import Int64

# Rows of the arrays that make up a state.
_ADDRESS, _SIZE, _BEFORE, _AFTER, _IS_FREE = range(5)  # of `blocks` [5, capacity]
_SMALL_LIST, _LARGE_LIST, _SPARE_LIST = range(3)  # of `lists` [3, capacity]: numbers of blocks
_HOLE_ADDRESS, _HOLE_SIZE = range(2)  # of `holes` [2, capacity]
(
    _SMALLS,  # lengths of the lists, in the order above
    _LARGES,
    _SPARES,
    _HOLES,
    _LOWEST,
    _ALLOCATED,
    _PEAK,
    _PEAK_TENSOR,
    _RESERVED,
    _PEAK_RESERVED,
    _ASKED,
    _DRIVER_CALLS,
    _LIMIT,
) = range(13)  # of `totals`

_NONE: Final = -1
_NO_LIMIT: Final = 1 << 62
_DONE, _OUT_OF_LIMIT, _OUT_OF_ROWS = range(3)

State = tuple[Int64, Int64, Int64, Int64, Int64]  # blocks, lists, holes, totals, held [T]
Program = tuple[Int64, Int64, Int64, Int64]  # start, events [E], survivors [2, S], left [L]


@inner
def _new_state(tensors: int, capacity: int) -> State:
    """Return the arrays of a state, to be filled by `_clear` or `_copy`."""
    return (
        np.empty((5, capacity), np.int64),
        np.empty((3, capacity), np.int64),
        np.empty((2, capacity), np.int64),
        np.empty(13, np.int64),
        np.empty(tensors, np.int64),
    )


@inner
def _clear(state: State, limit: int) -> None:
    """Start again from an empty card."""
    _, lists, _, totals, held = state
    capacity = lists.shape[1]
    for index in range(capacity):
        lists[_SPARE_LIST, index] = capacity - 1 - index
    totals[:] = 0
    totals[_SPARES] = capacity
    totals[_LOWEST] = TOP
    totals[_PEAK_TENSOR] = NOT_HELD
    totals[_LIMIT] = limit
    held[:] = _NONE


@inner
def _copy(source: State, target: State, limit: int) -> None:
    """Go on from another state under a limit of one's own."""
    # New arrays would cost more than what is done with them: half a megabyte of memory never touched before.
    target[0][:, :] = source[0]
    target[1][:, :] = source[1]
    target[2][:, :] = source[2]
    target[3][:] = source[3]
    target[4][:] = source[4]
    target[3][_LIMIT] = limit


@inner
def _position(blocks: Int64, lists: Int64, totals: Int64, pool: int, size: int, address: int) -> int:
    """Return where a block of this size and address stands in a free list, or would."""
    low, high = 0, totals[pool]
    while low < high:
        middle = (low + high) >> 1
        row = lists[pool, middle]
        if blocks[_SIZE, row] < size or (blocks[_SIZE, row] == size and blocks[_ADDRESS, row] < address):
            low = middle + 1
        else:
            high = middle
    return low


@inner
def _list_block(blocks: Int64, lists: Int64, totals: Int64, pool: int, row: int) -> None:
    length = totals[pool]
    position = _position(blocks, lists, totals, pool, blocks[_SIZE, row], blocks[_ADDRESS, row])
    for index in range(length, position, -1):
        lists[pool, index] = lists[pool, index - 1]
    lists[pool, position] = row
    totals[pool] = length + 1
    blocks[_IS_FREE, row] = 1


@inner
def _unlist_at(blocks: Int64, lists: Int64, totals: Int64, pool: int, position: int) -> int:
    length = totals[pool]
    row: int = lists[pool, position]
    for index in range(position, length - 1):
        lists[pool, index] = lists[pool, index + 1]
    totals[pool] = length - 1
    blocks[_IS_FREE, row] = 0
    return row


@inner
def _unlist_block(blocks: Int64, lists: Int64, totals: Int64, pool: int, row: int) -> None:
    position = _position(blocks, lists, totals, pool, blocks[_SIZE, row], blocks[_ADDRESS, row])
    _unlist_at(blocks, lists, totals, pool, position)


@inner
def _new_row(blocks: Int64, lists: Int64, totals: Int64, address: int, size: int) -> int:
    totals[_SPARES] -= 1
    row: int = lists[_SPARE_LIST, totals[_SPARES]]
    blocks[_ADDRESS, row] = address
    blocks[_SIZE, row] = size
    blocks[_BEFORE, row] = _NONE
    blocks[_AFTER, row] = _NONE
    blocks[_IS_FREE, row] = 0
    return row


@inner
def _drop_row(lists: Int64, totals: Int64, row: int) -> None:
    lists[_SPARE_LIST, totals[_SPARES]] = row
    totals[_SPARES] += 1


@inner
def _add_hole(holes: Int64, totals: Int64, address: int, size: int) -> None:
    if size == 0:
        return
    index = totals[_HOLES]
    while index > 0 and (
        holes[_HOLE_ADDRESS, index - 1] > address
        or (holes[_HOLE_ADDRESS, index - 1] == address and holes[_HOLE_SIZE, index - 1] > size)
    ):
        holes[_HOLE_ADDRESS, index] = holes[_HOLE_ADDRESS, index - 1]
        holes[_HOLE_SIZE, index] = holes[_HOLE_SIZE, index - 1]
        index -= 1
    holes[_HOLE_ADDRESS, index] = address
    holes[_HOLE_SIZE, index] = size
    totals[_HOLES] += 1


@inner
def _place(holes: Int64, totals: Int64, size: int) -> int:
    """Return the driver's address for a new segment."""
    for index in range(totals[_HOLES]):
        if holes[_HOLE_SIZE, index] >= size:
            address: int = holes[_HOLE_ADDRESS, index]
            rest = holes[_HOLE_SIZE, index] - size
            for later in range(index, totals[_HOLES] - 1):
                holes[_HOLE_ADDRESS, later] = holes[_HOLE_ADDRESS, later + 1]
                holes[_HOLE_SIZE, later] = holes[_HOLE_SIZE, later + 1]
            totals[_HOLES] -= 1
            _add_hole(holes, totals, address + size, rest)
            return address
    chunk = -(-size // CHUNK) * CHUNK
    totals[_LOWEST] -= chunk
    _add_hole(holes, totals, totals[_LOWEST] + size, chunk - size)
    lowest: int = totals[_LOWEST]
    return lowest


@inner
def _release_all(blocks: Int64, lists: Int64, holes: Int64, totals: Int64) -> None:
    """Give every segment without a live block back to the driver."""
    for pool in (_LARGE_LIST, _SMALL_LIST):
        kept = 0
        for index in range(totals[pool]):
            row = lists[pool, index]
            if blocks[_BEFORE, row] == _NONE and blocks[_AFTER, row] == _NONE:
                _add_hole(holes, totals, blocks[_ADDRESS, row] // 2, blocks[_SIZE, row])
                totals[_RESERVED] -= blocks[_SIZE, row]
                totals[_DRIVER_CALLS] += 1
                blocks[_IS_FREE, row] = 0
                _drop_row(lists, totals, row)
            else:
                lists[pool, kept] = row
                kept += 1
        totals[pool] = kept


@inner
def _new_segment(state: State, size: int) -> int:
    """Take a segment from the driver; returns its block, which is in no free list, or _NONE where it does not fit."""
    blocks, lists, holes, totals, _ = state
    if size <= SMALL:
        wanted = SMALL_SEGMENT
    elif size < OWN_SEGMENT:
        wanted = LARGE_SEGMENT
    else:
        wanted = -(-size // SEGMENT_STEP) * SEGMENT_STEP
    if totals[_RESERVED] + wanted > totals[_LIMIT]:
        _release_all(blocks, lists, holes, totals)
    if totals[_RESERVED] + wanted > totals[_LIMIT]:
        return _NONE
    address = 2 * _place(holes, totals, wanted)
    totals[_RESERVED] += wanted
    totals[_ASKED] = max(totals[_ASKED], totals[_RESERVED])
    totals[_PEAK_RESERVED] = max(totals[_PEAK_RESERVED], totals[_RESERVED])
    totals[_DRIVER_CALLS] += 1
    return _new_row(blocks, lists, totals, address, wanted)


@inner
def _allocate(state: State, tensor: int, size: int) -> int:
    blocks, lists, holes, totals, held = state
    pool = _SMALL_LIST if size <= SMALL else _LARGE_LIST
    # A segment takes one row and splitting it another; it leaves a hole, and so may each that is given back for it.
    if totals[_SPARES] < 2 or totals[_HOLES] + totals[_LARGES] + totals[_SMALLS] + 2 > holes.shape[1]:
        return _OUT_OF_ROWS
    position = _position(blocks, lists, totals, pool, size, 0)
    if position < totals[pool]:
        row = _unlist_at(blocks, lists, totals, pool, position)
    else:
        row = _new_segment(state, size)
        if row == _NONE:
            return _OUT_OF_LIMIT
    rest = blocks[_SIZE, row] - size
    if rest > 0 and (pool == _SMALL_LIST or rest > SMALL):
        after = blocks[_AFTER, row]
        rest_row = _new_row(blocks, lists, totals, blocks[_ADDRESS, row] + size, rest)
        blocks[_SIZE, row] = size
        blocks[_BEFORE, rest_row] = row
        blocks[_AFTER, rest_row] = after
        blocks[_AFTER, row] = rest_row
        if after != _NONE:
            blocks[_BEFORE, after] = rest_row
        _list_block(blocks, lists, totals, pool, rest_row)
    held[tensor] = row
    totals[_ALLOCATED] += blocks[_SIZE, row]
    if totals[_ALLOCATED] > totals[_PEAK]:
        totals[_PEAK] = totals[_ALLOCATED]
        totals[_PEAK_TENSOR] = tensor
    return _DONE


@inner
def _free(state: State, tensor: int) -> None:
    blocks, lists, _, totals, held = state
    row = held[tensor]
    if row == _NONE:
        return
    held[tensor] = _NONE
    totals[_ALLOCATED] -= blocks[_SIZE, row]
    pool = _SMALL_LIST if blocks[_SIZE, row] <= SMALL else _LARGE_LIST
    after = blocks[_AFTER, row]
    if after != _NONE and blocks[_IS_FREE, after]:
        _unlist_block(blocks, lists, totals, pool, after)
        blocks[_SIZE, row] += blocks[_SIZE, after]
        blocks[_AFTER, row] = blocks[_AFTER, after]
        if blocks[_AFTER, after] != _NONE:
            blocks[_BEFORE, blocks[_AFTER, after]] = row
        _drop_row(lists, totals, after)
    before = blocks[_BEFORE, row]
    if before != _NONE and blocks[_IS_FREE, before]:
        _unlist_block(blocks, lists, totals, pool, before)
        blocks[_SIZE, before] += blocks[_SIZE, row]
        blocks[_AFTER, before] = blocks[_AFTER, row]
        if blocks[_AFTER, row] != _NONE:
            blocks[_BEFORE, blocks[_AFTER, row]] = before
        _drop_row(lists, totals, row)
        row = before
    _list_block(blocks, lists, totals, pool, row)


@inner
def _run(state: State, units: Int64, events: Int64) -> int:
    for event in events:
        if event < 0:
            _free(state, ~event)
        elif units[event]:
            status = _allocate(state, event, units[event])
            if status != _DONE:
                return status
    return _DONE


@inner
def _begin_step(state: State, units: Int64, ended: Program, start: Int64) -> int:
    """Hand over what the step that ended leaves, and put what the next one finds in place."""
    held = state[4]
    for index in range(ended[2].shape[1]):
        survivor, place = ended[2][0, index], ended[2][1, index]
        held[place] = held[survivor]
        held[survivor] = _NONE
    for tensor in ended[3]:
        _free(state, tensor)
    for tensor in start:
        if held[tensor] == _NONE and units[tensor]:
            status = _allocate(state, tensor, units[tensor])
            if status != _DONE:
                return status
    return _DONE


@inner
def _run_steady(state: State, units: Int64, first: Program, steady: Program, steps: int) -> tuple[int, int, int, int]:
    """Go on with steady steps as `Steps` does: status, allocated and reserved peak, whose allocation set the former."""
    totals = state[3]
    allocated, reserved, tensor = 0, 0, NOT_HELD
    ended = first
    for _ in range(steps):
        status = _begin_step(state, units, ended, steady[0])
        if status == _DONE:
            totals[_PEAK] = totals[_ALLOCATED]
            totals[_PEAK_RESERVED] = totals[_RESERVED]
            totals[_PEAK_TENSOR] = NOT_HELD
            calls = totals[_DRIVER_CALLS]
            status = _run(state, units, steady[1])
        if status != _DONE:
            return status, allocated, reserved, tensor
        reserved = max(reserved, totals[_PEAK_RESERVED])
        if totals[_PEAK] > allocated:
            allocated, tensor = totals[_PEAK], totals[_PEAK_TENSOR]
        ended = steady
        if totals[_DRIVER_CALLS] == calls and steady[2].shape[1] == 0 and len(steady[3]) == 0:
            break
    return _DONE, allocated, reserved, tensor


@inner
def _run_first(state: State, units: Int64, first: Program, limit: int) -> int:
    _clear(state, limit)
    status = _run(state, units, first[0])
    return _run(state, units, first[1]) if status == _DONE else status


@inner
def _required(
    units: Int64,
    first: Program,
    steady: Program,
    steps: int,
    states: tuple[State, State],
    bounds_bytes: tuple[int, int, int],
) -> int:
    """Bisect as `smallest_limit_bytes` does, between bounds in steps of the third; _NONE where the rows ran out.

    `states` are the one after the first step without a limit, and one to work in.
    """
    after_first, state = states
    low_bytes, high_bytes, granularity_bytes = bounds_bytes
    low, high = -(-low_bytes // granularity_bytes), -(-high_bytes // granularity_bytes)
    while low < high:
        middle = (low + high) // 2
        limit = middle * granularity_bytes // UNIT_BYTES
        if limit >= after_first[3][_ASKED]:
            _copy(after_first, state, limit)
            status = _DONE
        else:
            status = _run_first(state, units, first, limit)
        if status == _DONE:
            status = _run_steady(state, units, first, steady, steps)[0]
        if status == _OUT_OF_ROWS:
            return _NONE
        if status == _OUT_OF_LIMIT:
            low = middle + 1
        else:
            reached_bytes = state[3][_ASKED] * UNIT_BYTES
            high = max(low, min(middle, -(-reached_bytes // granularity_bytes)))
    return min(high * granularity_bytes, high_bytes)


@entry  # the one entry: what it calls is compiled into it
def _replay(
    units: Int64, first: Program, steady: Program, steps: int, tolerance: float, capacity: int
) -> tuple[int, int, int, int, int, int, int, int]:
    after_first, state = _new_state(len(units), capacity), _new_state(len(units), capacity)
    status = _run_first(after_first, units, first, _NO_LIMIT)
    if status != _DONE:
        return status, 0, 0, 0, 0, 0, 0, 0
    _copy(after_first, state, _NO_LIMIT)
    status, allocated, reserved, tensor = _run_steady(state, units, first, steady, steps)
    if status != _DONE:
        return status, 0, 0, 0, 0, 0, 0, 0
    of_first = after_first[3]
    most = max(of_first[_PEAK_RESERVED], reserved) * UNIT_BYTES
    required = _required(
        units,
        first,
        steady,
        steps,
        (after_first, state),
        (
            max(of_first[_PEAK], allocated) * UNIT_BYTES,
            state[3][_ASKED] * UNIT_BYTES,
            max(int(most * tolerance) // GRANULARITY_BYTES, 1) * GRANULARITY_BYTES,
        ),
    )
    status = _OUT_OF_ROWS if required == _NONE else _DONE
    return (
        status,
        of_first[_PEAK] * UNIT_BYTES,
        of_first[_PEAK_RESERVED] * UNIT_BYTES,
        of_first[_PEAK_TENSOR],
        allocated * UNIT_BYTES,
        reserved * UNIT_BYTES,
        tensor,
        required,
    )


def replay(
    units: Int64, first: Program, steady: Program, *, steps: int, tolerance: float
) -> tuple[tuple[int, int, int, int, int, int], int]:
    """Run a first step and up to `steps` steady ones, and search for the smallest limit under which they run.

    Returns the fields of `steps.Peaks` in their order, and the required bytes, found to within `tolerance` of the
    reserved ones. `units` [T] are the sizes as the allocator rounds them.
    """
    # A free block has live ones on both sides, unless it is a whole segment: those are few, as a rule.
    alive = len(first[0]) + np.cumsum(np.where(first[1] >= 0, 1, -1)).max(initial=0)
    capacity = 2 * int(alive) + 256
    while True:
        status, *found, required = _replay(units, first, steady, steps, tolerance, capacity)
        if status == _DONE:
            first_allocated, first_reserved, first_tensor, allocated, reserved, tensor = map(int, found)
            return (first_allocated, first_reserved, first_tensor, allocated, reserved, tensor), int(required)
        capacity *= 2
