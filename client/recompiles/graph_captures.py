"""A cap on CUDA graph captures: each input size is one more graph, with a pool of memory of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Self

import torch._inductor.config as inductor_config


class CaptureCap(tuple[Any, ...]):  # noqa: SLOT001 - a tuple subclass has its fields in a dict
    """The sizes that may be captured: the first `limit` to come. Others run the same compiled code without a graph.

    Inductor asks `sizes in torch._inductor.config.triton.cudagraph_capture_sizes` before each run of a graph, with the
    graph's integer inputs, or None where all its sizes are fixed. A tuple, since that is the option's type.

    Raises:
        ValueError: for a limit below 0.
    """

    def __new__(cls, limit: int) -> Self:
        """Make a cap that has seen no sizes yet."""
        if limit < 0:
            raise ValueError(f"the number of captured sizes must be 0 or more, got {limit}")
        made = super().__new__(cls, ())
        made.limit = limit
        made.captured = set()
        made.refused = 0
        return made

    limit: int
    captured: set[Any]
    refused: int

    def __contains__(self, sizes: object) -> bool:
        """Say whether to capture; a new size counts where there is room for one more."""
        if sizes is None or sizes in self.captured:
            return True
        if len(self.captured) >= self.limit:
            self.refused += 1
            return False
        self.captured.add(sizes)
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the empty tuple: inductor's cache key is made of its options, and must not change as sizes come."""
        return tuple, ()


@contextlib.contextmanager
def capped_captures(limit: int) -> Iterator[CaptureCap | None]:
    """Cap the sizes captured while the block runs; None where this torch has no such option."""
    if not hasattr(inductor_config.triton, "cudagraph_capture_sizes"):
        yield None
        return
    cap = CaptureCap(limit)
    before = inductor_config.triton.cudagraph_capture_sizes
    inductor_config.triton.cudagraph_capture_sizes = cap
    try:
        yield cap
    finally:
        inductor_config.triton.cudagraph_capture_sizes = before
