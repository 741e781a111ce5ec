"""The freed buffers of a compiled graph that later ones of the same kind take over instead of being allocated.

Follows `AllocateLine.plan` and `EfficientPeakEstimate` in torch/_inductor/codegen/wrapper.py. A buffer that waits for
its heir in the pool is not given back, which may raise the peak: inductor keeps to what it estimates the peak to be.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence


class BufferPool:
    """Freed buffers by kind (bytes and type), last freed first. Steps are positions in the order of the kernels."""

    def __init__(self, live_bytes: Sequence[int]) -> None:
        """Take what is estimated to live in each step, without any reuse."""
        self._live_bytes = list(live_bytes)
        self._peak_bytes = max(live_bytes, default=0)
        self._freed: dict[Hashable, list[tuple[int, int]]] = {}

    def put(self, kind: Hashable, buffer: int, step: int) -> None:
        """Note that a buffer is free after a step."""
        self._freed.setdefault(kind, []).append((buffer, step))

    def take(self, kind: Hashable, size_bytes: int, step: int) -> int | None:
        """Return the buffer that one made in this step takes over: the one freed last, if it may wait so long."""
        freed = self._freed.get(kind)
        if not freed:
            return None
        buffer, freed_at = freed[-1]
        between = range(freed_at + 1, step)
        if between and size_bytes + max(self._live_bytes[freed_at + 1 : step]) > self._peak_bytes:
            return None
        for waited in between:
            self._live_bytes[waited] += size_bytes
        freed.pop()
        return buffer
