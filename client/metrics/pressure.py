"""The memory pressure index: memory use times collector activity, 0 to 100."""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

# Long enough to hold some full collections of a training loop, short enough for an alert of one minute.
WINDOW_S: Final = 30.0
# A process that spends a tenth of its time collecting is in trouble: that is activity 1.
BUSY_SHARE: Final = 0.1


def pressure_index(*, used_bytes: int, total_bytes: int, collecting_s: float, retries: int, window_s: float) -> float:
    """Return 100 * use * (1 + activity) / 2, with use = used / total and activity = min(1, collector's share / 0.1).

    An allocator that had to give its cached blocks back and try again is as active as can be. So memory that is full
    alone is 50; above that, somebody works hard to find room.

    Args:
        used_bytes: of the card's memory in use.
        total_bytes: the card's memory, above 0.
        collecting_s: seconds that Python's garbage collector ran within the window.
        retries: the caching allocator's failed first attempts within the window.
        window_s: seconds the window is long, above 0.

    Raises:
        ValueError: for an argument out of its range.
    """
    if total_bytes <= 0 or not 0 <= used_bytes <= total_bytes:
        raise ValueError(f"used_bytes must be from 0 to total_bytes, got {used_bytes:,} of {total_bytes:,}")
    if window_s <= 0 or collecting_s < 0 or retries < 0:
        problem = "window_s must be above 0, collecting_s and retries 0 or more"
        raise ValueError(f"{problem}, got {window_s:g}, {collecting_s:g} and {retries}")
    activity = 1.0 if retries else min(1.0, collecting_s / window_s / BUSY_SHARE)
    return 100.0 * used_bytes / total_bytes * (1.0 + activity) / 2


class CollectorClock:
    """Time Python's garbage collector, through its callbacks, over the last 30 seconds."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began_s: float | None = None
        # Begin and length of each collection. A thousand in 30 seconds would be most of the time.
        self._runs: deque[tuple[float, float]] = deque(maxlen=4096)

    def start(self) -> None:
        """Begin to listen."""
        if self._heard not in gc.callbacks:
            gc.callbacks.append(self._heard)

    def stop(self) -> None:
        """Listen no more."""
        if self._heard in gc.callbacks:
            gc.callbacks.remove(self._heard)

    def collecting_s(self) -> float:
        """Return the seconds of the last 30 in which the collector ran."""
        since_s = self._clock() - WINDOW_S
        while self._runs and self._runs[0][0] < since_s:
            self._runs.popleft()
        return sum(length_s for _, length_s in self._runs)

    def _heard(self, phase: str, _: dict[str, Any]) -> None:
        now_s = self._clock()
        if phase == "start":
            self._began_s = now_s
        elif self._began_s is not None:
            self._runs.append((self._began_s, now_s - self._began_s))
            self._began_s = None
