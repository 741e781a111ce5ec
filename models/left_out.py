"""What a bound would miss of an architecture left out, for every height the bound may have.

Bounds allow records of so and so many architectures above themselves, counted in masses: an architecture of ten
records has three of them above a bound, that is 0.3. Leave each architecture out in turn, draw the bound that allows
the same mass among the others, and see what share of the one left out lies above: the mean is what such a bound misses
of a new one. With one record each it is what conformal prediction says, within 1 / K. With many each it is less, for
that reckons with all records of the new architecture lying above, and few do.

Shapes: R records, ascending by score.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peakcast.models.example import Floats

# Masses are sums of 1 / n: equal ones must compare as equal.
_HAIR = 1e-9


def mass_above(mass_R: Floats) -> Floats:
    """Return the mass that lies above each record [R]."""
    above: Floats = mass_R.sum() - np.cumsum(mass_R)
    return above


def missed_when_left_out(scores_R: Floats, group_R: NDArray[np.int64]) -> Floats:
    """Return, for a bound at each score, the share missed of an architecture left out, [R]. It never rises."""
    sizes = np.bincount(group_R)
    mass_R = 1.0 / sizes[group_R]
    allowed_R = mass_above(mass_R) + _HAIR
    missed_R = np.zeros(len(scores_R))
    for group, size in enumerate(sizes):
        others = group_R != group
        if not others.any():
            return np.ones(len(scores_R))
        # The first of the others with no more above it than allowed; masses above descend.
        place_R = others.sum() - np.searchsorted(mass_above(mass_R[others])[::-1], allowed_R, side="right")
        bound_R = scores_R[others][np.minimum(place_R, others.sum() - 1)]
        missed_R += (size - np.searchsorted(scores_R[~others], bound_R, side="right")) / size
    return np.minimum.accumulate(missed_R / len(sizes))
