"""`peakcast explain`: which tensors make the peak of a step, and which of a measured peak the simulation lacks."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.console import Console

from peakcast.client.commands.capture import capture_with_progress
from peakcast.client.commands.options import JsonOption, read_plans
from peakcast.client.commands.render import people_console
from peakcast.client.commands.timeline_tables import alive_table, difference_text, plot_timelines, summary_table
from peakcast.client.comparing.allocator_history import History, measured_timeline, read_history
from peakcast.client.comparing.timeline import Timeline, difference, simulated_timeline
from peakcast.client.facts import run_of
from peakcast.client.graph_file import read_graph
from peakcast.featurizer.run import DeviceSpec
from peakcast.featurizer.spec import GraphSpec

_WORKER = "peakcast.client.comparing.history_worker"
_TIMEOUT_S = 3600.0


class NothingToMeasureError(RuntimeError):
    """A step cannot be measured here."""


def explain_command(
    graph: Annotated[str, typer.Argument(metavar="GRAPH|WORKLOAD", help="Graph file, or workload to capture first.")],
    *,
    plan: Annotated[
        str, typer.Option("--plan", help="The plan to explain, for instance inductor:budget=0.5.")
    ] = "eager",
    device: Annotated[
        str | None, typer.Option(help="Name of the card. Default: the measured one's, or an H200.")
    ] = None,
    measured: Annotated[
        Path | None, typer.Option("--measured", help="Allocator history as JSON, from --measure on a GPU machine.")
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Run the workload on the GPU here and record a step.")
    ] = False,
    history: Annotated[
        Path | None, typer.Option("--history", help="With --measure: keep the recorded history in this file.")
    ] = None,
    tensors: Annotated[int, typer.Option(min=1, max=10_000, help="How many tensors to list.")] = 15,
    plot: Annotated[Path | None, typer.Option(help="Draw the step's live bytes into this file, .png or .svg.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what lives at the peak of a steady step, and a measured step beside the simulated one."""
    (wanted,) = read_plans([plan]) or [plan]
    is_file = Path(graph).is_file()
    _check(is_file=is_file, measure=measure, measured=measured, history=history, plot=plot)
    recorded = _record(graph, wanted) if measure else None if measured is None else read_history(measured)
    if recorded is not None and recorded.plan != wanted:
        problem = f"the history was recorded under {recorded.plan}, and {wanted} is to be explained"
        raise typer.BadParameter(problem, param_hint="--plan")
    if history is not None and recorded is not None:
        history.write_text(recorded.model_dump_json())
    spec = read_graph(Path(graph)) if is_file else capture_with_progress(graph, [wanted])
    _check_plan(spec, wanted)
    name = device or (recorded.device if recorded else None)
    card = DeviceSpec(name=name) if name else DeviceSpec()
    simulated = simulated_timeline(spec, wanted, run_of(spec), card)
    real = None if recorded is None else measured_timeline(recorded)
    title = f"{graph}, {wanted}, on {card.name}"
    if plot is not None:
        plot_timelines([simulated] if real is None else [simulated, real], plot, title=title)
    if as_json:
        typer.echo(_document(spec, wanted, card, simulated, real, tensors))
    else:
        _tell(title, simulated, real, tensors, plot)


def _check(*, is_file: bool, measure: bool, measured: Path | None, history: Path | None, plot: Path | None) -> None:
    if measure and measured is not None:
        raise typer.BadParameter("give --measure or a file that was measured, not both", param_hint="--measured")
    if measure and is_file:
        problem = "--measure runs the workload itself: name it as package.module:name or path/to/file.py:name"
        raise typer.BadParameter(problem, param_hint="GRAPH|WORKLOAD")
    if history is not None and not measure:
        raise typer.BadParameter("only what --measure records can be kept", param_hint="--history")
    if plot is not None:
        if plot.suffix not in {".png", ".svg"} or not plot.parent.is_dir():
            problem = f"{plot} must end in .png or .svg and lie in a folder there is"
            raise typer.BadParameter(problem, param_hint="--plot")
        if find_spec("matplotlib") is None:
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
    if measure:
        import torch

        if not torch.cuda.is_available():
            raise NothingToMeasureError(
                "--measure runs the workload on a CUDA GPU, and torch sees none here: run it where there is one, with "
                "a CUDA build of torch, keep the recording with --history FILE, and give that file as --measured FILE"
            )


def _check_plan(spec: GraphSpec, plan: str) -> None:
    if plan not in spec.traces:
        problem = (
            f"the graph holds no trace of {plan}, only of {', '.join(spec.traces)}: capture it with --plans {plan}"
        )
        raise typer.BadParameter(problem, param_hint="--plan")


def _record(workload: str, plan: str) -> History:
    from peakcast.featurizer.capture.isolated import ask_process

    with Console(stderr=True).status(f"running {workload} under {plan}"):
        content = ask_process(_WORKER, {"target": workload, "plan": plan}, timeout_sec=_TIMEOUT_S)
    return History.model_validate_json(content)


def _document(
    spec: GraphSpec, plan: str, card: DeviceSpec, simulated: Timeline, real: Timeline | None, tensors: int
) -> bytes:
    document = {
        "graph_id": spec.graph_id,
        "plan": plan,
        "device": card.name,
        "simulated": simulated.to_dict(tensors),
        "measured": None,
        "difference": None,
    }
    if real is not None:
        found = difference(real, simulated)
        document["measured"] = real.to_dict(tensors)
        document["difference"] = {
            "missing_bytes": found.missing_bytes,
            "surplus_bytes": found.surplus_bytes,
            "missing": [tensor.to_dict() for tensor in found.missing[:tensors]],
            "surplus": [tensor.to_dict() for tensor in found.surplus[:tensors]],
        }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2)


def _tell(title: str, simulated: Timeline, real: Timeline | None, tensors: int, plot: Path | None) -> None:
    console = people_console()
    console.print(summary_table([simulated] if real is None else [simulated, real], title))
    console.print(alive_table(simulated.alive, "Simulated: what lives at the peak", tensors))
    if real is not None:
        found = difference(real, simulated)
        console.print(difference_text(found, real, simulated), soft_wrap=True)
        if found.missing:
            console.print(alive_table(found.missing, "Missing: measured, and not simulated", tensors))
        if found.surplus:
            console.print(alive_table(found.surplus, "Surplus: simulated, and not measured", tensors))
    if plot is not None:
        console.print(f"drawn: {plot}", soft_wrap=True)
