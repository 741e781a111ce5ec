"""Several steps of one process through one allocator: the first, then steady ones until nothing changes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from peakcast.featurizer import compiled
from peakcast.featurizer.allocator import (
    GRANULARITY_BYTES,
    CachingAllocator,
    make_allocator,
    smallest_limit_bytes,
)
from peakcast.featurizer.allocator_config import AllocatorConfig
from peakcast.featurizer.allocator_native import rounded_units
from peakcast.featurizer.lifetimes import StepEvents
from peakcast.featurizer.trace import Int64

# As peaks are measured: the maximum over steps 2 to 4.
STEADY_STEPS: Final = 3
# `required` is found to within this share of itself, or one page; measured truths are bisected no finer.
REQUIRED_TOLERANCE: Final = 1 / 512
_ANY: Final = 1.0  # where nobody asks for it


@dataclass(frozen=True, slots=True)
class Peaks:
    """Peaks of the first step and of the steady ones. `*_tensor`: whose allocation set the allocated peak, or -1."""

    first_allocated_bytes: int
    first_reserved_bytes: int
    first_tensor: int
    steady_allocated_bytes: int
    steady_reserved_bytes: int
    steady_tensor: int

    @property
    def reserved_bytes(self) -> int:
        """The most that any step reserved."""
        return max(self.first_reserved_bytes, self.steady_reserved_bytes)


@dataclass(frozen=True, eq=False)
class Steps:
    """The program of a process: `first`, then `steady` over and over. Both number the same T tensors.

    `private` marks the tensors [T] of a pool that shares no block with the others and gives none back; what is reserved
    is then the sum of two allocators. `tuned` is the first step where a compiler tries its kernels first: it sets the
    first step's peaks and what stays reserved after it, but `required` does without, as in a process with warm caches;
    a private pool gives nothing back, so that what tuning took in one is required. `tuned_again` is the second step,
    of the steady ones as measured, where it compiles once more.
    """

    first: StepEvents
    steady: StepEvents
    config: AllocatorConfig
    private: NDArray[np.bool_] | None = None
    tuned: StepEvents | None = None
    tuned_again: StepEvents | None = None
    tolerance: float = REQUIRED_TOLERANCE

    @cached_property
    def peaks(self) -> Peaks:
        """The peaks where memory is no concern."""
        if self.tuned is not None or self._pools is not None:
            peaks = Steps(self._cold, self.steady, self.config, tolerance=_ANY).peaks
            if self._pools is None:
                return peaks if self.tuned_again is None else self._at_least_tuned_again(peaks, self.tuned_again)
            inside, outside = (pool.peaks for pool in self._pools)
            return replace(
                peaks,
                first_reserved_bytes=inside.first_reserved_bytes + outside.first_reserved_bytes,
                steady_reserved_bytes=inside.steady_reserved_bytes + outside.steady_reserved_bytes,
            )
        if self._compiled is not None:
            return self._compiled[0]
        after_first = self._after_first
        return Peaks(
            after_first.peak_allocated_bytes,
            after_first.peak_reserved_bytes,
            after_first.peak_tensor,
            *self._after_steady[1],
        )

    @cached_property
    def required_bytes(self) -> int:
        """The smallest limit under which all steps run, by bisection over whole runs."""
        if self._pools is not None:
            inside, outside = self._pools
            return inside.peaks.reserved_bytes + outside.required_bytes
        if self.tuned is not None:
            return replace(self, tuned=None, tuned_again=None).required_bytes
        if self._compiled is not None:
            return self._compiled[1]
        peaks = self.peaks
        tolerance_bytes = int(peaks.reserved_bytes * self.tolerance)
        return smallest_limit_bytes(
            self.run_under,
            # What libraries can spare may bring it lower; measured truths are not looked for there either.
            low_bytes=max(peaks.first_allocated_bytes, peaks.steady_allocated_bytes),
            high_bytes=self._after_steady[0].unfelt_limit_bytes,
            granularity_bytes=max(tolerance_bytes // GRANULARITY_BYTES, 1) * GRANULARITY_BYTES,
        )

    def _at_least_tuned_again(self, peaks: Peaks, second: StepEvents) -> Peaks:
        # Its trials are other tensors than those of the first step, under the same numbers: that one runs without.
        first = replace(self.first, bytes=second.bytes, role=second.role, node=second.node)
        again = Steps(first, second, self.config, tolerance=_ANY).peaks
        reserved_bytes = max(again.steady_reserved_bytes, peaks.steady_reserved_bytes)
        if again.steady_allocated_bytes <= peaks.steady_allocated_bytes:
            return replace(peaks, steady_reserved_bytes=reserved_bytes)
        return replace(
            peaks,
            steady_allocated_bytes=again.steady_allocated_bytes,
            steady_reserved_bytes=reserved_bytes,
            steady_tensor=again.steady_tensor,
        )

    @property
    def _cold(self) -> StepEvents:
        return self.first if self.tuned is None else self.tuned

    @cached_property
    def _pools(self) -> tuple[Steps, Steps] | None:
        """The program of the private pool, and of all else; None where there is one pool."""
        if self.private is None:
            return None
        # Kernels are timed where they run: in the private pool.
        inside = np.append(self.private, np.ones(len(self._cold.bytes) - len(self.private), np.bool_))
        outside = ~inside
        return (
            # Nothing of the private pool is given back: what it requires is what it reserves, tuning included.
            Steps(_of(self._cold, inside), _of(self.steady, inside), self.config, tolerance=_ANY),
            Steps(_of(self.first, outside), _of(self.steady, outside), self.config, tolerance=self.tolerance),
        )

    def run_under(self, limit_bytes: int) -> int:
        """Run all steps under a limit and return the smallest limit that would have gone the same way.

        Raises:
            OutOfLimitError: if they do not fit.
        """
        if limit_bytes >= self._after_first.unfelt_limit_bytes:
            allocator = self._after_first.clone(limit_bytes=limit_bytes)
        else:
            allocator = self._run_first(make_allocator(self.config, limit_bytes=limit_bytes))
        self._run_steady(allocator)
        return allocator.unfelt_limit_bytes

    @cached_property
    def _compiled(self) -> tuple[Peaks, int] | None:
        """The peaks and the required bytes from compiled loops, where those are loaded and know options and sizes."""
        replay = compiled.loaded()
        if replay is None or self.config.expandable_segments or self.config.max_split_size_bytes is not None:
            return None
        found = replay(
            (rounded_units(self.first.bytes, self.config), self.first.is_spare),
            _program(self.first),
            _program(self.steady),
            steps=STEADY_STEPS,
            tolerance=self.tolerance,
        )
        return None if found is None else (Peaks(*found[0]), found[1])

    @cached_property
    def _after_first(self) -> CachingAllocator:
        return self._run_first(make_allocator(self.config))

    @cached_property
    def _after_steady(self) -> tuple[CachingAllocator, tuple[int, int, int]]:
        allocator = self._after_first.clone()
        return allocator, self._run_steady(allocator)

    def _run_first(self, allocator: CachingAllocator) -> CachingAllocator:
        allocator.add(self.first.bytes, self.first.spare.tolist())
        allocator.run(self.first.start.tolist())
        allocator.run(self.first.events.tolist())
        return allocator

    def _run_steady(self, allocator: CachingAllocator) -> tuple[int, int, int]:
        """Go on with steady steps; returns their peaks and whose allocation set the allocated one."""
        allocated_bytes, reserved_bytes, tensor = 0, 0, -1
        ended, steady = self.first, self.steady
        start, events = steady.start.tolist(), steady.events.tolist()
        for _ in range(STEADY_STEPS):
            for survivor, place in ended.survivors.items():
                allocator.rename(survivor, place)
            allocator.run([~leftover for leftover in ended.left])
            allocator.run(allocator.not_held(start))
            allocator.reset_peaks()
            calls = allocator.driver_calls
            allocator.run(events)
            reserved_bytes = max(reserved_bytes, allocator.peak_reserved_bytes)
            if allocator.peak_allocated_bytes > allocated_bytes:
                allocated_bytes, tensor = allocator.peak_allocated_bytes, allocator.peak_tensor
            ended = steady
            # The step ended where it began: what lives is in place, and the free blocks between are joined up.
            if allocator.driver_calls == calls and not steady.survivors and not steady.left:
                break
        return allocated_bytes, reserved_bytes, tensor


def _program(step: StepEvents) -> tuple[Int64, Int64, Int64, Int64]:
    """Return a step as the compiled loops take it: start, events, survivors [2, S], left."""
    survivors = np.array([[*step.survivors], [*step.survivors.values()]], np.int64)
    return step.start, step.events, survivors, np.array(step.left, np.int64)


def _of(step: StepEvents, chosen: NDArray[np.bool_]) -> StepEvents:
    """Return the events of the chosen tensors [T] alone."""
    kept = chosen[np.where(step.events >= 0, step.events, ~step.events)]
    return replace(
        step,
        start=step.start[chosen[step.start]],
        events=step.events[kept],
        event_node=step.event_node[kept],
        survivors={one: place for one, place in step.survivors.items() if chosen[one] and chosen[place]},
        # Its successor lies in the other pool: nothing of this one takes its place.
        left=[
            *(one for one in step.left if chosen[one]),
            *(one for one, place in step.survivors.items() if chosen[one] and not chosen[place]),
        ],
    )
