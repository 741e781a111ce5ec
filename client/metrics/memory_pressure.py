"""The memory pressure of this process: `pressure_index` of what torch, the host and the collector say."""

from __future__ import annotations

import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from peakcast.client.metrics.pressure import WINDOW_S, CollectorClock, pressure_index


class MemoryPressure:
    """Read the index of the CUDA device that this process uses, or of the host's memory where there is none."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._collector = CollectorClock(clock=clock)
        # When the allocator's counter of retries was read, and what it said.
        self._retries: deque[tuple[float, int]] = deque(maxlen=1024)

    def start(self) -> None:
        """Begin to time the collector."""
        self._collector.start()

    def stop(self) -> None:
        """Time it no more."""
        self._collector.stop()

    def index(self) -> float:
        """Return the index now; not a number where neither CUDA nor the host says what is used."""
        try:
            used_bytes, total_bytes, retries = _device_memory() or (*_host_memory(), 0)
        except OSError:
            return math.nan
        return pressure_index(
            used_bytes=min(used_bytes, total_bytes),
            total_bytes=total_bytes,
            collecting_s=self._collector.collecting_s(),
            retries=self._new_retries(retries),
            window_s=WINDOW_S,
        )

    def _new_retries(self, retries: int) -> int:
        """Return how many there were since the oldest reading within the window."""
        now_s = self._clock()
        while self._retries and self._retries[0][0] < now_s - WINDOW_S:
            self._retries.popleft()
        self._retries.append((now_s, retries))
        return max(0, retries - self._retries[0][1])


def _device_memory() -> tuple[int, int, int] | None:
    # Whoever scrapes must not be the one to start CUDA, or to import torch.
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    # The thread that scrapes has a current device of its own, the first; what counts is the one that this process uses.
    index = max(range(torch.cuda.device_count()), key=torch.cuda.memory_reserved)
    free_bytes, total_bytes = torch.cuda.mem_get_info(index)
    return total_bytes - free_bytes, total_bytes, int(torch.cuda.memory_stats(index).get("num_alloc_retries", 0))


def _host_memory() -> tuple[int, int]:
    """Return the bytes of this process in RAM, and of the RAM."""
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * page_bytes, os.sysconf("SC_PHYS_PAGES") * page_bytes
