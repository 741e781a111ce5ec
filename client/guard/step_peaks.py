"""The peaks of a plan's first steps as the allocator saw them, for the report back."""

from __future__ import annotations

from typing import Final, Literal

import torch

STEADY_STEPS: Final = 3


class StepPeaks:
    """Read the allocator over the first step under a plan, and over the three that follow.

    It resets torch's peak counters before the first and the second step. `base_bytes`, what the process holds besides
    the step's own tensors, is taken off.
    """

    def __init__(self) -> None:
        self.base_bytes = 0
        self.is_over = not torch.cuda.is_available()
        self._steps = 0
        self._measured: dict[str, int] = {}
        self._hits = _cache_hits()
        if not self.is_over:
            torch.cuda.reset_peak_memory_stats()

    def step(self) -> dict[str, int] | None:
        """Take in that a step has ended; return what was measured once all four have."""
        if self.is_over:
            return None
        self._steps += 1
        if self._steps == 1:
            self._read("first")
            torch.cuda.reset_peak_memory_stats()
        elif self._steps == 1 + STEADY_STEPS:
            self._read("steady")
            self.is_over = True
            return self._measured
        return None

    @property
    def cache(self) -> Literal["cold", "warm"]:
        """Say whether the compiler took anything from its caches since the beginning."""
        return "warm" if _cache_hits() > self._hits else "cold"

    def _read(self, name: str) -> None:
        for kind, peak_bytes in (
            ("allocated", torch.cuda.max_memory_allocated()),
            ("reserved", torch.cuda.max_memory_reserved()),
        ):
            self._measured[f"{name}_{kind}_bytes"] = max(0, peak_bytes - self.base_bytes)


def _cache_hits() -> int:
    from torch._dynamo.utils import counters

    found = counters["inductor"].get("fxgraph_cache_hit", 0) + counters["aot_autograd"].get("autograd_cache_hit", 0)
    return int(found)
