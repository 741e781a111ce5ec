"""How the two corrections of the trees, a ratio and bytes, are joined and held back before they touch the prior.

Most priors are within 1 %: a correction must not spoil them. So each is shrunk: values within `threshold` of zero
become zero, larger ones lose it, and what is left is taken times `strength`. The three numbers of each family and
quantity are chosen on out-of-fold corrections.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from peakcast.featurizer.vocabulary import QUANTITIES
from peakcast.models.example import Example, Floats

# Additive corrections are learned as asinh(bytes / UNIT): linear below a workspace's size, logarithmic above.
UNIT_BYTES = float(16 << 20)
# Beyond these the simulation has failed altogether, and a correction drawn from other graphs will not mend it.
LIMITS = (-0.4, 1.5)
FAMILIES = ("eager", "compiled")
# One error of 100 % must not outweigh all the others when the numbers are chosen.
_ERROR_CAP = 0.5
# Fewer rows than this choose noise: such a quantity takes the numbers of steady_allocated, which every record has.
_MIN_ROWS = 20


@dataclass(frozen=True, slots=True)
class Shrink:
    """The numbers of one family and quantity: the share of the ratio, the dead zone and the strength."""

    ratio_share: float = 0.5
    threshold: float = 0.0
    strength: float = 0.0

    def corrections(self, ratio: Floats, relative_bytes: Floats) -> Floats:
        """Return relative corrections from the trees' two."""
        joint = self.ratio_share * ratio + (1.0 - self.ratio_share) * relative_bytes
        shrunk = np.sign(joint) * np.maximum(np.abs(joint) - self.threshold, 0.0)
        return np.clip(self.strength * shrunk, *LIMITS)


_GRID = [
    Shrink(share, threshold, strength)
    for share, threshold, strength in product(
        (0.0, 0.25, 0.5, 0.75, 1.0), (0.0, 0.002, 0.005, 0.01, 0.02), (0.5, 0.75, 1.0)
    )
]


@dataclass(frozen=True, slots=True)
class Blend:
    """One `Shrink` for each "family/quantity"."""

    shrinks: Mapping[str, Shrink]

    def apply(self, examples: Sequence[Example], ratio_PQ: Floats, additive_PQ: Floats) -> Floats:
        """Return expected bytes [P, Q] from the priors and the trees' outputs."""
        prior = np.stack([example.prior_bytes for example in examples])
        relative = relative_bytes(additive_PQ, prior)
        eager = np.array([example.is_eager for example in examples])
        corrections = np.zeros_like(prior)
        for family, column in product(FAMILIES, range(len(QUANTITIES))):
            rows = eager if family == "eager" else ~eager
            shrink = self.shrinks[f"{family}/{QUANTITIES[column]}"]
            corrections[rows, column] = shrink.corrections(ratio_PQ[rows, column], relative[rows, column])
        return prior * (1.0 + corrections)

    @classmethod
    def fit(
        cls,
        examples: Sequence[Example],
        measured_PQ: Floats,
        ratio_PQ: Floats,
        additive_PQ: Floats,
        groups: Sequence[str],
    ) -> Self:
        """Choose the numbers on out-of-fold outputs.

        `measured_PQ` is NaN where nothing was measured; `groups` are the architectures, which count alike.
        """
        prior = np.stack([example.prior_bytes for example in examples])
        relative = relative_bytes(additive_PQ, prior)
        eager = np.array([example.is_eager for example in examples])
        labels = np.unique(np.array(groups), return_inverse=True)[1]
        shrinks: dict[str, Shrink] = {}
        for family, column in product(FAMILIES, range(len(QUANTITIES))):
            rows = (eager if family == "eager" else ~eager) & np.isfinite(measured_PQ[:, column])
            if column > 0 and rows.sum() < _MIN_ROWS:
                shrinks[f"{family}/{QUANTITIES[column]}"] = shrinks[f"{family}/{QUANTITIES[0]}"]
                continue
            shrinks[f"{family}/{QUANTITIES[column]}"] = _choose(
                measured_PQ[rows, column] / prior[rows, column],
                ratio_PQ[rows, column],
                relative[rows, column],
                labels[rows],
            )
        return cls(shrinks)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {name: asdict(shrink) for name, shrink in self.shrinks.items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_dict` gave."""
        return cls({name: Shrink(**values) for name, values in data.items()})


def relative_bytes(additive_PQ: Floats, prior_PQ: Floats) -> Floats:
    """Return the additive outputs (asinh units) relative to the prior."""
    return np.sinh(np.clip(additive_PQ, -12.0, 12.0)) * UNIT_BYTES / prior_PQ


def _choose(truth: Floats, ratio: Floats, relative: Floats, group: NDArray[np.int64]) -> Shrink:
    """Return the grid's best: smallest mean plus median error, a median no worse than the prior's, and a gain for sure.

    For sure: the mean gain over architectures exceeds its standard error. Otherwise nothing is corrected.
    """
    if len(truth) < _MIN_ROWS:
        return Shrink()
    nothing = np.abs(1.0 / truth - 1.0)
    size: Floats = np.bincount(group).astype(np.float64)
    present = size > 0

    def by_group(errors: Floats) -> Floats:
        total = np.bincount(group, weights=np.minimum(errors, _ERROR_CAP))[present].astype(np.float64)
        mean: Floats = total / size[present]
        return mean

    best, best_loss = Shrink(), float(by_group(nothing).mean() + np.median(nothing))
    for shrink in _GRID:
        errors = np.abs((1.0 + shrink.corrections(ratio, relative)) / truth - 1.0)
        # A hair of 0.01 %: exact priors must not bar a gain elsewhere over rounding.
        if np.median(errors) > np.median(nothing) + 1e-4:
            continue
        loss = float(by_group(errors).mean() + np.median(errors))
        gain = by_group(nothing) - by_group(errors)
        if loss < best_loss and gain.mean() > _standard_error(gain):
            best, best_loss = shrink, loss
    return best


def _standard_error(values: Floats) -> float:
    return float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else float("inf")
