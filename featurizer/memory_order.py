"""The order in which inductor runs the kernels of a graph: the cheapest in peak memory of a few topological orders.

Follows `reorder_for_peak_memory` in torch/_inductor/memory.py: the graph's own order, one that greedily keeps the peak
low, breadth first, and depth first. Sizes are bytes; kernels are numbered in the graph's order.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

# Looks at waiting kernels, for each kernel, after which the greedy order is given up: compiled models take up to 80.
MOST_LOOKS: Final = 160


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer that a graph makes (`maker` is a kernel), or is given and may free (`maker` is None)."""

    bytes: int
    maker: int | None
    readers: AbstractSet[int]  # kernels, the maker left out
    is_output: bool


class Program:
    """The kernels of one graph as a task of scheduling. `after` lists kernels that must have run, beyond makers."""

    def __init__(self, count: int, buffers: Sequence[Buffer], after: Mapping[int, AbstractSet[int]]) -> None:
        self.count, self.buffers = count, buffers
        self.made: list[list[int]] = [[] for _ in range(count)]  # by kernel: buffers
        self.read: list[list[int]] = [[] for _ in range(count)]
        self.predecessors: list[set[int]] = [set(after.get(kernel, ())) for kernel in range(count)]
        for number, buffer in enumerate(buffers):
            if buffer.maker is not None:
                self.made[buffer.maker].append(number)
            for reader in buffer.readers:
                self.read[reader].append(number)
                if buffer.maker is not None:
                    self.predecessors[reader].add(buffer.maker)
        self.successors: list[list[int]] = [[] for _ in range(count)]
        for kernel, before in enumerate(self.predecessors):
            before.discard(kernel)
            for other in before:
                self.successors[other].append(kernel)
        self.allocates = [sum(buffers[number].bytes for number in made) for made in self.made]

    def best_order(self) -> list[int]:
        """Return the first of the orders with the lowest peak."""
        orders = [list(range(self.count)), self.least_peak_first(), self.breadth_first(), self.smallest_first()]
        return min(orders, key=self.peak_bytes)

    def peak_bytes(self, order: Sequence[int]) -> int:
        """Return the peak of what the graph makes and may free, in an order."""
        return max(self.live_bytes(order))

    def live_bytes(self, order: Sequence[int]) -> list[int]:
        """Return what lives while each kernel runs, in an order, and after the last; what it makes counts with it."""
        step = {kernel: position for position, kernel in enumerate(order)}
        change = [0] * (self.count + 1)
        for buffer in self.buffers:
            start = 0 if buffer.maker is None else step[buffer.maker]
            change[start] += buffer.bytes
            if not buffer.is_output:
                change[max((step[reader] for reader in buffer.readers), default=start) + 1] -= buffer.bytes
        return list(accumulate(change))

    def least_peak_first(self) -> list[int]:
        """Return the greedy order (`topological_sort_lpmf`).

        Of the kernels that do not raise the peak it takes the one that frees most beyond what it makes, else the one
        that makes least.
        """
        buffers = self.buffers
        waiting = [len(before) for before in self.predecessors]
        uses = [len(buffer.readers) + buffer.is_output for buffer in buffers]
        frees = [0] * self.count
        for kernel in range(self.count):
            frees[kernel] += sum(buffers[number].bytes for number in self.read[kernel] if uses[number] == 1)
            frees[kernel] += sum(buffers[number].bytes for number in self.made[kernel] if uses[number] == 0)
        live = sum(buffer.bytes for buffer in buffers if buffer.maker is None)
        peak = max(live, sum(buffer.bytes for buffer in buffers if buffer.is_output))
        ready = [(self.allocates[k] - frees[k], k) for k in range(self.count) if not waiting[k]]
        heapq.heapify(ready)
        is_done = [False] * self.count
        order: list[int] = []
        looks = MOST_LOOKS * self.count
        while ready:
            looks -= len(ready)
            chosen = self._choose(ready, frees, is_done, peak - live) if looks > 0 else None
            if chosen is None:
                break
            kernel = chosen
            is_done[kernel] = True
            order.append(kernel)
            live += self.allocates[kernel]
            peak = max(peak, live)
            live -= frees[kernel]
            for successor in self.successors[kernel]:
                waiting[successor] -= 1
                if not waiting[successor]:
                    heapq.heappush(ready, (self.allocates[successor] - frees[successor], successor))
            for number in self.read[kernel]:
                uses[number] -= 1
                if uses[number] == 1:
                    for reader in buffers[number].readers:
                        if not is_done[reader]:
                            frees[reader] += buffers[number].bytes
                            if not waiting[reader]:
                                heapq.heappush(ready, (self.allocates[reader] - frees[reader], reader))
        return order if len(order) == self.count else list(range(self.count))

    def _choose(self, ready: list[tuple[int, int]], frees: list[int], is_done: list[bool], gap: int) -> int | None:
        """Take the next kernel off the heap. Entries of kernels that ran, or that free more by now, are stale."""
        too_large: list[tuple[int, int]] = []
        chosen = None
        while ready:
            entry = heapq.heappop(ready)
            net, kernel = entry
            if is_done[kernel] or net != self.allocates[kernel] - frees[kernel]:
                continue
            if self.allocates[kernel] <= gap:
                chosen = kernel
                break
            too_large.append(entry)
        if chosen is None and too_large:
            chosen = min(too_large, key=lambda entry: (self.allocates[entry[1]], *entry))[1]
        for entry in too_large:
            if entry[1] != chosen:
                heapq.heappush(ready, entry)
        return chosen

    def breadth_first(self) -> list[int]:
        """Return the order in which what was ready first runs first: `topological_sort_bfs`."""
        waiting = [len(before) for before in self.predecessors]
        ran_at = [0] * self.count
        ready: list[tuple[list[int], int]] = [([], kernel) for kernel in range(self.count) if not waiting[kernel]]
        heapq.heapify(ready)
        order: list[int] = []
        while ready:
            _, kernel = heapq.heappop(ready)
            ran_at[kernel] = len(order)
            order.append(kernel)
            for successor in self.successors[kernel]:
                waiting[successor] -= 1
                if not waiting[successor]:
                    priority = sorted(ran_at[before] for before in self.predecessors[successor])
                    heapq.heappush(ready, (priority, successor))
        return order if len(order) == self.count else list(range(self.count))

    def smallest_first(self) -> list[int]:
        """Return the order depth first, from the kernel that touches least: `topological_sort_dfs`."""
        touched = [
            self.allocates[kernel] + sum(self.buffers[number].bytes for number in self.read[kernel])
            for kernel in range(self.count)
        ]
        seen = [False] * self.count
        order: list[int] = []
        for root in sorted(range(self.count), key=lambda kernel: (touched[kernel], kernel)):
            stack = [(root, False)]
            while stack:
                kernel, is_ready = stack.pop()
                if is_ready:
                    order.append(kernel)
                elif not seen[kernel]:
                    seen[kernel] = True
                    stack.append((kernel, True))
                    # Reversed, for the stack: those that touch least come first.
                    before = sorted(self.predecessors[kernel], key=lambda other: (-touched[other], -other))
                    stack.extend((other, False) for other in before if not seen[other])
        return order
