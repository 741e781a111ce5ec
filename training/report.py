"""The accuracy report: tables for the terminal, docs/ACCURACY.md with its JSON, and plots."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
from rich.console import Group
from rich.table import Table

from peakcast.training.decision_accuracy import AIMS
from peakcast.training.evaluate import HeldOut
from peakcast.training.report_plots import plot, plot_shares
from peakcast.training.report_tables import bar_sheet, coverage_sheet, decision_sheet, error_sheet
from peakcast.training.report_text import ARTICLE_SHARES, markdown


def accuracy_tables(found: dict[str, Any]) -> Group:
    """Return the tables for people: the folds', then the frozen split's."""
    tables = [*_tables(found, found, "held out by architecture")]
    if found["frozen"]:
        tables += _tables(found["frozen"], found, "frozen split")
    return Group(*tables)


def _tables(judged: dict[str, Any], found: dict[str, Any], name: str) -> Iterator[Table]:
    risk, decision_risk = found["risk"], found["decision_risk"]
    title = f"{name}, {judged['records']} records, bound at risk {risk:g}"
    yield error_sheet(judged["rows"], with_rule=False).shown(title)
    yield bar_sheet({"found": judged["bars"]}).shown(f"{name}: median / mean / 95th percentile of the error")
    sheet = coverage_sheet(judged["coverage"], risk=risk, decision_risk=decision_risk)
    yield sheet.shown(f"{name}: truths within the bound at a risk")
    yield decision_sheet(judged["decisions"]).shown(
        f"{name}: does it fit? Bounds at risk {decision_risk:g}; we aim at no more than {AIMS}"
    )


def write_report(held: HeldOut, found: dict[str, Any], folder: Path) -> None:
    """Write ACCURACY.md, accuracy.json and the plots of what `summary` found into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "accuracy.json").write_bytes(
        orjson.dumps(found, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n"
    )
    (folder / "ACCURACY.md").write_text(markdown(found), encoding="utf-8")
    plot(held, folder / "accuracy.png")
    members = {"LSTM": found["node_shares"], "trees": found["tree_parts"], "the article": ARTICLE_SHARES}
    plot_shares(members, folder / "importance.png")
