"""The plots of the reports: errors, who looks at what, and what more architectures buy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from peakcast.featurizer.vocabulary import QUANTITIES
from peakcast.training.evaluate import HeldOut
from peakcast.training.learning_curve import Point


def plot_curve(points: Sequence[Point], prior: Point, path: Path) -> None:
    """Draw the errors on the frozen split against the number of architectures fitted on."""
    figure, axes = _figure((5.2, 3.6))
    for name, label in (
        ("compiled_mean_percent", "compiled"),
        ("pair_mean_percent", "all"),
        ("eager_mean_percent", "eager"),
    ):
        counts = sorted({point.architectures for point in points})
        means = [
            float(np.mean([getattr(point, name) for point in points if point.architectures == count]))
            for count in counts
        ]
        (line,) = axes.plot(counts, means, marker="o", label="all plans" if label == "pair" else label)
        axes.scatter(
            [point.architectures for point in points],
            [getattr(point, name) for point in points],
            s=8,
            color=line.get_color(),
        )
        axes.axhline(getattr(prior, name), linestyle=":", linewidth=1, color=line.get_color())
    axes.set_xscale("log", base=2)
    axes.set_xlabel("architectures fitted on")
    axes.set_ylabel("mean error on the frozen split, %")
    axes.set_title("dotted: the simulation alone", fontsize=9)
    axes.legend(fontsize=8)
    axes.grid(visible=True, alpha=0.3)
    figure.savefig(path, dpi=100, metadata={"Software": None})


def plot_shares(shares: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """Draw who looks at what: for each member of the pair the shares of shape, op and placement, as bars."""
    figure, axes = _figure((5.2, 3.0))
    parts = list(dict.fromkeys(part for values in shares.values() for part in values))
    width = 0.8 / len(shares)
    for place, (name, values) in enumerate(shares.items()):
        offsets = np.arange(len(parts)) + (place - (len(shares) - 1) / 2) * width
        axes.bar(offsets, [values.get(part, 0.0) for part in parts], width, label=name)
    axes.set_xticks(np.arange(len(parts)), parts)
    axes.set_ylabel("share")
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=100, metadata={"Software": None})


def _figure(size: tuple[float, float]) -> tuple[Any, Any]:
    # Object interface: no global state, no display needed.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def plot(held: HeldOut, path: Path) -> None:
    """Draw the share of records within an error, for the pair and the prior, one panel a quantity."""
    # Object interface: no global state, no display needed.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    measured = held.data.measured_PQ
    columns = [column for column in range(len(QUANTITIES)) if np.isfinite(measured[:, column]).any()]
    figure = Figure(figsize=(3.2 * len(columns), 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    for place, column in enumerate(columns):
        axes = figure.add_subplot(1, len(columns), place + 1)
        rows = np.isfinite(measured[:, column])
        for name, expected in (("pair", held.expected_PQ), ("simulation alone", held.data.priors)):
            error = np.sort(np.abs(expected[rows, column] / measured[rows, column] - 1.0) * 100.0)
            axes.step(np.maximum(error, 1e-2), np.arange(1, len(error) + 1) / len(error), where="post", label=name)
        axes.set_xscale("log")
        axes.set_xlabel("absolute error, %")
        axes.set_ylabel("share of records" if place == 0 else "")
        axes.set_title(QUANTITIES[column], fontsize=10)
        axes.grid(visible=True, which="major", alpha=0.3)
    figure.axes[0].legend(loc="lower right", fontsize=8)
    # No software name and date in the file: the same errors draw the same bytes.
    figure.savefig(path, dpi=100, metadata={"Software": None})
