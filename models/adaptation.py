"""What a pair learned of one more card, torch, allocator or precision from a few records measured there.

A layer over a finished pair: where a request is of the place that was measured, each quantity is moved by a share of
itself, by bytes, or nearer to the simulation; anywhere else the answer is the pair's own to the byte.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from peakcast.featurizer.vocabulary import QUANTITIES
from peakcast.models.calibration import MIN_GROUPS, Calibration
from peakcast.models.coverage import Coverage, Facts
from peakcast.models.example import Example, Floats

# What makes a place another: the fields of an example's facts, in this order.
PLACE_FIELDS: Final = ("card", "device", "torch", "allocator", "autocast")
Place = tuple[str, ...]


def place_of(facts: Facts) -> Place:
    """Return where an example runs."""
    return tuple(str(getattr(facts, name)) for name in PLACE_FIELDS)


def cell_of(example: Example, quantity: str) -> str:
    """Return the name of the numbers that an example's quantity is moved by."""
    return f"{'eager' if example.is_eager else 'compiled'}/{example.task}/{quantity}"


@dataclass(frozen=True, slots=True)
class Shift:
    """How one quantity is moved: `prior + trust x (expected - prior)`, times `1 + share`, plus `offset_bytes`."""

    trust: float = 1.0
    share: float = 0.0
    offset_bytes: float = 0.0

    def apply(self, prior_R: Floats, expected_R: Floats) -> Floats:
        """Return the moved bytes [R]."""
        moved: Floats = (prior_R + self.trust * (expected_R - prior_R)) * (1.0 + self.share) + self.offset_bytes
        return moved


@dataclass(frozen=True, slots=True)
class Adaptation:
    """The places, the shift of each cell, how far off the moved answers were there out of fold, and what is covered."""

    places: frozenset[Place]
    shifts: Mapping[str, Shift]
    calibration: Calibration
    coverage: Coverage  # the pair's, and what the local records cover

    def is_here(self, example: Example) -> bool:
        """Tell whether an example runs where this was measured."""
        return place_of(example.facts) in self.places

    def apply(self, examples: Sequence[Example], prior_PQ: Floats, expected_PQ: Floats) -> Floats:
        """Return expected bytes [P, Q], moved where they are of one of the places."""
        moved = expected_PQ.copy()
        for row, example in enumerate(examples):
            if not self.is_here(example):
                continue
            for column, quantity in enumerate(QUANTITIES):
                shift = self.shifts.get(cell_of(example, quantity))
                if shift is not None:
                    moved[row, column] = shift.apply(prior_PQ[row, column], expected_PQ[row, column])
        return moved

    def quantile(self, class_names: Sequence[str], risk: float) -> float:
        """Return the multiplier of the scale that held for the local records, at the finest risk they can speak of."""
        known = [self.calibration.tables[name] for name in class_names if name in self.calibration.tables]
        if not known:
            return 0.0
        table = next((table for table in known if table.groups >= MIN_GROUPS), known[-1])
        # A thousandth above, so that rounding does not ask for more than the groups support.
        return table.conformal(max(risk, 1.001 / (table.groups + 1)))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "places": sorted(list(place) for place in self.places),
            "shifts": {name: asdict(shift) for name, shift in sorted(self.shifts.items())},
            "calibration": self.calibration.to_dict(),
            "coverage": self.coverage.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_dict` gave."""
        return cls(
            frozenset(tuple(place) for place in data["places"]),
            {name: Shift(**values) for name, values in data["shifts"].items()},
            Calibration.from_dict(data["calibration"]),
            Coverage(**data["coverage"]),
        )
