"""CUDA's autocast on any host: `torch.autocast("cuda")` switches itself off where CUDA is unavailable."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def cuda_autocast(dtype: torch.dtype, *, device_type: str = "cuda") -> Iterator[None]:
    """Enable CUDA's autocast lists and its cache of cast weights inside the block.

    With `device_type="cpu"`, for a step traced there, it is the CPU's lists: they keep fewer operators in float32.
    """
    was_enabled, was_dtype = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)
    torch.set_autocast_enabled(device_type, True)
    torch.set_autocast_dtype(device_type, dtype)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        torch.set_autocast_enabled(device_type, was_enabled)
        torch.set_autocast_dtype(device_type, was_dtype)
