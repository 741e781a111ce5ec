"""The caching allocator of `allocator_native` and the steps of `steps`, once more, as loops that numba compiles.

Nothing imports this module but `compiled.load`: it needs numba, and importing it compiles or reads the compiled code
from numba's cache. Where numba is not there the Python classes answer alone, with the same numbers. Plain options only:
segments of fixed size and no `max_split_size_mb`.

A block is a row of `blocks` that knows its neighbours in its segment. A free list holds keys, size above address, in
ascending order, and `rows` beside it the block of each. All sizes are in units of 512 bytes unless they end in
`_bytes`. Shapes: T tensors, E events, L leftovers.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from peakcast.featurizer.allocator import GRANULARITY_BYTES
from peakcast.featurizer.allocator_native import (
    CHUNK,
    LARGE_SEGMENT,
    NOT_HELD,
    OWN_SEGMENT,
    SEGMENT_STEP,
    SMALL,
    SMALL_SEGMENT,
    UNIT_BYTES,
)
from peakcast.featurizer.jit import entry, inner, leaf
from peakcast.featurizer.trace import Int64

_ADDRESS, _SIZE, _BEFORE, _AFTER, _IS_FREE = range(5)  # columns of `blocks` [capacity, 5]
_SMALL_LIST, _LARGE_LIST = range(2)  # rows of `keys` and `rows` [2, capacity]
_HOLE_ADDRESS, _HOLE_SIZE = range(2)  # columns of `holes` [capacity, 2]
(
    _SMALLS,  # lengths of the lists, in the order above
    _LARGES,
    _HOLES,
    _FRESH,  # rows from here on were never used
    _DROPPED,  # the last row that was given back: its `_AFTER` is the one before it
    _USED,
    _LOWEST,
    _ALLOCATED,
    _PEAK,
    _PEAK_TENSOR,
    _RESERVED,
    _PEAK_RESERVED,
    _ASKED,
    _DRIVER_CALLS,
    _LIMIT,
) = range(15)  # of `totals`

# A key is a size above an address, each of 31 bits: steps that take more than 1 TiB are left to Python.
_ADDRESS_BITS: Final = 31
_TOP: Final = 1 << _ADDRESS_BITS
_NONE: Final = -1
_NO_LIMIT: Final = 1 << 62
_DONE, _OUT_OF_LIMIT, _OUT_OF_ROWS, _OUT_OF_ADDRESSES = range(4)

State = tuple[Int64, Int64, Int64, Int64, Int64, Int64]  # blocks, keys, rows, holes, totals, held [T]
Tensors = tuple[Int64, NDArray[np.bool_]]  # [T]: sizes as the allocator rounds them, and which are done without
Program = tuple[Int64, Int64, Int64, Int64]  # start, events [E], survivors [2, S], left [L]


@inner
def _new_state(tensors: int, capacity: int) -> State:
    """Return the arrays of a state, to be filled by `_clear` or `_copy`."""
    return (
        np.empty((capacity, 5), np.int64),
        np.empty((2, capacity), np.int64),
        np.empty((2, capacity), np.int64),
        np.empty((capacity, 2), np.int64),
        np.empty(15, np.int64),
        np.empty(tensors, np.int64),
    )


@inner
def _clear(state: State, limit: int) -> None:
    """Start again from an empty card."""
    totals = state[4]
    totals[:] = 0
    totals[_DROPPED] = _NONE
    totals[_LOWEST] = _TOP
    totals[_PEAK_TENSOR] = NOT_HELD
    totals[_LIMIT] = limit
    state[5][:] = _NONE


@inner
def _copy(source: State, target: State, limit: int) -> None:
    """Go on from another state under a limit of one's own."""
    # New arrays would cost more than what is done with them: memory never touched before.
    totals = source[4]
    target[0][: totals[_FRESH]] = source[0][: totals[_FRESH]]
    for pool in (_SMALL_LIST, _LARGE_LIST):
        target[1][pool, : totals[pool]] = source[1][pool, : totals[pool]]
        target[2][pool, : totals[pool]] = source[2][pool, : totals[pool]]
    target[3][: totals[_HOLES]] = source[3][: totals[_HOLES]]
    target[4][:] = totals
    target[5][:] = source[5]
    target[4][_LIMIT] = limit


