"""What a list of allocations and frees takes, reserves and needs, by a simulation of the CUDA caching allocator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from peakcast.featurizer.allocator_config import AllocatorConfig
from peakcast.featurizer.allocator_expandable import ExpandableAllocator
from peakcast.featurizer.allocator_native import CachingAllocator, OutOfLimitError
from peakcast.featurizer.trace import Int32, Int64

__all__ = [
    "AllocatorTimeline",
    "CachingAllocator",
    "OutOfLimitError",
    "make_allocator",
    "required_bytes",
    "simulate_allocator",
    "smallest_limit_bytes",
]

# The driver hands out memory in pages of 2 MiB, and every segment is a multiple of it.
GRANULARITY_BYTES: Final = 2 << 20


@dataclass(frozen=True, slots=True, eq=False)
class AllocatorTimeline:
    """Bytes taken by live blocks, and bytes held from the driver, after each of E events."""

    allocated_bytes: Int64  # [E]
    reserved_bytes: Int64  # [E]


def make_allocator(config: AllocatorConfig | None = None, *, limit_bytes: int | None = None) -> CachingAllocator:
    """Return the allocator that a configuration selects."""
    if config is not None and config.expandable_segments:
        return ExpandableAllocator(config, limit_bytes=limit_bytes)
    return CachingAllocator(config, limit_bytes=limit_bytes)


def simulate_allocator(
    sizes_bytes: Int64, events: Int32 | Sequence[int], config: AllocatorConfig | None = None
) -> AllocatorTimeline:
    """Run E events over K tensors through a fresh allocator and note its state after each.

    `sizes_bytes` is [K]; an event `e >= 0` allocates tensor e, `~e` frees it.
    """
    allocator = make_allocator(config)
    allocator.add(np.asarray(sizes_bytes, np.int64))
    count = len(events)
    allocated_bytes, reserved_bytes = np.empty(count, np.int64), np.empty(count, np.int64)
    for position, event in enumerate(np.asarray(events).tolist()):
        allocator.run((event,))
        allocated_bytes[position] = allocator.allocated_bytes
        reserved_bytes[position] = allocator.reserved_bytes
    return AllocatorTimeline(allocated_bytes, reserved_bytes)


def required_bytes(sizes_bytes: Int64, events: Int32 | Sequence[int], config: AllocatorConfig | None = None) -> int:
    """Return the smallest limit under which the events run, cached blocks given back before an allocation fails."""
    program = np.asarray(events).tolist()
    sizes_bytes = np.asarray(sizes_bytes, np.int64)

    def attempt(limit_bytes: int | None) -> CachingAllocator:
        allocator = make_allocator(config, limit_bytes=limit_bytes)
        allocator.add(sizes_bytes)
        allocator.run(program)
        return allocator

    free_run = attempt(None)
    return smallest_limit_bytes(
        lambda limit_bytes: attempt(limit_bytes).unfelt_limit_bytes,
        low_bytes=free_run.peak_allocated_bytes,
        high_bytes=free_run.unfelt_limit_bytes,
    )


def smallest_limit_bytes(
    attempt: Callable[[int], int], *, low_bytes: int, high_bytes: int, granularity_bytes: int = GRANULARITY_BYTES
) -> int:
    """Bisect for the smallest limit under which `attempt` succeeds, in steps of `granularity_bytes`.

    `attempt(limit_bytes)` returns `CachingAllocator.unfelt_limit_bytes`, or raises OutOfLimitError. Limits under
    `low_bytes` are not looked at and `high_bytes` is known to succeed. Success is not strictly monotone in the limit
    (another limit gives blocks back at other moments): the answer succeeds, and the next smaller one fails.
    """
    low, high = -(-low_bytes // granularity_bytes), -(-high_bytes // granularity_bytes)
    while low < high:
        middle = (low + high) // 2
        try:
            reached_bytes = attempt(middle * granularity_bytes)
        except OutOfLimitError:
            low = middle + 1
        else:
            high = max(low, min(middle, -(-reached_bytes // granularity_bytes)))
    return min(high * granularity_bytes, high_bytes)  # steps may be coarser than `high_bytes`
