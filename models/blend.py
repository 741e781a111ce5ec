"""How the corrections of the heads, three of the trees and two of the LSTM, are joined and held back.

Most priors are within 1 %: a correction must not spoil them. So each is shrunk: values within `threshold` of zero
become zero, larger ones lose it, and what is left is taken times `strength`. The numbers of each family, task and
quantity are chosen on out-of-fold corrections.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, product
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from peakcast.featurizer.vocabulary import QUANTITIES
from peakcast.models.example import Example, Floats
from peakcast.models.heads import ALL_HEADS, LIMITS

FAMILIES = ("eager", "compiled")
# One error of 100 % must not outweigh all the others when the numbers are chosen.
_ERROR_CAP = 0.5
TASKS = ("training", "inference")
# Standard errors that a gain must exceed: the best of a hundred settings gains one by chance alone.
_SURE = 2.0
# Share of the architectures, those that gain most, without which there must still be a gain: a rule, not an anecdote.
_TRIMMED = 0.03
# Fewer rows than this choose noise.
_MIN_ROWS = 20
# A quantity that fewer of the records have teaches its heads noise, and is left to the simulation: `required`, which
# one record in ten has, was made worse on records held out by numbers of its own and by those of the others.
_MIN_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Shrink:
    """The numbers of one family, task and quantity: the shares of the heads, the dead zone and the strength."""

    shares: tuple[float, ...] = ()  # in the order of ALL_HEADS; heads beyond the last have none
    threshold: float = 0.0
    strength: float = 0.0

    def apply(self, corrections_HR: Floats) -> Floats:
        """Return one relative correction [R] from those of the H heads."""
        joint: Floats = np.dot(np.array([self.shares]), corrections_HR[: len(self.shares)])[0]
        shrunk = np.sign(joint) * np.maximum(np.abs(joint) - self.threshold, 0.0)
        return np.clip(self.strength * shrunk, *LIMITS)


def _even(chosen: Sequence[int]) -> tuple[float, ...]:
    return tuple(1.0 / len(chosen) if head in chosen else 0.0 for head in range(max(chosen) + 1))


def grid(heads: Sequence[str] = ALL_HEADS) -> list[Shrink]:
    """Return the settings that are tried: each of the heads alone, two and three of them in equal parts."""
    places = [ALL_HEADS.index(head) for head in heads]
    shares = [_even(chosen) for count in (1, 2, 3) for chosen in combinations(places, count)]
    return [
        Shrink(share, threshold, strength)
        for share, threshold, strength in product(shares, (0.0, 0.002, 0.005, 0.01, 0.02, 0.05), (0.5, 0.75, 1.0))
    ]


@dataclass(frozen=True, slots=True)
class Blend:
    """One `Shrink` for each "family/task/quantity"."""

    shrinks: Mapping[str, Shrink]

    def apply(self, examples: Sequence[Example], corrections_HPQ: Floats) -> Floats:
        """Return expected bytes [P, Q] from the priors and the heads' corrections."""
        prior = np.stack([example.prior_bytes for example in examples])
        joint = np.zeros_like(prior)
        for cell, rows in _cells(examples):
            if not rows.any():
                continue
            for column, quantity in enumerate(QUANTITIES):
                joint[rows, column] = self.shrinks[f"{cell}/{quantity}"].apply(corrections_HPQ[:, rows, column])
        return prior * (1.0 + joint)

    @classmethod
    def fit(
        cls,
        examples: Sequence[Example],
        measured_PQ: Floats,
        corrections_HPQ: Floats,
        groups: Sequence[str],
        *,
        heads: Sequence[str] | None = None,
    ) -> Self:
        """Choose the numbers on out-of-fold corrections.

        `measured_PQ` is NaN where nothing was measured; `groups` are the architectures, which count alike; `heads`
        are those that may be used (default: all that say something).
        """
        tried = grid(heads or ALL_HEADS[: len(corrections_HPQ)])
        prior = np.stack([example.prior_bytes for example in examples])
        labels = np.unique(np.array(groups), return_inverse=True)[1]
        shrinks: dict[str, Shrink] = {}
        for (cell, of_cell), column in product(_cells(examples), range(len(QUANTITIES))):
            rows = of_cell & np.isfinite(measured_PQ[:, column])
            name = f"{cell}/{QUANTITIES[column]}"
            if rows.sum() < _MIN_SHARE * of_cell.sum():
                shrinks[name] = Shrink()
            else:
                truth = measured_PQ[rows, column] / prior[rows, column]
                shrinks[name] = _choose(truth, corrections_HPQ[:, rows, column], labels[rows], tried)
        return cls(shrinks)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {name: asdict(shrink) for name, shrink in self.shrinks.items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_dict` gave."""
        return cls({name: Shrink(**{**values, "shares": tuple(values["shares"])}) for name, values in data.items()})


def _cells(examples: Sequence[Example]) -> list[tuple[str, NDArray[np.bool_]]]:
    """Return every "family/task" with its rows [P]."""
    is_eager = np.array([example.is_eager for example in examples])
    task = np.array([example.task for example in examples])
    return [
        (f"{family}/{task_name}", (is_eager == (family == "eager")) & (task == task_name))
        for family, task_name in product(FAMILIES, TASKS)
    ]


def _choose(truth: Floats, corrections_HR: Floats, group: NDArray[np.int64], tried: Sequence[Shrink]) -> Shrink:
    """Return the best of those tried: smallest mean plus median error, a median no worse than the prior's, a sure gain.

    Where no gain is sure, nothing is corrected.
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
    for shrink in tried:
        errors = np.abs((1.0 + shrink.apply(corrections_HR)) / truth - 1.0)
        # A hair of 0.01 %: exact priors must not bar a gain elsewhere over rounding.
        if np.median(errors) > np.median(nothing) + 1e-4:
            continue
        loss = float(by_group(errors).mean() + np.median(errors))
        gain = by_group(nothing) - by_group(errors)
        if loss < best_loss and _is_sure(gain):
            best, best_loss = shrink, loss
    return best


def _is_sure(gain: Floats) -> bool:
    """Tell whether the mean gain over architectures exceeds its error, and stays one without those that gain most."""
    if len(gain) < _MIN_ROWS // 2:
        return False
    error = float(gain.std(ddof=1)) / len(gain) ** 0.5
    rest = np.sort(gain)[: -max(1, round(_TRIMMED * len(gain)))]
    return bool(gain.mean() > _SURE * error and rest.mean() > 0.0)
