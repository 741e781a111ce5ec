"""Eager beside compiled on the same job: peaks, graph cache and pinned memory, predicted and measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from peakcast.client.commands.render import bytes_text
from peakcast.models.prediction import PlanPrediction

# Both are told for a plan: the names of the predicted quantities and of what is measured.
PEAKS: Final = ("steady_allocated", "steady_reserved", "first_allocated", "first_reserved")


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one plan did on the GPU, in a process of its own with an empty compile cache.

    Args:
        peaks_bytes: by the names in `PEAKS`; empty where it ran out of memory.
        graph_cache_bytes: files that the compiler left: code, binaries and cached graphs.
        graph_pool_bytes: memory of CUDA graphs' own pools on the card at the end of the last epoch.
        pinned_bytes: pinned host memory in use after each epoch.
        step_seconds: of a steady step.
        message: why there are no peaks.
    """

    peaks_bytes: dict[str, int]
    graph_cache_bytes: int
    graph_pool_bytes: int
    pinned_bytes: tuple[int, ...]
    step_seconds: float
    message: str = ""

    @property
    def pinned_growth_bytes(self) -> int | None:
        """Return the growth of pinned memory an epoch, the first left out: buffers are made in it. None below two."""
        if len(self.pinned_bytes) < 2:
            return None
        return round((self.pinned_bytes[-1] - self.pinned_bytes[0]) / (len(self.pinned_bytes) - 1))

    @classmethod
    def from_dict(cls, told: dict[str, Any]) -> Measurement:
        """Read what `to_dict` gave."""
        known = {key: told[key] for key in cls.__slots__}
        return cls(**{**known, "pinned_bytes": tuple(known["pinned_bytes"])})

    def to_dict(self) -> dict[str, Any]:
        """Give the fields and the growth as JSON values."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return {**fields, "pinned_growth_bytes": self.pinned_growth_bytes}


@dataclass(frozen=True, slots=True)
class PlanComparison:
    """One plan: its prediction, its measurement, either of which may be missing."""

    plan: str
    predicted: PlanPrediction | None
    measured: Measurement | None

    def expected_bytes(self, quantity: str) -> int | None:
        """Return the expected peak by a name of `PEAKS`."""
        return None if self.predicted is None else int(getattr(self.predicted, quantity).expected_bytes)

    def measured_bytes(self, quantity: str) -> int | None:
        """Return the measured peak by a name of `PEAKS`."""
        return None if self.measured is None else self.measured.peaks_bytes.get(quantity)

    def to_dict(self) -> dict[str, Any]:
        """Give the plan as JSON values."""
        predicted = None
        if self.predicted is not None:
            quantities = {name: getattr(self.predicted, name).model_dump() for name in PEAKS}
            predicted = {**quantities, "confidence": self.predicted.confidence}
        measured = None if self.measured is None else self.measured.to_dict()
        return {"plan": self.plan, "predicted": predicted, "measured": measured}


def comparison_table(rows: Sequence[PlanComparison], *, heading: str) -> Table:
    """Return the plans side by side: a row a quantity, measured, expected and the difference."""
    table = Table(title=heading)
    table.add_column("")
    for row in rows:
        table.add_column(row.plan, justify="right")
    for quantity in PEAKS:
        cells = [_peak(row, quantity) for row in rows]
        table.add_row(f"{quantity.replace('_', ' ')} peak", *cells)
    for title, name in (("graph cache", "graph_cache_bytes"), ("CUDA graph pools", "graph_pool_bytes")):
        table.add_row(
            title, *("-" if row.measured is None else bytes_text(getattr(row.measured, name)) for row in rows)
        )
    table.add_row("pinned, an epoch", *(_growth(row.measured) for row in rows))
    table.add_row("step", *(_milliseconds(row.measured) for row in rows))
    failed = [f"{row.plan}: {row.measured.message}" for row in rows if row.measured and row.measured.message]
    if failed:
        table.caption = "\n".join(failed)
    return table


def _peak(row: PlanComparison, quantity: str) -> str:
    expected, measured = row.expected_bytes(quantity), row.measured_bytes(quantity)
    lines = []
    if row.measured is not None:
        lines.append("out of memory" if measured is None else bytes_text(measured))
    if expected is not None:
        difference = f" ({100 * (expected / measured - 1):+.1f}%)" if measured else ""
        lines.append(f"predicted {bytes_text(expected)}{difference}")
    return "\n".join(lines) or "-"


def _growth(measured: Measurement | None) -> str:
    grown = None if measured is None else measured.pinned_growth_bytes
    return "-" if grown is None else f"{'+' * (grown > 0)}{bytes_text(grown)}"


def _milliseconds(measured: Measurement | None) -> str:
    return "-" if measured is None or measured.message else f"{1000 * measured.step_seconds:.1f} ms"


def plot_comparison(rows: Sequence[PlanComparison], path: Path, *, title: str) -> None:
    """Draw measured and predicted steady peaks as bars beside each other, the predicted bound as a whisker."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.6 + 1.8 * len(rows), 4), layout="constrained")
    axes = figure.subplots()
    gib = 1 << 30
    for index, row in enumerate(rows):
        measured = row.measured_bytes("steady_allocated")
        if measured is not None:
            axes.bar(index - 0.2, measured / gib, 0.38, color="tab:blue", label="measured" if index == 0 else None)
        if row.predicted is not None:
            peak = row.predicted.steady_allocated
            bound = [[0.0], [(peak.upper_bytes - peak.expected_bytes) / gib]]
            label = "predicted, with its upper bound" if index == 0 else None
            axes.bar(
                index + 0.2, peak.expected_bytes / gib, 0.38, yerr=bound, color="tab:orange", label=label, capsize=4
            )
    axes.set_xticks(range(len(rows)), [row.plan for row in rows])
    axes.set_ylabel("steady allocated peak, GiB")
    axes.set_title(title)
    axes.legend()
    figure.savefig(path)
