"""What the project aims at: errors of each kind of plan and quantity, and whether they are met."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from peakcast.training.accuracy_rows import ALL, RECOMPUTING, Row, Score


@dataclass(frozen=True, slots=True)
class Bar:
    """The largest errors aimed at for one line of the table. Percent of the measured bytes."""

    label: str
    quantity: str
    median_percent: float
    mean_percent: float
    p95_percent: float

    def missed(self, found: Score) -> list[str]:
        """Return which of the three are larger than aimed at."""
        limits = {
            "median": (found.median_percent, self.median_percent),
            "mean": (found.mean_percent, self.mean_percent),
            "95th": (found.p95_percent, self.p95_percent),
        }
        return [name for name, (value, limit) in limits.items() if value > limit]


BARS: Final = (
    Bar("eager", "steady_allocated", 0.2, 0.8, 3.0),
    Bar("inductor", "steady_allocated", 0.5, 2.0, 7.0),
    Bar(RECOMPUTING, "steady_allocated", 1.5, 4.0, 12.0),
    Bar("inductor:reduce-overhead", "steady_allocated", 3.0, 6.0, 20.0),
    Bar("inductor:max-autotune", "steady_allocated", 3.0, 6.0, 20.0),
    Bar(ALL, "steady_reserved", 3.0, 6.0, 20.0),
    Bar(ALL, "first_allocated", 3.0, 6.0, 20.0),
    Bar(ALL, "first_reserved", 3.0, 6.0, 20.0),
    Bar(ALL, "required", 3.0, 6.0, 20.0),
)


def judged_bars(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return for each bar that has a line what was found and what of it missed, as plain JSON values."""
    by_name = {(row.label, row.quantity): row.pair for row in rows}
    judged = []
    for bar in BARS:
        found = by_name.get((bar.label, bar.quantity))
        if found is None:
            continue
        judged.append(
            {
                "label": bar.label,
                "quantity": bar.quantity,
                "aim_percent": [bar.median_percent, bar.mean_percent, bar.p95_percent],
                "found_percent": [found.median_percent, found.mean_percent, found.p95_percent],
                "missed": bar.missed(found),
            }
        )
    return judged
