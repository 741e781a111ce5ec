"""Upper bounds that hold: conformal quantiles of what the predictor got wrong on architectures it had not seen.

Architectures are exchangeable, records of one architecture are not independent of each other. So the quantile is that
of hierarchical conformal prediction (Dunn, Wasserman & Ramdas 2022; Lee, Barber & Willett 2023): each of K
architectures carries the mass 1 / (K + 1) spread evenly over its records, and the last 1 / (K + 1) lies at infinity.
With one record each that is the usual ceil((1 - risk)(K + 1))-th smallest score. (Conformal risk control, Angelopoulos
et al. 2024, gives the same for the share missed of an architecture.)

The mass at infinity is the price of assuming nothing: the new architecture may have all its records above the rest.
Near risk 1 / (K + 1) nothing else is allowed above, and the bound is the worst record ever seen. From 2 / (K + 1) up
it is paid. Below, the bound is that which misses no more than the risk of architectures left out in turn
(`models/left_out.py`), as far as two of them tell; beyond that, coarser classes are asked, and in the end a tail no
heavier than Pareto with index 1 / `TAIL_INDEX` is assumed. The answer names which (`support`).

A score is (measured - expected) / scale, one-sided: no bound lies below what is expected, scores below 0 count as 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self

import numpy as np

from peakcast.models.example import Floats
from peakcast.models.left_out import mass_above, missed_when_left_out

# Conformal from the risk on that leaves room for so many architectures, the one at infinity among them.
CONFORMAL_FROM = 2
# Fewer architectures left out in turn do not tell how unlike each other architectures are.
MIN_GROUPS = 19
# A Pareto tail of index 2, the edge of having no variance: a risk 4 times finer doubles the largest score.
TAIL_INDEX = 0.5
# The largest score counts as at least this many scales where the tail is extended: among few architectures the
# largest seen may be small by luck.
TAIL_FLOOR = 3.0


@dataclass(frozen=True, slots=True)
class Quantile:
    """A bound's multiplier of the scale, and what it rests on.

    `conformal`: proven for architectures drawn like those measured; `left_out`: what was seen when each of them was
    left out; `tail`: the tail assumption.
    """

    value: float
    support: Literal["conformal", "left_out", "tail"]
    groups: int


@dataclass(frozen=True, slots=True, eq=False)
class ScoreTable:
    """The scores of one class of records: ascending, with what lies above each and what it misses when left out."""

    scores: Floats  # [R]
    mass_above: Floats  # [R], infinity's included
    missed: Floats  # [R], see models/left_out.py
    limit: float  # the second largest of the architectures' largest scores: two of them tell as far as here
    groups: int

    @classmethod
    def of(cls, scores: Floats, groups: Sequence[Hashable]) -> Self:
        """Sort scores, one group label each."""
        number: dict[Hashable, int] = {}
        group = np.array([number.setdefault(name, len(number)) for name in groups], dtype=np.int64)
        order = np.argsort(scores, kind="stable")
        scores, group, count = np.maximum(np.asarray(scores, float)[order], 0.0), group[order], len(number)
        largest = np.zeros(count)
        np.maximum.at(largest, group, scores)
        above = (mass_above(1.0 / np.bincount(group)[group]) + 1.0) / (count + 1)
        missed = missed_when_left_out(scores, group)
        # Of equal scores the last one says all; half of them are 0.
        last = np.append(scores[1:] > scores[:-1], True)
        limit = float(np.sort(largest)[-2]) if count > 1 else 0.0
        return cls(scores[last], above[last], missed[last], limit, count)

    def conformal(self, risk: float) -> float:
        """Return the smallest score q with P(new score > q) <= risk; inf where `risk` < 1 / (groups + 1)."""
        return self._first(self.mass_above, risk)

    def left_out(self, risk: float) -> float:
        """Return the smallest score that misses no more than `risk` of a group left out; inf where all miss more."""
        return self._first(self.missed, risk)

    def _first(self, descending: Floats, risk: float) -> float:
        place = len(descending) - int(np.searchsorted(descending[::-1], risk + 1e-12, side="right"))
        return float(self.scores[place]) if place < len(descending) else float("inf")

    def supported(self, risk: float) -> Quantile | None:
        """Return the quantile where the data support `risk` without an assumption and with two groups to tell."""
        from_risk = CONFORMAL_FROM / (self.groups + 1)
        if risk >= from_risk:
            return Quantile(self.conformal(risk), "conformal", self.groups)
        value = self.left_out(risk)
        if self.groups >= MIN_GROUPS and value <= self.limit:
            return Quantile(max(value, self.conformal(from_risk)), "left_out", self.groups)
        return None

    def quantile(self, risk: float) -> Quantile:
        """Return the quantile by this class alone, in the end from the largest score and the extended tail.

        Raises:
            ValueError: if `risk` is not strictly between 0 and 1.
        """
        _check(risk)
        found = self.supported(risk)
        if found is not None:
            return found
        value = self.conformal(risk)
        if np.isfinite(value):
            return Quantile(value, "conformal", self.groups)
        largest = max(float(self.scores.max(initial=0.0)), TAIL_FLOOR)
        return Quantile(largest * (1.0 / ((self.groups + 1) * risk)) ** TAIL_INDEX, "tail", self.groups)


_NOTHING_MEASURED = ScoreTable(np.zeros(0), np.zeros(0), np.zeros(0), 0.0, 0)


@dataclass(frozen=True, slots=True)
class Calibration:
    """Score tables by class (Mondrian): a row names its classes, finest first."""

    tables: Mapping[str, ScoreTable]

    @classmethod
    def fit(cls, scores: Floats, groups: Sequence[Hashable], class_names: Sequence[Sequence[str]]) -> Self:
        """File each score under all of its class names."""
        rows: dict[str, list[int]] = defaultdict(list)
        for row, names in enumerate(class_names):
            for name in names:
                rows[name].append(row)
        tables = {name: ScoreTable.of(scores[rows[name]], [groups[r] for r in rows[name]]) for name in sorted(rows)}
        return cls(tables)

    def quantile(self, class_names: Sequence[str], risk: float) -> Quantile:
        """Return the multiplier for a row: of the finest class that supports the risk, or else of the coarsest known.

        It is no smaller than what finer classes do tell, so that a finer risk never lowers it.

        Raises:
            ValueError: if `risk` is not strictly between 0 and 1.
        """
        _check(risk)
        known = [self.tables[name] for name in class_names if name in self.tables] or [_NOTHING_MEASURED]
        least = 0.0
        for table in known:
            found = table.supported(risk)
            if found is not None:
                break
            least = max(least, table.limit)
        else:
            found = known[-1].quantile(risk)
        return replace(found, value=max(found.value, least))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; `from_dict` reads them back to the bit."""
        return {
            name: {field: value.tolist() if isinstance(value, np.ndarray) else value for field, value in fields.items()}
            for name, fields in ((name, asdict(table)) for name, table in self.tables.items())
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_dict` gave."""
        arrays = ("scores", "mass_above", "missed")
        return cls(
            {
                name: ScoreTable(**{**fields, **{field: np.array(fields[field], float) for field in arrays}})
                for name, fields in data.items()
            }
        )


def _check(risk: float) -> None:
    if not 0.0 < risk < 1.0:
        raise ValueError(f"risk must lie between 0 and 1, exclusive (got {risk})")
