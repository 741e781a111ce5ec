"""`peakcast capture`: from a workload to a graph file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.console import Console
from rich.table import Table

from peakcast.client.commands.options import JsonOption, PlansOption, WorldSizeOption, read_plans
from peakcast.client.commands.render import bytes_text, people_console
from peakcast.client.graph_file import write_graph
from peakcast.featurizer.capture.sizes import BatchRange
from peakcast.featurizer.spec import GraphSpec

DEFAULT_PLANS = ("eager", "inductor")


def capture_command(
    workload: Annotated[
        str, typer.Argument(help="package.module:name or path/to/file.py:name, a function that returns a Workload.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Graph file; packed where it ends in .gz or .xz.")
    ] = Path("graph.json"),
    plans: PlansOption = None,
    world_size: WorldSizeOption = None,
    symbolic: Annotated[
        str | None,
        typer.Option(
            help="batch, or batch=MIN:MAX: capture at three batches, and keep sizes as polynomials of the batch."
        ),
    ] = None,
    *,
    redact: Annotated[bool, typer.Option("--redact", help="Leave out source lines and their paths.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Capture the graph of one step under each plan (default: eager and inductor). No step is run, no GPU needed."""
    if not output.parent.is_dir():
        raise typer.BadParameter(f"no folder {output.parent}: make it first", param_hint="--output")
    _check_range(symbolic)
    spec = capture_with_progress(workload, read_plans(plans) or list(DEFAULT_PLANS), world_size, symbolic)
    _tell_not_symbolic(spec)
    if redact:
        spec = spec.redacted()
    size_bytes = write_graph(output, spec)
    if as_json:
        typer.echo(orjson.dumps({"output": str(output), "bytes": size_bytes, **_summary(spec)}))
        return
    table = Table("plan", "nodes", "storages", "compiled regions")
    for plan, trace in spec.traces.items():
        regions = int(trace.region.max(initial=-1)) + 1
        table.add_row(plan, f"{len(trace):,}", f"{len(trace.storages):,}", str(regions))
    console = people_console()
    console.print(table)
    for name, symbol in spec.symbols.items():
        console.print(f"{name}: {symbol.min:,} to {symbol.max:,}, captured at {spec.captured_with[f'captured_{name}']}")
    console.print(f"{output} ({bytes_text(size_bytes)}), graph_id {spec.graph_id}", soft_wrap=True)


def capture_with_progress(
    workload: str, plans: list[str], world_size: int | None = None, symbolic: str | None = None
) -> GraphSpec:
    """Capture in a fresh process, telling on stderr how far it is.

    Raises:
        typer.BadParameter: if the text cannot name a workload.
        CaptureError: if the workload or its capture fails.
    """
    from peakcast.featurizer.capture import capture_workload

    check_workload_name(workload)
    with Console(stderr=True).status(f"starting the capture of {workload}") as status:
        return capture_workload(workload, plans=plans, world_size=world_size, symbolic=symbolic, progress=status.update)


def _check_range(symbolic: str | None) -> None:
    try:
        if symbolic is not None:
            BatchRange.parse(symbolic)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--symbolic") from None


def _tell_not_symbolic(spec: GraphSpec) -> None:
    why = spec.captured_with.get("not_symbolic")
    if why is not None:
        typer.echo(f"warning: the graph is of one batch only: {why}", err=True)


def check_workload_name(workload: str) -> None:
    """Refuse a text that cannot name a workload.

    Raises:
        typer.BadParameter: saying what can.
    """
    where, colon, name = workload.rpartition(":")
    if not colon or not where or not name.isidentifier():
        problem = f"{workload!r} is neither a graph file nor package.module:name or path/to/file.py:name"
        raise typer.BadParameter(problem, param_hint="WORKLOAD")


def _summary(spec: GraphSpec) -> dict[str, object]:
    nodes = {plan: len(trace) for plan, trace in spec.traces.items()}
    return {"graph_id": spec.graph_id, "nodes": nodes, "captured_with": dict(spec.captured_with)}
