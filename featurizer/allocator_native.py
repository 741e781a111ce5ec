"""The CUDA caching allocator with segments of fixed size, simulated.

Rules read in torch's `c10/cuda/CUDACachingAllocator.cpp` (native backend, one stream). Everything is counted in units
of 512 bytes, the allocator's smallest block. Addresses matter, since of two free blocks of one size the lower is used
first: segments get them as the driver was seen to hand them out. A free block is found by its two ends.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from copy import copy
from typing import Final, Self

import numpy as np

from peakcast.featurizer.allocator_config import AllocatorConfig
from peakcast.featurizer.trace import Int64

UNIT_BYTES: Final = 512
_MIB: Final = (1 << 20) // UNIT_BYTES
SMALL: Final = _MIB  # requests up to here come from the small pool
SMALL_SEGMENT: Final = 2 * _MIB
LARGE_SEGMENT: Final = 20 * _MIB
OWN_SEGMENT: Final = 10 * _MIB  # requests from here on get a segment of their own size
SEGMENT_STEP: Final = 2 * _MIB

# A free block is one integer, size above address, so that a sorted list of them is in the allocator's order: best
# fit first, lowest address among equals. 56 bits of address hold 2^65 bytes, more than any accepted trace asks for.
ADDRESS_BITS: Final = 56
ADDRESS_MASK: Final = (1 << ADDRESS_BITS) - 1
NOT_HELD: Final = -1
# Seen on an H200 (driver 580): cudaMalloc goes downwards in chunks of 32 MiB, and a segment that fits into what the
# chunks of earlier ones left over goes there, lowest address first.
CHUNK: Final = 32 * _MIB
TOP: Final = 1 << (ADDRESS_BITS - 2)

_UNLIMITED: Final = 1 << 80  # more than any sum of sizes


class OutOfLimitError(MemoryError):
    """An allocation did not fit under the limit, cached blocks given back."""


def rounded_units(sizes_bytes: Int64, config: AllocatorConfig) -> Int64:
    """Round requests to what the allocator looks for, in units of 512 bytes; a request of 0 stays 0."""
    if any(division > 1 for division in config.roundup_power2_divisions):
        return np.array([_power2_rounded(size, config) if size else 0 for size in sizes_bytes.tolist()], np.int64)
    return -(-sizes_bytes // UNIT_BYTES)


def _power2_rounded(size_bytes: int, config: AllocatorConfig) -> int:
    """Round up to the next of `divisions` equal steps between two powers of two."""
    interval = size_bytes.bit_length() - 1 - 20  # the first interval starts at 1 MiB = 2^20
    divisions = config.roundup_power2_divisions[max(0, min(interval, len(config.roundup_power2_divisions) - 1))]
    if divisions > 1 and size_bytes > UNIT_BYTES * divisions:
        step = (1 << (size_bytes.bit_length() - 1)) // divisions
        if size_bytes & (size_bytes - 1):
            size_bytes = -(-size_bytes // step) * step
    return -(-size_bytes // UNIT_BYTES)


def segment_units(units: int) -> int:
    """Return the size of the segment asked of the driver for a request that no cached block can serve."""
    if units <= SMALL:
        return SMALL_SEGMENT
    if units < OWN_SEGMENT:
        return LARGE_SEGMENT
    return -(-units // SEGMENT_STEP) * SEGMENT_STEP


def _limit_units(limit_bytes: int | None) -> int:
    return _UNLIMITED if limit_bytes is None else limit_bytes // UNIT_BYTES


class CachingAllocator:
    """An allocator that keeps its state over several steps, as a process does.

    Tensors are numbered by `add`; `run` takes events: `e >= 0` allocates tensor e, `~e` frees it. Peaks stand until
    `reset_peaks`. With a limit, cached segments are given back before an allocation fails.

    Raises (in `run`):
        OutOfLimitError: if an allocation does not fit under `limit_bytes`.
    """

    def __init__(self, config: AllocatorConfig | None = None, *, limit_bytes: int | None = None) -> None:
        self.config = config or AllocatorConfig()
        self._limit = _limit_units(limit_bytes)
        split = self.config.max_split_size_bytes
        self._max_split = _UNLIMITED if split is None else split // UNIT_BYTES
        self._units: list[int] = []
        self._spare: frozenset[int] = frozenset()  # tensors whose maker does without where they do not fit
        self._held: list[int] = []  # by tensor: its block (size and address), or NOT_HELD
        self._free_small: list[int] = []  # sorted blocks
        self._free_large: list[int] = []
        self._size_at: dict[int, int] = {}  # start of a free block -> its size
        self._start_before: dict[int, int] = {}  # end of a free block -> its start
        self._segments: dict[int, int] = {}  # start -> size
        self._lowest = TOP  # driver's address of the lowest chunk
        self._holes: list[int] = []  # as blocks, but address above size: what chunks have left, by driver's address
        self._allocated = self._peak_allocated = 0
        self._reserved = self._peak_reserved = 0
        self._asked = 0
        self.driver_calls = 0  # segments taken or given back: none in a step means the next is like it
        self.peak_tensor = NOT_HELD  # whose allocation set the peak

    @property
    def allocated_bytes(self) -> int:
        """Bytes of live blocks: a block is as large as its tensor, rounded, or more where a rest is not split off."""
        return self._allocated * UNIT_BYTES

    @property
    def reserved_bytes(self) -> int:
        """Bytes held from the driver."""
        return self._reserved * UNIT_BYTES

    @property
    def peak_allocated_bytes(self) -> int:
        """The highest `allocated_bytes` since `reset_peaks`."""
        return self._peak_allocated * UNIT_BYTES

    @property
    def peak_reserved_bytes(self) -> int:
        """The highest `reserved_bytes` since `reset_peaks`."""
        return self._peak_reserved * UNIT_BYTES

    @property
    def unfelt_limit_bytes(self) -> int:
        """The smallest limit that would have changed nothing so far; `reset_peaks` leaves it alone."""
        return self._asked * UNIT_BYTES

    def clone(self, *, limit_bytes: int | None = None) -> Self:
        """Return an independent copy of the state, under another limit."""
        twin = copy(self)
        state = vars(twin)
        state.update({name: value.copy() for name, value in state.items() if isinstance(value, list | dict)})
        state["_limit"] = _limit_units(limit_bytes)
        return twin

    def reset_peaks(self) -> None:
        """Start the peaks again from what is held now."""
        self._peak_allocated, self._peak_reserved, self.peak_tensor = self._allocated, self._reserved, NOT_HELD

    def add(self, sizes_bytes: Int64, spare: Iterable[int] = ()) -> range:
        """Give tensors of these sizes numbers, without allocating them; `spare` ones are done without past a limit."""
        first = len(self._units)
        self._spare |= {first + tensor for tensor in spare}
        self._units += rounded_units(sizes_bytes, self.config).tolist()
        self._held += [NOT_HELD] * len(sizes_bytes)
        return range(first, len(self._units))

    def malloc(self, size_bytes: int) -> int:
        """Allocate one tensor and return its number."""
        (tensor,) = self.add(np.array([size_bytes], np.int64))
        self.run((tensor,))
        return tensor

    def free(self, tensor: int) -> None:
        """Free one tensor."""
        self.run((~tensor,))

    def not_held(self, tensors: Iterable[int]) -> list[int]:
        """Return those of the tensors that are not allocated now."""
        held = self._held
        return [tensor for tensor in tensors if held[tensor] == NOT_HELD]

    def rename(self, source: int, target: int) -> None:
        """Let the block of `source` be known as `target` from here on."""
        self._held[target], self._held[source] = self._held[source], NOT_HELD

    def run(self, events: Iterable[int]) -> None:  # noqa: PLR0915 - see below
        """Carry out events in order. One loop on purpose: at 1 us an event, calls would double the time."""
        units, held = self._units, self._held
        free_small, free_large = self._free_small, self._free_large
        size_at, start_before = self._size_at, self._start_before
        max_split, has_max_split = self._max_split, self.config.max_split_size_bytes is not None
        allocated, peak, peak_tensor = self._allocated, self._peak_allocated, self.peak_tensor
        for event in events:
            if event >= 0:
                size = units[event]
                if not size:
                    continue
                is_small = size <= SMALL
                blocks = free_small if is_small else free_large
                index = bisect_left(blocks, size << ADDRESS_BITS)
                if index < len(blocks) and not (has_max_split and self._is_refused(size, blocks[index])):
                    block = blocks.pop(index)
                    address = block & ADDRESS_MASK
                    block_size = block >> ADDRESS_BITS
                    del size_at[address]
                    del start_before[address + block_size]
                else:
                    self._allocated, self._peak_allocated, self.peak_tensor = allocated, peak, peak_tensor
                    try:
                        block = self._new_segment(size, blocks)
                    except OutOfLimitError:
                        if event in self._spare:
                            continue
                        raise
                    address = block & ADDRESS_MASK
                    block_size = block >> ADDRESS_BITS
                rest = block_size - size
                if rest and (is_small or (rest > SMALL and size < max_split)):
                    block = (size << ADDRESS_BITS) | address
                    address += size
                    insort(blocks, (rest << ADDRESS_BITS) | address)
                    size_at[address] = rest
                    start_before[address + rest] = address
                    block_size = size
                held[event] = block
                allocated += block_size
                if allocated > peak:
                    peak, peak_tensor = allocated, event
            else:
                block = held[event := ~event]
                if block == NOT_HELD:
                    continue
                held[event] = NOT_HELD
                size = block >> ADDRESS_BITS
                allocated -= size
                blocks = free_small if size <= SMALL else free_large  # a large block is never that small
                address = block & ADDRESS_MASK
                end = address + size
                if end in size_at:
                    size = size_at.pop(end)
                    del blocks[bisect_left(blocks, (size << ADDRESS_BITS) | end)]
                    end += size
                if address in start_before:
                    start = start_before.pop(address)
                    del blocks[bisect_left(blocks, (size_at[start] << ADDRESS_BITS) | start)]
                    address = start
                size_at[address] = size = end - address
                start_before[end] = address
                insort(blocks, (size << ADDRESS_BITS) | address)
        self._allocated, self._peak_allocated, self.peak_tensor = allocated, peak, peak_tensor

    def _is_refused(self, size: int, block: int) -> bool:
        """Tell whether `max_split_size_mb` keeps the best fitting block from serving a request."""
        block_size = block >> ADDRESS_BITS
        if size < self._max_split:
            return block_size >= self._max_split
        return block_size >= size + self.config.max_non_split_rounding_bytes // UNIT_BYTES

    def _new_segment(self, size: int, blocks: list[int]) -> int:
        """Take a segment from the driver and return it as a block that is not in the free lists."""
        wanted = segment_units(size)
        if self._reserved + wanted > self._limit and self.config.max_split_size_bytes is not None:
            self._release_oversized(size, blocks)
        if self._reserved + wanted > self._limit:
            self._release_all()
        if self._reserved + wanted > self._limit:
            raise OutOfLimitError(
                f"{size * UNIT_BYTES} bytes do not fit: {self.allocated_bytes} allocated, {self.reserved_bytes} "
                f"reserved, limit {self._limit * UNIT_BYTES}"
            )
        # Twice the driver's address: so blocks of neighbouring segments never touch, and the order stays.
        address = 2 * self._place(wanted)
        self._segments[address] = wanted
        self._reserved += wanted
        self._asked = max(self._asked, self._reserved)
        self._peak_reserved = max(self._peak_reserved, self._reserved)
        self.driver_calls += 1
        return (wanted << ADDRESS_BITS) | address

    def _place(self, size: int) -> int:
        """Return the driver's address for a new segment."""
        for index, hole in enumerate(self._holes):
            if hole & ADDRESS_MASK >= size:
                address = hole >> ADDRESS_BITS
                del self._holes[index]
                self._add_hole(address + size, (hole & ADDRESS_MASK) - size)
                return address
        chunk = -(-size // CHUNK) * CHUNK
        self._lowest -= chunk
        self._add_hole(self._lowest + size, chunk - size)
        return self._lowest

    def _add_hole(self, address: int, size: int) -> None:
        if size:
            insort(self._holes, (address << ADDRESS_BITS) | size)

    def _release_oversized(self, size: int, blocks: list[int]) -> None:
        """Give back the smallest oversize block that would do, or the largest ones until they add up to it."""
        wanted = max(size, self._max_split)
        oversized = [block for block in blocks if block >> ADDRESS_BITS >= self._max_split and self._is_whole(block)]
        index = bisect_left(oversized, wanted << ADDRESS_BITS)
        if index < len(oversized):
            self._release(oversized[index], blocks)
            return
        released = 0
        while released < wanted and oversized:
            released += oversized[-1] >> ADDRESS_BITS
            self._release(oversized.pop(), blocks)

    def _release_all(self) -> None:
        """Give every segment without a live block back to the driver."""
        for blocks in (self._free_large, self._free_small):
            for block in list(blocks):
                if self._is_whole(block):
                    self._release(block, blocks)

    def _is_whole(self, block: int) -> bool:
        """Tell whether a free block is a whole segment."""
        return self._segments.get(block & ADDRESS_MASK) == block >> ADDRESS_BITS

    def _release(self, block: int, blocks: list[int]) -> None:
        address, size = block & ADDRESS_MASK, block >> ADDRESS_BITS
        del blocks[bisect_left(blocks, block)], self._size_at[address], self._start_before[address + size]
        del self._segments[address]
        self._add_hole(address // 2, size)
        self._reserved -= size
        self.driver_calls += 1
