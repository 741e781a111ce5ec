"""The accuracy report: a table for the terminal, docs/ACCURACY.md with its JSON, and a plot of the errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from rich.table import Table

from peakcast.featurizer.vocabulary import QUANTITIES
from peakcast.training.evaluate import HeldOut
from peakcast.training.learning_curve import Point

_HEADERS = (
    "records",
    "quantity",
    "n",
    "median",
    "mean",
    "95th",
    "under",
    "covered",
    "slack",
    "prior median",
    "prior mean",
)
_HEADERS_TEXT = (*_HEADERS, "4 x weights median")

_INTRODUCTION = (
    "Made by `peakcast evaluate`. {records} records measured on a GPU, of {architectures} architectures (implementing "
    "classes), in {folds} folds: no architecture is on both sides of a split; LSTM, trees, shrinkage and bounds are "
    "refitted for each fold."
)
_LEGEND = (
    "Errors are in percent of the measured bytes: median, mean and 95th percentile of the absolute error, the share "
    "predicted below the truth, the share of truths within the upper bound at risk {risk:g} (it should be at least "
    "{promised:g} %), and how far that bound lies above the truth on average. *Prior* is the simulation alone."
)
_FROZEN = (
    "{records} records of {architectures} architectures (`training/frozen_split.json`) that are in none of the folds "
    "above, predicted by a pair fitted on all of those records. No choice in fitting ever sees them; the gate of "
    "`peakcast train` does. The simulation was written while their records were there: it is the learned part whose "
    "blindness this table shows."
)
_CONFIDENCE = (
    "Confidence of the answers: {counts}. For {tail} of the records the bound of `required` rests on the assumption "
    "about tails in docs/MODELS.md (too few architectures measured for that risk), for the others on the data alone."
)

_IMPORTANCE = (
    "Means over the folds, on records held out. For the LSTM: how far its outputs move when that part of every node is "
    "replaced by its mean. For the trees: shares of the mean absolute TreeSHAP value (`pred_contrib`) of the ratio "
    "trees, summed over what the features tell (sizes count as shape) and below the largest fifteen by themselves. The "
    "article's LSTM had no simulation to correct: what a correction hangs on is another question than what a peak does."
)
_TOP_FEATURES = 15
# What the article that this design goes back to reports, for an LSTM without a simulation.
ARTICLE_SHARES = {"shape": 0.42, "op": 0.31, "placement": 0.27}


def accuracy_table(found: dict[str, Any]) -> Table:
    """Return the table for people: the folds, then the frozen split."""
    shown = Table(title=f"held out by architecture, {found['records']} records, bound at risk {found['risk']:g}")
    for header in _HEADERS:
        shown.add_column(header, justify="left" if header in {"records", "quantity"} else "right")
    for row in found["rows"]:
        shown.add_row(*_cells(row)[: len(_HEADERS)])
    frozen = found.get("frozen")
    if frozen:
        shown.add_section()
        for row in frozen["rows"]:
            shown.add_row(f"frozen: {row['label']}", *_cells(row)[1 : len(_HEADERS)])
    return shown


def write_report(held: HeldOut, found: dict[str, Any], folder: Path) -> None:
    """Write ACCURACY.md, accuracy.json and accuracy.png of what `summary` found into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "accuracy.json").write_bytes(
        orjson.dumps(found, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n"
    )
    (folder / "ACCURACY.md").write_text(markdown(found), encoding="utf-8")
    plot(held, folder / "accuracy.png")
    members = {"LSTM": found["node_shares"], "trees": found["tree_parts"], "the article": ARTICLE_SHARES}
    plot_shares(members, folder / "importance.png")


def markdown(found: dict[str, Any]) -> str:
    """Return the text of ACCURACY.md."""
    lines = [
        "# Accuracy on architectures the pair never saw",
        "",
        _INTRODUCTION.format(**found),
        "",
        _LEGEND.format(risk=found["risk"], promised=100 * (1 - found["risk"])),
        "",
        *_rows(found["rows"]),
        "",
        _CONFIDENCE.format(
            counts=", ".join(f"{name} {count}" for name, count in found["confidence"].items()),
            tail=found["tail_bounds"],
        ),
        "",
        "![Error distribution](accuracy.png)",
        "",
        *_frozen(found.get("frozen")),
        "## The twenty worst",
        "",
        "Steady allocated bytes, in MiB.",
        "",
        "| record | architecture | plan | task | measured | expected | prior | error | confidence |",
        "|---|---|---|---|---:|---:|---:|---:|---|",
        *(_worst_line(record) for record in found["worst"]),
        "",
        "## What the pair looks at",
        "",
        _IMPORTANCE,
        "",
        "| part | LSTM | trees | the article's SHAP table |",
        "|---|---:|---:|---:|",
        *(_part_line(name, found) for name in found["tree_parts"]),
        "",
        "![Who looks at what](importance.png)",
        "",
        "| feature of the trees | share |",
        "|---|---:|",
        *(f"| {name} | {share:.3f} |" for name, share in list(found["tree_shares"].items())[:_TOP_FEATURES]),
        "",
        f"Corpus sha256 `{found['data_sha256']}`.",
        "",
    ]
    return "\n".join(lines)


def _rows(rows: list[dict[str, Any]]) -> list[str]:
    return [
        "| " + " | ".join(_HEADERS_TEXT) + " |",
        "|" + "|".join("---" if header in {"records", "quantity"} else "---:" for header in _HEADERS_TEXT) + "|",
        *("| " + " | ".join(_cells(row)) + " |" for row in rows),
    ]


def _frozen(frozen: dict[str, Any] | None) -> list[str]:
    if not frozen:
        return []
    return ["## The frozen test split", "", _FROZEN.format(**frozen), "", *_rows(frozen["rows"]), ""]


def _part_line(name: str, found: dict[str, Any]) -> str:
    shares = (found["node_shares"].get(name), found["tree_parts"][name], ARTICLE_SHARES.get(name))
    return f"| {name} | " + " | ".join("" if share is None else f"{share:.2f}" for share in shares) + " |"


def _worst_line(record: dict[str, Any]) -> str:
    sizes = " | ".join(f"{record[f'{name}_bytes'] / 2**20:,.0f}" for name in ("measured", "expected", "prior"))
    return (
        f"| {_escaped(record['key'])} | {record['architecture']} | {record['plan']} | {record['task']} | {sizes} | "
        f"{record['error_percent']:+.1f} % | {record['confidence']} |"
    )


def _escaped(text: str) -> str:
    """Return the text with the bars that would end a cell escaped."""
    return text.replace("|", "\\|")


def _cells(row: dict[str, Any]) -> list[str]:
    pair, prior, rule = row["pair"], row["prior"], row["weights_rule"]
    return [
        row["label"],
        row["quantity"],
        str(pair["n"]),
        f"{pair['median_percent']:.2f} %",
        f"{pair['mean_percent']:.2f} %",
        f"{pair['p95_percent']:.1f} %",
        f"{pair['under_predicted_percent']:.0f} %",
        f"{row['covered_percent']:.1f} %",
        f"{row['slack_percent']:.1f} %",
        f"{prior['median_percent']:.2f} %",
        f"{prior['mean_percent']:.2f} %",
        f"{rule['median_percent']:.0f} %",
    ]


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
