"""The walk of `forest` once more, as a loop that numba compiles: the same sums, added in the same order.

Nothing imports this module but `compiled.load`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peakcast.featurizer.jit import entry
from peakcast.models.example import Floats

Places = NDArray[np.intp]
Branches = NDArray[np.int32]
Flags = NDArray[np.bool_]


@entry
def walk(
    features_RF: Floats,
    asks: tuple[Places, Floats],
    onward: tuple[Branches, Branches],
    of_nan: tuple[Flags, Flags],
    of_category: tuple[Branches, Flags],
    ends: tuple[Branches, Floats],
) -> Floats:
    """Return the sum over the trees for each row [R]; the arguments are the columns of a `Forest` in its order."""
    feature, threshold = asks
    left, right = onward
    nan_left, nan_as_zero = of_nan
    categorical, goes_left = of_category
    root, value = ends
    nodes, last = len(feature), goes_left.shape[1] - 1
    sums = np.zeros(len(features_RF))
    for row in range(len(features_RF)):
        for start in root:
            place = start
            while place < nodes:
                asked = features_RF[row, feature[place]]
                if categorical[place] >= 0:
                    is_known = -1.0 < asked < last
                    is_left = is_known and goes_left[categorical[place], int(asked)]
                elif np.isnan(asked):
                    is_left = threshold[place] >= 0.0 if nan_as_zero[place] else nan_left[place]
                else:
                    is_left = asked <= threshold[place]
                place = left[place] if is_left else right[place]
            sums[row] += value[place - nodes]
    return sums
