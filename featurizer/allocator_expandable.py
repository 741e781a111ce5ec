"""The caching allocator under `expandable_segments:True`: one growing range of addresses for each pool."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from copy import copy
from typing import Final, Self

from peakcast.featurizer.allocator_config import AllocatorConfig
from peakcast.featurizer.allocator_native import (
    ADDRESS_BITS,
    ADDRESS_MASK,
    LARGE_SEGMENT,
    NOT_HELD,
    SMALL,
    CachingAllocator,
    OutOfLimitError,
    segment_units,
)

_SMALL_PAGE: Final = segment_units(1)
_POOL_ADDRESSES: Final = 1 << (ADDRESS_BITS - 1)  # the large pool's range starts where the small one's ends


class _Range:
    """The addresses of one pool: which are backed by memory and free, and which are not backed."""

    def __init__(self, start: int, page: int) -> None:
        self.page = page
        self.free: list[int] = []  # sorted blocks, size above address
        self.size_at: dict[int, int] = {}
        self.start_before: dict[int, int] = {}
        self.unmapped: list[tuple[int, int]] = [(start, start + _POOL_ADDRESSES)]  # sorted (start, end), in pages

    def copy(self) -> _Range:
        """Return an independent copy."""
        twin = copy(self)
        twin.free, twin.unmapped = self.free.copy(), self.unmapped.copy()
        twin.size_at, twin.start_before = self.size_at.copy(), self.start_before.copy()
        return twin

    def put(self, address: int, size: int) -> int:
        """Add a free block, joined with its free neighbours, and return its start."""
        end = address + size
        if end in self.size_at:
            end += self.take(end)
        if address in self.start_before:
            start = self.start_before[address]
            self.take(start)
            address = start
        self.size_at[address] = end - address
        self.start_before[end] = address
        insort(self.free, ((end - address) << ADDRESS_BITS) | address)
        return address

    def take(self, address: int) -> int:
        """Remove a free block and return its size."""
        size = self.size_at.pop(address)
        del self.start_before[address + size]
        del self.free[bisect_left(self.free, (size << ADDRESS_BITS) | address)]
        return size

    def unmapped_at(self, address: int) -> int:
        """Return how many units from an address on are not backed."""
        index = bisect_left(self.unmapped, (address, 0))
        if index < len(self.unmapped) and self.unmapped[index][0] == address:
            return self.unmapped[index][1] - address
        return 0

    def best_fit(self, size: int) -> int | None:
        """Return the start of the block to use. A block that could grow counts at the size it could grow to."""
        index = bisect_left(self.free, size << ADDRESS_BITS)
        if index == len(self.free):
            return None

        def reach(position: int) -> int:
            block = self.free[position]
            length = block >> ADDRESS_BITS
            return length + self.unmapped_at((block & ADDRESS_MASK) + length)

        while index + 1 < len(self.free) and reach(index + 1) < reach(index):
            index += 1
        return self.free[index] & ADDRESS_MASK

    def grow(self, size: int) -> tuple[int, int]:
        """Back the lowest addresses where `size` units fit; returns the free block's start and the units mapped."""
        for start, _ in self.unmapped:
            address = self.start_before.get(start, start)
            if self._room_from(address) >= size:
                break
        mapped = 0
        while (have := self.size_at.get(address, 0)) < size:
            hole = address + have
            index = bisect_left(self.unmapped, (hole, 0))
            hole_end = self.unmapped[index][1]
            units = min(-(-(size - have) // self.page) * self.page, hole_end - hole)
            if hole + units < hole_end:
                self.unmapped[index] = (hole + units, hole_end)
            else:
                del self.unmapped[index]
            self.put(hole, units)
            mapped += units
        return address, mapped

    def _room_from(self, address: int) -> int:
        """Count units from an address on that are free or not backed, without a gap."""
        room = 0
        while step := self.size_at.get(address, 0) or self.unmapped_at(address):
            room += step
            address += step
        return room

    def unmap_free_pages(self) -> int:
        """Give the whole pages inside free blocks back; returns how many units."""
        released = 0
        for block in list(self.free):
            address, size = block & ADDRESS_MASK, block >> ADDRESS_BITS
            first, last = -(-address // self.page) * self.page, (address + size) // self.page * self.page
            if first >= last:
                continue
            self.take(address)
            if first > address:
                self.put(address, first - address)
            if last < address + size:
                self.put(last, address + size - last)
            released += last - first
            self._unmap(first, last)
        return released

    def _unmap(self, start: int, end: int) -> None:
        index = bisect_left(self.unmapped, (start, 0))
        if index < len(self.unmapped) and self.unmapped[index][0] == end:
            end = self.unmapped.pop(index)[1]
        if index and self.unmapped[index - 1][1] == start:
            index -= 1
            start = self.unmapped.pop(index)[0]
        self.unmapped.insert(index, (start, end))


class ExpandableAllocator(CachingAllocator):
    """As CachingAllocator, but each pool is one segment that grows by pages (2 MiB small, 20 MiB large).

    Every block is split down to 512 bytes, so allocated bytes are the rounded sizes alone. A limit is tested as torch
    tests a memory fraction: against a whole new segment, whatever is mapped in the end. So a run can need more than it
    reserves, or pass its limit by part of a page.
    """

    def __init__(self, config: AllocatorConfig, *, limit_bytes: int | None = None) -> None:
        super().__init__(config, limit_bytes=limit_bytes)
        # Starts are multiples of both pages, so that a page is never shared between pools.
        large_start = -(-_POOL_ADDRESSES // LARGE_SEGMENT) * LARGE_SEGMENT
        self._small = _Range(0, _SMALL_PAGE)
        self._large = _Range(large_start, LARGE_SEGMENT)

    def clone(self, *, limit_bytes: int | None = None) -> Self:
        """Return an independent copy of the state, under another limit."""
        twin = super().clone(limit_bytes=limit_bytes)
        vars(twin).update(_small=self._small.copy(), _large=self._large.copy())
        return twin

    def run(self, events: Iterable[int]) -> None:
        """Carry out events in order."""
        for event in events:
            if event >= 0:
                if self._units[event]:
                    self._allocate(event)
            elif (block := self._held[~event]) != NOT_HELD:
                self._held[~event] = NOT_HELD
                size = block >> ADDRESS_BITS
                self._allocated -= size
                (self._small if size <= SMALL else self._large).put(block & ADDRESS_MASK, size)

    def _allocate(self, tensor: int) -> None:
        size = self._units[tensor]
        pool = self._small if size <= SMALL else self._large
        address = pool.best_fit(size)
        if address is None:
            address = self._grow(pool, size)
        rest = pool.take(address) - size
        if rest:
            pool.put(address + size, rest)
        self._held[tensor] = (size << ADDRESS_BITS) | address
        self._allocated += size
        if self._allocated > self._peak_allocated:
            self._peak_allocated, self.peak_tensor = self._allocated, tensor

    def _grow(self, pool: _Range, size: int) -> int:
        """Map pages for a block of `size` and return its start."""
        wanted = segment_units(size)
        if self._reserved + wanted > self._limit:
            self._reserved -= self._large.unmap_free_pages() + self._small.unmap_free_pages()
            self.driver_calls += 1
        if self._reserved + wanted > self._limit:
            raise OutOfLimitError(f"no room to map {wanted} units: {self._reserved} reserved, limit {self._limit}")
        self._asked = max(self._asked, self._reserved + wanted)
        address, mapped = pool.grow(size)
        self._reserved += mapped
        self._peak_reserved = max(self._peak_reserved, self._reserved)
        self.driver_calls += 1
        return address