@leaf
def _position(keys: Int64, pool: int, start: int, end: int, key: int) -> int:
    """Return where a key stands in a part of a free list, or would."""
    low, length = start, end - start
    while length > 0:  # without a branch that the processor could guess wrong
        half = (length + 1) >> 1
        low += half if keys[pool, low + half - 1] < key else 0
        length -= half
    return low


@leaf
def _insert(keys: Int64, rows: Int64, totals: Int64, pool: int, key: int, row: int) -> None:
    length = totals[pool]
    position = _position(keys, pool, 0, length, key)
    for index in range(length, position, -1):
        keys[pool, index] = keys[pool, index - 1]
        rows[pool, index] = rows[pool, index - 1]
    keys[pool, position] = key
    rows[pool, position] = row
    totals[pool] = length + 1


@leaf
def _remove(keys: Int64, rows: Int64, totals: Int64, pool: int, position: int) -> None:
    length = totals[pool]
    for index in range(position, length - 1):
        keys[pool, index] = keys[pool, index + 1]
        rows[pool, index] = rows[pool, index + 1]
    totals[pool] = length - 1


@leaf
def _lower(keys: Int64, rows: Int64, pool: int, position: int, key: int, row: int) -> None:
    """Put a block with a smaller key in the place of one."""
    target = _position(keys, pool, 0, position, key)
    for index in range(position, target, -1):
        keys[pool, index] = keys[pool, index - 1]
        rows[pool, index] = rows[pool, index - 1]
    keys[pool, target] = key
    rows[pool, target] = row


@leaf
def _raise(keys: Int64, rows: Int64, totals: Int64, pool: int, position: int, key: int, row: int) -> None:
    """Put a block with a larger key in the place of one."""
    target = _position(keys, pool, position + 1, totals[pool], key) - 1
    for index in range(position, target):
        keys[pool, index] = keys[pool, index + 1]
        rows[pool, index] = rows[pool, index + 1]
    keys[pool, target] = key
    rows[pool, target] = row


@leaf
def _new_row(blocks: Int64, totals: Int64, address: int, size: int) -> int:
    row: int = totals[_DROPPED]
    if row == _NONE:
        row = totals[_FRESH]
        totals[_FRESH] = row + 1
    else:
        totals[_DROPPED] = blocks[row, _AFTER]
    totals[_USED] += 1
    blocks[row, _ADDRESS] = address
    blocks[row, _SIZE] = size
    blocks[row, _BEFORE] = _NONE
    blocks[row, _AFTER] = _NONE
    blocks[row, _IS_FREE] = 0
    return row


@leaf
def _drop_row(blocks: Int64, totals: Int64, row: int) -> None:
    blocks[row, _AFTER] = totals[_DROPPED]
    totals[_DROPPED] = row
    totals[_USED] -= 1


@leaf
def _add_hole(holes: Int64, totals: Int64, address: int, size: int) -> None:
    if size == 0:
        return
    index = totals[_HOLES]
    while index > 0 and (
        holes[index - 1, _HOLE_ADDRESS] > address
        or (holes[index - 1, _HOLE_ADDRESS] == address and holes[index - 1, _HOLE_SIZE] > size)
    ):
        holes[index, _HOLE_ADDRESS] = holes[index - 1, _HOLE_ADDRESS]
        holes[index, _HOLE_SIZE] = holes[index - 1, _HOLE_SIZE]
        index -= 1
    holes[index, _HOLE_ADDRESS] = address
    holes[index, _HOLE_SIZE] = size
    totals[_HOLES] += 1


