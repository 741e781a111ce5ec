"""Predictions as tables for people. GiB = 1024^3; every exact number is in `--json`."""

from __future__ import annotations

import os
import sys

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from peakcast.models.prediction import Decision, Expectation, Explanation, PlanPrediction, Prediction

_GIB = 1 << 30
_MIB = 1 << 20
_KIB = 1 << 10
_PIPED_COLUMNS = 120
# What the table of plans takes with all its columns.
_WIDE_COLUMNS = 105

_ACTION_STYLE = {"compile": "bold green", "fall_back": "bold yellow", "refuse": "bold red"}
_CONFIDENCE_STYLE = {"in_distribution": "green", "extrapolating": "yellow", "unknown": "red"}
_PARTS = ("parameters", "gradients", "optimizer_state", "saved_activations", "temporaries", "workspace")


def bytes_text(size_bytes: int) -> str:
    """Return "7.047 GiB", "61.0 MiB", "2.3 KiB" or "17 B"."""
    for unit_bytes, unit, digits in ((_GIB, "GiB", 3), (_MIB, "MiB", 1), (_KIB, "KiB", 1)):
        # From a tenth up, so that cards and models are all told in GiB.
        if abs(size_bytes) >= (unit_bytes // 10 if unit_bytes == _GIB else unit_bytes):
            return f"{size_bytes / unit_bytes:.{digits}f} {unit}"
    return f"{size_bytes} B"


def people_console(piped_columns: int = _PIPED_COLUMNS) -> Console:
    """Return a console on stdout; into a pipe, which has no width, of so many columns unless COLUMNS says else."""
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=piped_columns if piped else None, highlight=False)


def print_prediction(console: Console, prediction: Prediction, *, memory_bytes: int) -> None:
    """Print the plans, the decision and where the bytes come from."""
    is_narrow = console.width < _WIDE_COLUMNS
    console.print(plans_table(prediction, memory_bytes=memory_bytes, is_narrow=is_narrow))
    console.print(decision_text(prediction.decision))
    console.print(explanation_tables(prediction.explanation, prediction.plans[0].plan))
    console.print(Text(f"model {prediction.model_version}, {prediction.elapsed_ms:.1f} ms", style="dim"))


def plans_table(prediction: Prediction, *, memory_bytes: int, is_narrow: bool = False) -> Table:
    """Return one row a plan: expected, and the upper bound below. A narrow one does without the least asked for."""
    table = Table(title=f"Predicted peaks on {bytes_text(memory_bytes)}, upper bounds at risk {prediction.risk:g}")
    table.add_column("plan", no_wrap=True)
    for title in ("allocated", "reserved", "required", *(() if is_narrow else ("on the card",))):
        table.add_column(title, justify="right", no_wrap=True)
    for title in (*(() if is_narrow else ("peak in",)), "fits", "confidence"):
        table.add_column(title)
    for plan in prediction.plans:
        table.add_row(plan.plan, *_cells(plan, is_narrow=is_narrow))
    doubts = dict.fromkeys(f"{plan.plan}: {doubt}" for plan in prediction.plans for doubt in plan.doubts)
    if doubts:
        table.caption = escape("\n".join(doubts))
    return table


def _cells(plan: PlanPrediction, *, is_narrow: bool) -> list[RenderableType]:
    quantities = (plan.steady_allocated, plan.steady_reserved, plan.required, *(() if is_narrow else (plan.device,)))
    fits = Text("yes", style="green") if plan.fits else Text("no", style="red")
    confidence = Text(plan.confidence.replace("_", " "), style=_CONFIDENCE_STYLE[plan.confidence])
    where = () if is_narrow else (Text(plan.phase),)
    return [*(_expectation(quantity) for quantity in quantities), *where, fits, confidence]


def _expectation(quantity: Expectation) -> Text:
    return Text(f"{bytes_text(quantity.expected_bytes)}\n≤ {bytes_text(quantity.upper_bytes)}")


def decision_text(decision: Decision) -> Text:
    """Return the decision and its reason."""
    action = decision.action.replace("_", " ")
    text = Text(action, style=_ACTION_STYLE[decision.action])
    text.append(f" {decision.plan}" if decision.plan else "", style="bold")
    text.append(f": {decision.reason}", style="not bold default")
    if decision.largest_batch is not None:
        text.append(f"; largest batch that fits: {decision.largest_batch}", style="not bold default")
    return text


def explanation_tables(explanation: Explanation, plan: str) -> Group:
    """Return the parts of the simulated peak of the first plan, and its largest tensors."""
    parts = Table(title=f"The simulated peak of {plan}: {bytes_text(explanation.prior_bytes)}", title_justify="left")
    parts.add_column("part")
    parts.add_column("bytes", justify="right")
    parts.add_column("share", justify="right")
    for part in _PARTS:
        size_bytes = getattr(explanation, f"{part}_bytes")
        share = size_bytes / explanation.prior_bytes if explanation.prior_bytes else 0.0
        parts.add_row(part.replace("_", " "), bytes_text(size_bytes), f"{share:.0%}")
    if not explanation.top_tensors:
        return Group(parts)
    tensors = Table(title="Largest tensors at that moment", title_justify="left")
    for title in ("bytes", "op", "source line"):
        tensors.add_column(title, justify="right" if title == "bytes" else "left", overflow="fold")
    for tensor in explanation.top_tensors:
        # What lives from before the step has no node that made it.
        op = tensor.op or "(from before the step)"
        # The part of a path that a reader knows: not where the packages lie on that host.
        line = (tensor.line or "").rpartition("site-packages/")[2]
        tensors.add_row(bytes_text(tensor.bytes), escape(op), escape(line))
    return Group(parts, tensors)
