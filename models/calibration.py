"""Upper bounds that hold: conformal quantiles of what the predictor got wrong on architectures it had not seen.

Architectures are exchangeable, records of one architecture are not independent of each other. So the quantile is that
of hierarchical conformal prediction (Dunn, Wasserman & Ramdas 2022; Lee, Barber & Willett 2023): each of K
architectures carries the mass 1 / (K + 1) spread evenly over its records, and the last 1 / (K + 1) lies at infinity.
With one record each that is the usual ceil((1 - risk)(K + 1))-th smallest score.

A score is (measured - expected) / scale, one-sided. Where risk < 1 / (K + 1) the honest conformal bound is infinite;
a finite one then needs an assumption, made here and named in the answer (`support`): beyond the largest score the
tail is no heavier than Pareto with index 1 / `TAIL_INDEX`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# A Pareto tail of index 2, the edge of having no variance: a risk 4 times finer doubles the largest score.
TAIL_INDEX = 0.5
# The largest score counts as at least this many scales where the tail is extended: among few architectures the
# largest seen may be small by luck.
TAIL_FLOOR = 3.0


@dataclass(frozen=True, slots=True)
class Quantile:
    """A bound's multiplier of the scale. `support` says whether the data gave it or the tail assumption did."""

    value: float
    support: Literal["conformal", "tail"]
    groups: int


@dataclass(frozen=True, slots=True, eq=False)
class ScoreTable:
    """The scores of one class of records: ascending, with the mass that lies above each (infinity's included)."""

    scores: Floats  # [R]
    mass_above: Floats  # [R]
    groups: int

    @classmethod
    def of(cls, scores: Floats, groups: Sequence[Hashable]) -> Self:
        """Sort scores, one group label each."""
        sizes = Counter(groups)
        mass = np.array([1.0 / (sizes[group] * (len(sizes) + 1)) for group in groups])
        order = np.argsort(scores, kind="stable")
        return cls(np.asarray(scores, float)[order], 1.0 - np.cumsum(mass[order]), len(sizes))

    def conformal(self, risk: float) -> float:
        """Return the smallest score q with P(new score > q) <= risk; inf where `risk` < 1 / (groups + 1)."""
        allowed = int(np.searchsorted(self.mass_above[::-1], risk + 1e-12, side="right"))  # the last so many scores
        return float(self.scores[-allowed]) if allowed else float("inf")

    def quantile(self, risk: float) -> Quantile:
        """Return the conformal quantile, or beyond what the data supports the extended tail.

        Raises:
            ValueError: if `risk` is not strictly between 0 and 1.
        """
        if not 0.0 < risk < 1.0:
            raise ValueError(f"risk must lie between 0 and 1, exclusive (got {risk})")
        value = self.conformal(risk)
        if np.isfinite(value):
            return Quantile(value, "conformal", self.groups)
        largest = max(float(self.scores.max(initial=0.0)), TAIL_FLOOR)
        return Quantile(largest * (1.0 / ((self.groups + 1) * risk)) ** TAIL_INDEX, "tail", self.groups)


_NOTHING_MEASURED = ScoreTable(np.zeros(0), np.zeros(0), 0)


@dataclass(frozen=True, slots=True)
class Calibration:
    """Score tables by class (Mondrian): a row names its classes, and the finest with enough groups answers.

    `min_groups`: 19 is the least that supports a risk of 5 %.
    """

    tables: Mapping[str, ScoreTable]
    min_groups: int = 19

    @classmethod
    def fit(
        cls,
        scores: Floats,
        groups: Sequence[Hashable],
        class_names: Sequence[Sequence[str]],
        *,
        min_groups: int = 19,
    ) -> Self:
        """File each score under all of its class names."""
        rows: dict[str, list[int]] = defaultdict(list)
        for row, names in enumerate(class_names):
            for name in names:
                rows[name].append(row)
        tables = {name: ScoreTable.of(scores[rows[name]], [groups[r] for r in rows[name]]) for name in sorted(rows)}
        return cls(tables, min_groups)

    def quantile(self, class_names: Sequence[str], risk: float) -> Quantile:
        """Return the multiplier for a row; where no class has enough groups the coarsest one known answers."""
        known = [self.tables[name] for name in class_names if name in self.tables] or [_NOTHING_MEASURED]
        return next((table for table in known if table.groups >= self.min_groups), known[-1]).quantile(risk)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; `from_dict` reads them back to the bit."""
        tables = {
            name: {"scores": table.scores.tolist(), "mass_above": table.mass_above.tolist(), "groups": table.groups}
            for name, table in self.tables.items()
        }
        return {"min_groups": self.min_groups, "tables": tables}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_dict` gave."""
        tables = {
            name: ScoreTable(np.array(t["scores"], float), np.array(t["mass_above"], float), int(t["groups"]))
            for name, t in data["tables"].items()
        }
        return cls(tables, int(data["min_groups"]))
