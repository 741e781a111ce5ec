"""Whether loops run compiled: those of the featurizer and the walk through the trees."""

from __future__ import annotations

import numpy as np

from peakcast.featurizer import compiled
from peakcast.models import forest


def load() -> bool:
    """Compile all loops, or read them from numba's cache, and use them from here on. False: numba is not installed."""
    if not compiled.load():
        return False
    from peakcast.models.forest_kernel import walk

    forest.walks[:] = [walk]
    forest.Forest.single_leaf().predict(np.zeros((1, 1)))
    return True


def unload() -> None:
    """Answer in Python again."""
    compiled.unload()
    forest.walks.clear()