@leaf
def _place(holes: Int64, totals: Int64, size: int) -> int:
    """Return the driver's address for a new segment, which is below zero where there is none left."""
    for index in range(totals[_HOLES]):
        if holes[index, _HOLE_SIZE] >= size:
            address: int = holes[index, _HOLE_ADDRESS]
            rest = holes[index, _HOLE_SIZE] - size
            for later in range(index, totals[_HOLES] - 1):
                holes[later, _HOLE_ADDRESS] = holes[later + 1, _HOLE_ADDRESS]
                holes[later, _HOLE_SIZE] = holes[later + 1, _HOLE_SIZE]
            totals[_HOLES] -= 1
            _add_hole(holes, totals, address + size, rest)
            return address
    chunk = -(-size // CHUNK) * CHUNK
    totals[_LOWEST] -= chunk
    _add_hole(holes, totals, totals[_LOWEST] + size, chunk - size)
    lowest: int = totals[_LOWEST]
    return lowest


@leaf
def _release_all(blocks: Int64, keys: Int64, rows: Int64, holes: Int64, totals: Int64) -> None:
    """Give every segment without a live block back to the driver."""
    for pool in (_LARGE_LIST, _SMALL_LIST):
        kept = 0
        for index in range(totals[pool]):
            row = rows[pool, index]
            if blocks[row, _BEFORE] == _NONE and blocks[row, _AFTER] == _NONE:
                _add_hole(holes, totals, blocks[row, _ADDRESS], blocks[row, _SIZE])
                totals[_RESERVED] -= blocks[row, _SIZE]
                totals[_DRIVER_CALLS] += 1
                _drop_row(blocks, totals, row)
            else:
                keys[pool, kept] = keys[pool, index]
                rows[pool, kept] = row
                kept += 1
        totals[pool] = kept


@leaf
def _new_segment(blocks: Int64, keys: Int64, rows: Int64, holes: Int64, totals: Int64, size: int) -> tuple[int, int]:
    """Take a segment from the driver; returns the status and its block, which is in no free list."""
    if size <= SMALL:
        wanted = SMALL_SEGMENT
    elif size < OWN_SEGMENT:
        wanted = LARGE_SEGMENT
    else:
        wanted = -(-size // SEGMENT_STEP) * SEGMENT_STEP
    if totals[_RESERVED] + wanted > totals[_LIMIT]:
        _release_all(blocks, keys, rows, holes, totals)
    if totals[_RESERVED] + wanted > totals[_LIMIT]:
        return _OUT_OF_LIMIT, _NONE
    address = _place(holes, totals, wanted)
    if address < 0:
        return _OUT_OF_ADDRESSES, _NONE
    totals[_RESERVED] += wanted
    totals[_ASKED] = max(totals[_ASKED], totals[_RESERVED])
    totals[_PEAK_RESERVED] = max(totals[_PEAK_RESERVED], totals[_RESERVED])
    totals[_DRIVER_CALLS] += 1
    return _DONE, _new_row(blocks, totals, address, wanted)


@leaf
def _allocate(
    blocks: Int64, keys: Int64, rows: Int64, holes: Int64, totals: Int64, held: Int64, tensor: int, size: int
) -> int:
    pool = _SMALL_LIST if size <= SMALL else _LARGE_LIST
    # A segment takes one row and splitting it another; it leaves a hole, and so may each that is given back for it.
    if totals[_USED] + 2 > blocks.shape[0] or totals[_HOLES] + totals[_LARGES] + totals[_SMALLS] + 2 > holes.shape[0]:
        return _OUT_OF_ROWS
    position = _position(keys, pool, 0, totals[pool], size << _ADDRESS_BITS)
    is_listed = position < totals[pool]
    if is_listed:
        row = rows[pool, position]
        blocks[row, _IS_FREE] = 0
    else:
        status, row = _new_segment(blocks, keys, rows, holes, totals, size)
        if status != _DONE:
            return status
    rest = blocks[row, _SIZE] - size
    if rest > 0 and (pool == _SMALL_LIST or rest > SMALL):
        after = blocks[row, _AFTER]
        address = blocks[row, _ADDRESS] + size
        rest_row = _new_row(blocks, totals, address, rest)
        blocks[row, _SIZE] = size
        blocks[rest_row, _BEFORE] = row
        blocks[rest_row, _AFTER] = after
        blocks[rest_row, _IS_FREE] = 1
        blocks[row, _AFTER] = rest_row
        if after != _NONE:
            blocks[after, _BEFORE] = rest_row
        key = rest << _ADDRESS_BITS | address
        if is_listed:
            _lower(keys, rows, pool, position, key, rest_row)
        else:
            _insert(keys, rows, totals, pool, key, rest_row)
    elif is_listed:
        _remove(keys, rows, totals, pool, position)
    held[tensor] = row
    totals[_ALLOCATED] += blocks[row, _SIZE]
    if totals[_ALLOCATED] > totals[_PEAK]:
        totals[_PEAK] = totals[_ALLOCATED]
        totals[_PEAK_TENSOR] = tensor
    return _DONE


@leaf
def _find(blocks: Int64, keys: Int64, totals: Int64, pool: int, row: int) -> int:
    """Return where a free block stands in its list."""
    key = blocks[row, _SIZE] << _ADDRESS_BITS | blocks[row, _ADDRESS]
    return _position(keys, pool, 0, totals[pool], key)


@leaf
def _free(blocks: Int64, keys: Int64, rows: Int64, totals: Int64, held: Int64, tensor: int) -> None:
    row = held[tensor]
    if row == _NONE:
        return
    held[tensor] = _NONE
    size = blocks[row, _SIZE]
    totals[_ALLOCATED] -= size
    pool = _SMALL_LIST if size <= SMALL else _LARGE_LIST
    before, after = blocks[row, _BEFORE], blocks[row, _AFTER]
    position = _NONE  # of the neighbour whose place the joined block takes
    if after != _NONE and blocks[after, _IS_FREE]:
        position = _find(blocks, keys, totals, pool, after)
        size += blocks[after, _SIZE]
        beyond = blocks[after, _AFTER]
        blocks[row, _AFTER] = beyond
        if beyond != _NONE:
            blocks[beyond, _BEFORE] = row
        _drop_row(blocks, totals, after)
    if before != _NONE and blocks[before, _IS_FREE]:
        if position != _NONE:
            _remove(keys, rows, totals, pool, position)
        position = _find(blocks, keys, totals, pool, before)
        size += blocks[before, _SIZE]
        beyond = blocks[row, _AFTER]
        blocks[before, _AFTER] = beyond
        if beyond != _NONE:
            blocks[beyond, _BEFORE] = before
        _drop_row(blocks, totals, row)
        row = before
    blocks[row, _SIZE] = size
    blocks[row, _IS_FREE] = 1
    key = size << _ADDRESS_BITS | blocks[row, _ADDRESS]
    if position != _NONE:
        _raise(keys, rows, totals, pool, position, key, row)
    else:
        _insert(keys, rows, totals, pool, key, row)


@leaf
def _run(state: State, tensors: Tensors, events: Int64) -> int:
    blocks, keys, rows, holes, totals, held = state
    units, spare = tensors
    for event in events:
        if event < 0:
            _free(blocks, keys, rows, totals, held, ~event)
        elif units[event]:
            status = _allocate(blocks, keys, rows, holes, totals, held, event, units[event])
            if status != _DONE and not (status == _OUT_OF_LIMIT and spare[event]):
                return status
    return _DONE


@leaf
def _begin_step(state: State, units: Int64, ended: Program, start: Int64) -> int:
    """Hand over what the step that ended leaves, and put what the next one finds in place."""
    blocks, keys, rows, holes, totals, held = state
    for index in range(ended[2].shape[1]):
        survivor, place = ended[2][0, index], ended[2][1, index]
        held[place] = held[survivor]
        held[survivor] = _NONE
    for tensor in ended[3]:
        _free(blocks, keys, rows, totals, held, tensor)
    for tensor in start:
        if held[tensor] == _NONE and units[tensor]:
            status = _allocate(blocks, keys, rows, holes, totals, held, tensor, units[tensor])
            if status != _DONE:
                return status
    return _DONE


@inner
def _run_steady(
    state: State, tensors: Tensors, first: Program, steady: Program, steps: int
) -> tuple[int, int, int, int]:
    """Go on with steady steps as `Steps` does: status, allocated and reserved peak, whose allocation set the former."""
    totals = state[4]
    allocated, reserved, tensor = 0, 0, NOT_HELD
    ended = first
    for _ in range(steps):
        status = _begin_step(state, tensors[0], ended, steady[0])
        if status == _DONE:
            totals[_PEAK] = totals[_ALLOCATED]
            totals[_PEAK_RESERVED] = totals[_RESERVED]
            totals[_PEAK_TENSOR] = NOT_HELD
            calls = totals[_DRIVER_CALLS]
            status = _run(state, tensors, steady[1])
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
def _run_first(state: State, tensors: Tensors, first: Program, limit: int) -> int:
    _clear(state, limit)
    status = _run(state, tensors, first[0])
    return _run(state, tensors, first[1]) if status == _DONE else status


@inner
def _required(
    tensors: Tensors,
    first: Program,
    steady: Program,
    steps: int,
    states: tuple[State, State],
    bounds_bytes: tuple[int, int, int],
) -> tuple[int, int]:
    """Bisect as `smallest_limit_bytes` does, between bounds in steps of the third: status and bytes.

    `states` are the one after the first step without a limit, and one to work in.
    """
    after_first, state = states
    low_bytes, high_bytes, granularity_bytes = bounds_bytes
    low, high = -(-low_bytes // granularity_bytes), -(-high_bytes // granularity_bytes)
    while low < high:
        middle = (low + high) // 2
        limit = middle * granularity_bytes // UNIT_BYTES
        if limit >= after_first[4][_ASKED]:
            _copy(after_first, state, limit)
            status = _DONE
        else:
            status = _run_first(state, tensors, first, limit)
        if status == _DONE:
            status = _run_steady(state, tensors, first, steady, steps)[0]
        if status == _OUT_OF_LIMIT:
            low = middle + 1
        elif status == _DONE:
            reached_bytes = state[4][_ASKED] * UNIT_BYTES
            high = max(low, min(middle, -(-reached_bytes // granularity_bytes)))
        else:
            return status, 0
    return _DONE, min(high * granularity_bytes, high_bytes)


@entry  # the one entry: what it calls is compiled into it
def _replay(
    tensors: Tensors, first: Program, steady: Program, steps: int, tolerance: float, capacity: int
) -> tuple[int, int, int, int, int, int, int, int]:
    count = len(tensors[0])
    after_first, state = _new_state(count, capacity), _new_state(count, capacity)
    status = _run_first(after_first, tensors, first, _NO_LIMIT)
    if status != _DONE:
        return status, 0, 0, 0, 0, 0, 0, 0
    _copy(after_first, state, _NO_LIMIT)
    status, allocated, reserved, tensor = _run_steady(state, tensors, first, steady, steps)
    if status != _DONE:
        return status, 0, 0, 0, 0, 0, 0, 0
    of_first = after_first[4]
    most = max(of_first[_PEAK_RESERVED], reserved) * UNIT_BYTES
    status, required = _required(
        tensors,
        first,
        steady,
        steps,
        (after_first, state),
        (
            max(of_first[_PEAK], allocated) * UNIT_BYTES,
            state[4][_ASKED] * UNIT_BYTES,
            max(int(most * tolerance) // GRANULARITY_BYTES, 1) * GRANULARITY_BYTES,
        ),
    )
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
    tensors: Tensors, first: Program, steady: Program, *, steps: int, tolerance: float
) -> tuple[tuple[int, int, int, int, int, int], int] | None:
    """Run a first step and up to `steps` steady ones, and search for the smallest limit under which they run.

    Returns the fields of `steps.Peaks` in their order, and the required bytes, found to within `tolerance` of the
    reserved ones; None where the steps take more addresses than a key has room for.
    """
    if tensors[0].max(initial=0) >= _TOP:
        return None
    # A free block has live ones on both sides, unless it is a whole segment: those are few, as a rule.
    alive = len(first[0]) + np.cumsum(np.where(first[1] >= 0, 1, -1)).max(initial=0)
    capacity = 2 * int(alive) + 256
    while True:
        status, *found, required = _replay(tensors, first, steady, steps, tolerance, capacity)
        if status == _OUT_OF_ADDRESSES:
            return None
        if status == _DONE:
            first_allocated, first_reserved, first_tensor, allocated, reserved, tensor = map(int, found)
            return (first_allocated, first_reserved, first_tensor, allocated, reserved, tensor), int(required)
        capacity *= 2
