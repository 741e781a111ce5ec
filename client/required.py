"""Find the smallest memory limit under which steps run, by bisection over real runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

PRECISION: Final = 0.005


def smallest_limit_bytes(
    steps: Callable[[], Any], *, fresh: Callable[[], None], low_bytes: int, high_bytes: int
) -> int | None:
    """Bisect between what is known to be needed and what is known to be enough.

    The limit is `torch.cuda.set_per_process_memory_fraction`, which bounds what the caching allocator reserves. The
    allocator gives cached blocks back before it fails, so the answer lies below the reserved peak.

    Args:
        steps: runs a few steps.
        fresh: brings state and allocator back to where they were before the first step; called before each probe.
        low_bytes: no limit below this can be enough (the allocated peak).
        high_bytes: this is enough (the reserved peak).

    Returns:
        The smallest limit that was seen to be enough, within 0.5 % of one that was not; None where memory stayed
        held after a failed probe, so that later probes would have measured that too.
    """
    total_bytes = torch.cuda.get_device_properties(0).total_memory
    fresh()
    start_bytes = torch.cuda.memory_allocated()
    try:
        while high_bytes - low_bytes > PRECISION * high_bytes:
            middle_bytes = (low_bytes + high_bytes) // 2
            fresh()
            if torch.cuda.memory_allocated() > start_bytes:
                return None
            torch.cuda.set_per_process_memory_fraction(min(1.0, middle_bytes / total_bytes), 0)
            if _runs(steps):
                high_bytes = middle_bytes
            else:
                low_bytes = middle_bytes
            torch.cuda.set_per_process_memory_fraction(1.0, 0)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, 0)
    return high_bytes


def _runs(steps: Callable[[], Any]) -> bool:
    try:
        steps()
    except RuntimeError:
        # Out of memory, or a library that could not get its workspace: under this limit the step does not run.
        return False
    return True
