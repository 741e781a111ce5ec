"""`peakcast replay`: a workload's peaks under the compiler's own plan, without a GPU."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer
from rich.markup import escape
from rich.table import Table

from peakcast.client.commands.options import JsonOption, read_plans
from peakcast.client.commands.render import bytes_text, people_console
from peakcast.client.commands.replaying import How, ReplayTimeout, how, replay_with_progress
from peakcast.client.facts import run_of
from peakcast.client.graph_file import write_graph
from peakcast.featurizer.capture.replay.api import TIMEOUT_SEC
from peakcast.featurizer.prior import simulate
from peakcast.featurizer.run import DeviceSpec

if TYPE_CHECKING:
    from peakcast.featurizer.capture.replay import Replayed

DEFAULT_PLANS = ("inductor",)
_QUANTITIES = ("steady_allocated", "steady_reserved", "first_allocated", "first_reserved")


@dataclass(frozen=True, slots=True)
class PlanReplay:
    """A plan's simulated peaks: each quantity as (expected, lower, upper) bytes over the ways products are padded."""

    plan: str
    how: How
    reason: str | None  # why it was not replayed
    nodes: int
    bytes: dict[str, tuple[int, int, int]]

    def to_dict(self) -> dict[str, Any]:
        """Return the row of the JSON document."""
        quantities = {
            f"{name}_bytes": {"expected": expected, "lower": lower, "upper": upper}
            for name, (expected, lower, upper) in self.bytes.items()
        }
        return {"plan": self.plan, "how": self.how, "reason": self.reason, "nodes": self.nodes, **quantities}


def replay_command(
    workload: Annotated[
        str, typer.Argument(help="package.module:name or path/to/file.py:name, a function that returns a Workload.")
    ],
    *,
    plans: Annotated[
        list[str] | None,
        typer.Option("--plans", "--plan", help="Plans, separated by commas or given again. Default: inductor."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the graph too; packed where it ends in .gz or .xz.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Name of the card. Default: an H200.")] = None,
    replay_timeout: ReplayTimeout = TIMEOUT_SEC,
    as_json: JsonOption = False,
) -> None:
    """Replay the compiler: its own kernels and buffers, on any host. Nothing is compiled and no step is run."""
    if output is not None and not output.parent.is_dir():
        raise typer.BadParameter(f"no folder {output.parent}: make it first", param_hint="--output")
    wanted = read_plans(plans) or list(DEFAULT_PLANS)
    started = time.perf_counter()
    found = replay_with_progress(workload, wanted, timeout_sec=replay_timeout)
    seconds = time.perf_counter() - started
    card = DeviceSpec() if device is None else DeviceSpec(name=device)
    rows = [_row(found, plan, card) for plan in found.spec.traces]
    if output is not None:
        write_graph(output, found.spec)
    if as_json:
        document = {
            "graph_id": found.spec.graph_id,
            "seconds": round(seconds, 1),
            "device": card.name,
            "plans": [row.to_dict() for row in rows],
        }
        typer.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2))
        return
    console = people_console()
    console.print(_table(rows, card))
    where = "" if output is None else f"{output}, "
    console.print(f"{where}graph_id {found.spec.graph_id}, {seconds:.1f} s", soft_wrap=True)


def _row(found: Replayed, plan: str, card: DeviceSpec) -> PlanReplay:
    run = run_of(found.spec)
    specs = [found.spec]
    if found.otherwise is not None and plan in found.otherwise.traces:
        specs.append(found.otherwise)
    priors = [simulate(spec, plan, run, card) for spec in specs]
    quantities = {}
    for name in _QUANTITIES:
        values = [int(getattr(prior, f"{name}_bytes")) for prior in priors]
        quantities[name] = (values[0], min(values), max(values))
    return PlanReplay(plan, how(found.spec, plan), found.failed.get(plan), len(found.spec.traces[plan]), quantities)


def _table(rows: list[PlanReplay], card: DeviceSpec) -> Table:
    table = Table(title=f"Peaks on {card.name}, simulated over the compiler's own code", title_justify="left")
    table.add_column("plan", no_wrap=True)
    table.add_column("how")
    for title in ("nodes", "allocated", "reserved", "first step"):
        table.add_column(title, justify="right")
    for row in rows:
        cells = [_range(row.bytes[name]) for name in ("steady_allocated", "steady_reserved", "first_allocated")]
        table.add_row(row.plan, row.how, f"{row.nodes:,}", *cells)
    notes = [f"{row.plan}: {row.reason}" for row in rows if row.reason]
    if any(lower != upper for row in rows for _, lower, upper in row.bytes.values()):
        notes.append("ranges: a benchmark on the card decides which products are padded; both ways were replayed")
    if notes:
        table.caption = escape("\n".join(notes))
    return table


def _range(values: tuple[int, int, int]) -> str:
    expected, lower, upper = values
    if lower == upper:
        return bytes_text(expected)
    return f"{bytes_text(expected)}\n{bytes_text(lower)} .. {bytes_text(upper)}"
