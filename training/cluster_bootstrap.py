"""Shares over records that are not independent: intervals come from resampled architectures.

Field & Welsh, "Bootstrapping clustered data", JRSS B 2007. Shapes: P records, A architectures, D draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from peakcast.models.example import Floats

_DRAWS: Final = 1000
_LEVEL: Final = 0.95


@dataclass(frozen=True, slots=True)
class Share:
    """A share in percent, and its 95 % interval."""

    percent: float
    low_percent: float
    high_percent: float


def by_record(amount_P: Floats, of_P: Floats, architectures: Sequence[str], *, seed: int = 0) -> Share | None:
    """Return the sum of `amount_P` as a share of the sum of `of_P`; None of nothing."""
    if not of_P.sum() > 0:
        return None
    place = _places(architectures)
    amount_A, of_A = np.bincount(place, weights=amount_P), np.bincount(place, weights=of_P)
    draws_DA = _draws(len(of_A), seed)
    drawn_D, of_D = amount_A[draws_DA].sum(axis=1), of_A[draws_DA].sum(axis=1)
    return _share(float(amount_P.sum() / of_P.sum()), drawn_D[of_D > 0] / of_D[of_D > 0])


def by_architecture(amount_P: Floats, architectures: Sequence[str], *, seed: int = 0) -> Share | None:
    """Return the mean over architectures of each one's mean; None of nothing."""
    if not len(amount_P):
        return None
    place = _places(architectures)
    mean_A = np.bincount(place, weights=amount_P) / np.bincount(place)
    return _share(float(mean_A.mean()), mean_A[_draws(len(mean_A), seed)].mean(axis=1))


def _places(architectures: Sequence[str]) -> NDArray[np.int64]:
    return np.unique(np.array(architectures), return_inverse=True)[1].astype(np.int64)


def _draws(architectures: int, seed: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, architectures, (_DRAWS, architectures))


def _share(share: float, drawn_D: Floats) -> Share:
    low, high = np.quantile(drawn_D, [(1.0 - _LEVEL) / 2.0, (1.0 + _LEVEL) / 2.0])
    return Share(100.0 * share, 100.0 * float(low), 100.0 * float(high))
