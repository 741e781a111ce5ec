"""Memory that runs out on a host without a GPU.

Every tensor storage made is counted, and beyond a limit torch's own out-of-memory error is raised, wherever in the step
that happens.
"""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LimitedMemory(TorchDispatchMode):
    """Count the bytes of all storages made under this mode and still alive; raise where they pass `limit_bytes`."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        super().__init__()
        self.limit_bytes = limit_bytes
        self.live_bytes = 0
        self.peak_bytes = 0
        self._alive: set[int] = set()

    def live(self) -> int:
        """Return the bytes alive, as the allocator of a GPU would."""
        return self.live_bytes

    def reset_peak(self) -> None:
        """Measure the peak from here on."""
        self.peak_bytes = self.live_bytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf.untyped_storage())
        if self.limit_bytes is not None and self.live_bytes > self.limit_bytes:
            raise torch.OutOfMemoryError(f"CUDA out of memory. {self.live_bytes:,} of {self.limit_bytes:,} bytes")
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._alive:
            return
        self._alive.add(key)
        size_bytes = storage.nbytes()
        self.live_bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        weakref.finalize(storage, self._release, key, size_bytes)

    def _release(self, key: int, size_bytes: int) -> None:
        self._alive.discard(key)
        self.live_bytes -= size_bytes


def resident_bytes() -> int:
    """Return the process's memory in RAM. Tensors of 64 MiB and more come and go with it, whoever holds them."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
