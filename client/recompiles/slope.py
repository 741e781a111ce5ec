"""A slow leak told from noise: how many bytes more a step keeps alive, and whether that is sure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

# Fewer points show no trend that a change of batch could not make.
LEAST_SAMPLES: Final = 16
# 128 points have 8,128 pairs: a median in a tenth of a millisecond.
WINDOW_SAMPLES: Final = 128
# One false alarm in a thousand windows of pure noise: the one-sided normal quantile of 0.999.
_QUANTILE: Final = 3.09
# Less a step than a page costs a job of a million steps less than 4 GiB, and is no tensor.
LEAST_BYTES_PER_STEP: Final = 4096


@dataclass(frozen=True, slots=True)
class Slope:
    """The trend of the bytes alive. `sure_bytes_per_step` is its lower bound; `leaks` says whether that is a leak."""

    bytes_per_step: float
    sure_bytes_per_step: float
    samples: int

    @property
    def leaks(self) -> bool:
        """Say whether the bytes grow for sure, and by enough to matter."""
        return self.sure_bytes_per_step >= LEAST_BYTES_PER_STEP


def slope(steps_N: Sequence[float], bytes_N: Sequence[float]) -> Slope:
    """Return the Theil-Sen slope and its one-sided lower bound at 99.9 %, by Kendall's statistic.

    One jump, a sawtooth and outliers leave the median of all pairs' slopes alone; a least-squares line does not.

    Args:
        steps_N: the step of each sample, growing.
        bytes_N: the bytes alive after that step.

    Returns:
        Zero slopes for fewer than 16 samples.

    Raises:
        ValueError: if the lengths differ.

    Source: Sen, "Estimates of the regression coefficient based on Kendall's tau", JASA 63 (1968); Gilbert,
    "Statistical methods for environmental pollution monitoring" (1987), 16.5.
    """
    x, y = np.asarray(steps_N, dtype=np.float64), np.asarray(bytes_N, dtype=np.float64)
    if len(x) != len(y):
        raise ValueError(f"each sample needs a step and bytes, got {len(x)} and {len(y)}")
    count = len(x)
    if count < LEAST_SAMPLES:
        return Slope(0.0, 0.0, count)
    left, right = np.triu_indices(count, k=1)
    slopes_P = np.sort((y[right] - y[left]) / (x[right] - x[left]))
    _, ties = np.unique(y, return_counts=True)
    # Equal values carry no order, and make the spread of Kendall's statistic smaller.
    variance = (count * (count - 1) * (2 * count + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())) / 18
    rank = int((len(slopes_P) - _QUANTILE * np.sqrt(variance)) / 2)
    return Slope(float(np.median(slopes_P)), float(slopes_P[max(rank, 0)]), count)


class SlopeWatch:
    """Keep the last samples and tell their slope."""

    def __init__(self, samples: int = WINDOW_SAMPLES) -> None:
        if samples < LEAST_SAMPLES:
            raise ValueError(f"samples must be {LEAST_SAMPLES} or more, got {samples}")
        self._steps: deque[int] = deque(maxlen=samples)
        self._bytes: deque[int] = deque(maxlen=samples)

    def add(self, step: int, live_bytes: int) -> None:
        """Take in the bytes alive after a step."""
        self._steps.append(step)
        self._bytes.append(live_bytes)

    @property
    def first(self) -> tuple[int, int]:
        """Return step and bytes of the oldest sample kept."""
        return self._steps[0], self._bytes[0]

    def slope(self) -> Slope:
        """Return the slope over the samples kept."""
        return slope(self._steps, self._bytes)
