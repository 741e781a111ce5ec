"""The tables of the accuracy report, each for the terminal and for the text alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.table import Table

from peakcast.training.decision_accuracy import is_met

_WORDS: Final = {"records", "quantity", "truth", "we aim at"}
_ARCHITECTURES: Final = "architec-\ntures"


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table of texts. A line break in a header is for the terminal, where width is scarce."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> list[str]:
        """Return the lines of the table as text."""
        headers = [header.replace("-\n", "").replace("\n", " ") for header in self.headers]
        return [
            "| " + " | ".join(headers) + " |",
            "|" + "|".join("---" if header in _WORDS else "---:" for header in self.headers) + "|",
            *("| " + " | ".join(cells) + " |" for cells in self.rows),
        ]

    def shown(self, title: str) -> Table:
        """Return the table for people."""
        table = Table(title=title, title_justify="left")
        for header in self.headers:
            table.add_column(header, justify="left" if header in _WORDS else "right")
        for cells in self.rows:
            table.add_row(*cells)
        return table


def error_sheet(rows: Sequence[dict[str, Any]], *, with_rule: bool = True) -> Sheet:
    """Return the errors by kind of plan; `with_rule` beside the rule of thumb."""
    headers = (
        *("records", "quantity", "n", "median", "mean", "95th", "under", "covered", "slack"),
        *("prior median", "prior mean", *(("4 x weights median",) if with_rule else ())),
    )
    return Sheet(headers, [_error_cells(row)[: len(headers)] for row in rows])


def _error_cells(row: dict[str, Any]) -> list[str]:
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


def bar_sheet(sides: Mapping[str, Sequence[dict[str, Any]]]) -> Sheet:
    """Return what the project aims at beside what each side (the folds, the frozen split) found."""
    by_name = [{(bar["label"], bar["quantity"]): bar for bar in bars} for bars in sides.values()]
    names = list(dict.fromkeys(name for side in by_name for name in side))
    rows = []
    for name in names:
        aim = next(side[name]["aim_percent"] for side in by_name if name in side)
        aims = " / ".join(f"{value:g}" for value in aim) + " %"
        rows.append([*name, aims, *(_bar_cell(side.get(name)) for side in by_name)])
    return Sheet(("records", "quantity", "we aim at", *sides), rows)


def _bar_cell(bar: dict[str, Any] | None) -> str:
    if bar is None:
        return "no records"
    median, mean, p95 = bar["found_percent"]
    verdict = f"missed: {', '.join(bar['missed'])}" if bar["missed"] else "met"
    return f"{median:.2f} / {mean:.2f} / {p95:.1f} %, {verdict}"


def coverage_sheet(rows: Sequence[dict[str, Any]], *, risk: float, decision_risk: float) -> Sheet:
    """Return how many truths lie within their bounds."""
    headers = (
        *("records", "quantity", "n", _ARCHITECTURES, f"by architecture,\nrisk {risk:g}"),
        *(f"by record,\nrisk {risk:g}", f"by record,\nrisk {decision_risk:g}", "mean\nslack", "median\nslack"),
    )
    cells = [
        [
            row["label"],
            row["quantity"],
            str(row["n"]),
            str(row["architectures"]),
            *(_share(row[name]) for name in ("by_architecture", "by_record", "by_record_at_decision_risk")),
            f"{row['slack_mean_percent']:.1f} %",
            f"{row['slack_median_percent']:.1f} %",
        ]
        for row in rows
    ]
    return Sheet(headers, cells)


def decision_sheet(rows: Sequence[dict[str, Any]]) -> Sheet:
    """Return how often decisions are wrong, and whether that is as seldom as aimed at."""
    headers = (
        *("truth", "records", "n", _ARCHITECTURES, "wrong by the\nexpected value"),
        *("misfits by\nthe bound", "false refusals\nby the bound"),
    )
    cells = [
        [
            row["truth"],
            row["label"],
            str(row["n"]),
            str(row["architectures"]),
            _share(row["wrong"], row["wrong_aim_percent"]),
            _share(row["misfits"], row["misfits_aim_percent"]),
            _share(row["false_refusals"]),
        ]
        for row in rows
    ]
    return Sheet(headers, cells)


def _share(share: dict[str, Any] | None, aim_percent: float | None = None) -> str:
    if share is None:
        return "none"
    value, low, high = (f"{share[f'{name}percent']:.1f}".replace("100.0", "100") for name in ("", "low_", "high_"))
    text = f"{value} % ({low}-{high})"
    met = is_met(share, aim_percent)
    return text if met is None else f"{text}, {'met' if met else 'missed'}"
