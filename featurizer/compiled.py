"""Whether the allocator's loops run compiled. numba is optional: without it Python gives the same numbers, slower.

Nothing is compiled unasked: reading numba's cache takes about half a second and filling it some ten, once for each
installation, and a single prediction is over before that. A process that answers many calls `load`, as the service
does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from peakcast.featurizer.allocator_kernel import Program
    from peakcast.featurizer.trace import Int64


class Replay(Protocol):
    """What `allocator_kernel.replay` takes and gives."""

    def __call__(
        self, units: Int64, first: Program, steady: Program, *, steps: int, tolerance: float
    ) -> tuple[tuple[int, int, int, int, int, int], int]:
        """Return the fields of `steps.Peaks`, and the required bytes."""


_loaded: list[Replay] = []  # one at most


def load() -> bool:
    """Compile the loops, or read them from numba's cache, and use them from here on. False: numba is not installed."""
    if _loaded:
        return True
    try:
        from peakcast.featurizer.allocator_kernel import replay
    except ImportError:
        return False
    nothing = np.zeros(0, np.int64)
    program = (np.array([0]), nothing, np.zeros((2, 0), np.int64), nothing)
    replay(np.array([1]), program, program, steps=1, tolerance=1.0)
    _loaded[:] = [replay]
    return True


def unload() -> None:
    """Answer in Python again."""
    _loaded.clear()


def loaded() -> Replay | None:
    """Return the compiled loops, None where they were not loaded."""
    return _loaded[0] if _loaded else None
