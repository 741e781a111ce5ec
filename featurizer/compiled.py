"""Whether the allocator and the fusion rules run as compiled loops. numba is optional: Python gives the same, slower.

Nothing is compiled unasked: reading numba's cache takes about half a second and filling it some ten, once for each
installation, and a single prediction is over before that. A process that answers many calls `load`, as the service
does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from peakcast.featurizer.allocator_kernel import Program, Tensors
    from peakcast.featurizer.fusion_graph import GraphColumns
    from peakcast.featurizer.trace import Int32


class Replay(Protocol):
    """What `allocator_kernel.replay` takes and gives."""

    def __call__(
        self, tensors: Tensors, first: Program, steady: Program, *, steps: int, tolerance: float
    ) -> tuple[tuple[int, int, int, int, int, int], int] | None:
        """Return the fields of `steps.Peaks`, and the required bytes; None where the steps take too much for them."""


class Fuse(Protocol):
    """What `fusion_kernel.fuse` takes."""

    def __call__(
        self,
        graph: GraphColumns,
        segments: Iterable[tuple[int, int]],
        lifetimes: tuple[Int32, Int32, Int32, Int32],
        limits: tuple[int, ...],
        most_looks: int,
    ) -> None:
        """Note what the compiler makes of each segment."""


_loaded: list[tuple[Replay, Fuse]] = []  # one at most


def load() -> bool:
    """Compile the loops, or read them from numba's cache, and use them from here on. False: numba is not installed."""
    if _loaded:
        return True
    try:
        from peakcast.featurizer.allocator_kernel import replay
        from peakcast.featurizer.fusion_kernel import fuse, warm_up
    except ImportError:
        return False
    nothing = np.zeros(0, np.int64)
    program = (np.array([0]), nothing, np.zeros((2, 0), np.int64), nothing)
    replay((np.array([1]), np.array([False])), program, program, steps=1, tolerance=1.0)
    warm_up()
    _loaded[:] = [(replay, fuse)]
    return True


def unload() -> None:
    """Answer in Python again."""
    _loaded.clear()


def loaded() -> Replay | None:
    """Return the allocator's compiled loops, None where they were not loaded."""
    return _loaded[0][0] if _loaded else None


def loaded_fuse() -> Fuse | None:
    """Return the compiled loops of the fusion rules, None where they were not loaded."""
    return _loaded[0][1] if _loaded else None
