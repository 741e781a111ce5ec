"""What more architectures would buy: the error on the frozen split against the number of architectures fitted on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from peakcast.training.dataset import Dataset
from peakcast.training.fit import fit_pair
from peakcast.training.fit_settings import FitSettings

# Of the architectures there are; the last point is all of them.
SHARES: Final = (0.125, 0.25, 0.5, 1.0)
# Subsets drawn for each share below 1: a single one may be lucky.
REPEATS: Final = 2


@dataclass(frozen=True, slots=True)
class Point:
    """The errors of one fit on the frozen split, over all plans and quantities, percent."""

    architectures: int
    records: int
    repeat: int
    pair_mean_percent: float
    pair_median_percent: float
    compiled_mean_percent: float
    eager_mean_percent: float


def learning_curve(
    data: Dataset,
    frozen: Dataset,
    settings: FitSettings,
    *,
    jobs: int = 2,
    cache: Path | None = None,
    told: Callable[[str], None] = lambda _: None,
) -> tuple[list[Point], Point]:
    """Return a point for each fit, and the simulation's errors as the point of no architecture at all."""
    names = sorted(set(data.architectures))
    points = []
    for share in SHARES:
        for repeat in range(REPEATS if share < 1.0 else 1):
            order = np.random.default_rng([settings.seed, repeat]).permutation(len(names))
            chosen = {names[index] for index in order[: max(round(share * len(names)), settings.inner_folds)]}
            part = data.where([name in chosen for name in data.architectures])
            told(f"{len(chosen)} architectures, subset {repeat + 1}")
            pair = fit_pair(part, replace(settings, seed=settings.seed + repeat), jobs=jobs, cache=cache)
            expected = pair.forecast(frozen.examples, 0.05).expected_PQ
            points.append(_point(frozen, expected, len(chosen), len(part), repeat))
    return points, _point(frozen, frozen.priors, 0, 0, 0)


def _point(frozen: Dataset, expected: np.ndarray, architectures: int, records: int, repeat: int) -> Point:
    error = np.abs(expected / frozen.measured_PQ - 1.0) * 100.0
    eager_P = np.array([example.is_eager for example in frozen.examples])
    return Point(
        architectures=architectures,
        records=records,
        repeat=repeat,
        pair_mean_percent=float(np.nanmean(error)),
        pair_median_percent=float(np.nanmedian(error)),
        compiled_mean_percent=float(np.nanmean(error[~eager_P])) if (~eager_P).any() else float("nan"),
        eager_mean_percent=float(np.nanmean(error[eager_P])) if eager_P.any() else float("nan"),
    )
