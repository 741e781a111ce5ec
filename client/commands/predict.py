"""`peakcast predict`: from a graph file or a workload to its peaks, in this process or from a service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import stamina.instrumentation
import typer
from pydantic import ValidationError

from peakcast.client.ask import predict
from peakcast.client.commands.capture import DEFAULT_PLANS, capture_with_progress
from peakcast.client.commands.options import (
    JsonOption,
    PlansOption,
    WorldSizeOption,
    read_memory,
    read_plans,
    read_run,
    read_symbols,
)
from peakcast.client.commands.render import people_console, print_prediction
from peakcast.client.commands.replaying import ReplayTimeout, replay_with_progress, tell_failures
from peakcast.client.facts import run_of
from peakcast.client.graph_file import read_graph
from peakcast.featurizer.capture.replay.api import TIMEOUT_SEC
from peakcast.featurizer.capture.sizes import BATCH
from peakcast.featurizer.polynomials import SymbolError, choose_values
from peakcast.featurizer.run import DeviceSpec
from peakcast.featurizer.spec import GraphSpec

NOTHING_FITS = 3


def predict_command(
    graph: Annotated[str, typer.Argument(metavar="GRAPH|WORKLOAD", help="Graph file, or workload to capture first.")],
    *,
    device_memory: Annotated[
        str | None, typer.Option(help="Memory of the card, for instance 80GiB. Default: an H200's.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Name of the card, for instance 'NVIDIA A100'.")] = None,
    used_by_others: Annotated[str | None, typer.Option(help="Memory other processes hold, for instance 2GiB.")] = None,
    plans: PlansOption = None,
    world_size: WorldSizeOption = None,
    risk: Annotated[
        float, typer.Option(min=1e-4, max=0.5, help="How often the peak may exceed the upper bound.")
    ] = 0.01,
    run: Annotated[
        list[str] | None,
        typer.Option(
            "--run", help="KEY=VALUE over what was captured: accumulation=4, allocator=expandable_segments:True"
        ),
    ] = None,
    symbol: Annotated[
        list[str] | None,
        typer.Option("--symbol", help="batch=64: predict a graph captured with --symbolic at this size."),
    ] = None,
    server: Annotated[
        str | None, typer.Option(envvar="PEAKCAST_SERVER", help="Ask this service. Default: predict in this process.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds the server has for everything.")] = 30.0,
    exact: Annotated[
        bool, typer.Option("--exact", help="Replay the compiler on the workload (seconds to minutes) for its own plan.")
    ] = False,
    replay_timeout: ReplayTimeout = TIMEOUT_SEC,
    as_json: JsonOption = False,
) -> None:
    """Predict the peak memory of a step, and whether to compile it, fall back or refuse. Exits 3 where nothing fits.

    A server's token is read from PEAKCAST_TOKEN.
    """
    wanted, symbols = read_plans(plans), read_symbols(symbol)
    card = _device(device, read_memory(device_memory, "--device-memory"), used_by_others)
    _check_server(server)
    # Retries would be reported by structlog, on stdout.
    stamina.instrumentation.set_on_retry_hooks(())
    spec = (
        _replayed(graph, wanted, replay_timeout)
        if exact
        else _graph(graph, wanted, world_size, symbolic=BATCH if symbols else None)
    )
    _check_symbols(spec, symbols)
    prediction = predict(
        spec,
        device=card,
        run=read_run(run, run_of(spec)),
        plans=wanted,
        risk=risk,
        symbols=symbols,
        server=server,
        timeout_seconds=timeout,
    )
    if as_json:
        typer.echo(prediction.model_dump_json(indent=2))
    else:
        print_prediction(people_console(), prediction, memory_bytes=card.total_bytes)
    if prediction.decision.action == "refuse":
        raise typer.Exit(NOTHING_FITS)


def _replayed(text: str, plans: list[str] | None, timeout_sec: float) -> GraphSpec:
    if _is_graph_file(Path(text)):
        problem = f"{text} is a graph file; --exact runs the compiler on the model itself: name the workload"
        raise typer.BadParameter(problem, param_hint="GRAPH|WORKLOAD")
    found = replay_with_progress(text, plans or list(DEFAULT_PLANS), timeout_sec=timeout_sec)
    tell_failures(found)
    return found.spec


def _is_graph_file(path: Path) -> bool:
    return path.is_file() or path.name.endswith((".json", ".json.gz", ".json.xz"))


def _graph(text: str, plans: list[str] | None, world_size: int | None, *, symbolic: str | None) -> GraphSpec:
    path = Path(text)
    if path.suffix == ".py":
        problem = f"{text} is Python, not a graph file: name its function that returns the workload, as {text}:workload"
        raise typer.BadParameter(problem, param_hint="GRAPH|WORKLOAD")
    if _is_graph_file(path):
        return read_graph(path)
    return capture_with_progress(text, plans or list(DEFAULT_PLANS), world_size, symbolic)


def _check_symbols(spec: GraphSpec, values: dict[str, int]) -> None:
    try:
        choose_values(spec.symbols, values)
    except SymbolError as error:
        problem = str(error).removeprefix("$.")
        if "not_symbolic" in spec.captured_with:
            problem += f" ({spec.captured_with['not_symbolic']})"
        raise typer.BadParameter(problem, param_hint="--symbol") from None


def _device(name: str | None, total_bytes: int | None, used_by_others: str | None) -> DeviceSpec:
    used_bytes = None if used_by_others in {None, "0"} else read_memory(used_by_others, "--used-by-others")
    given = {"name": name, "total_bytes": total_bytes, "used_by_others_bytes": used_bytes}
    try:
        return DeviceSpec.model_validate({key: value for key, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        option = {"name": "--device", "total_bytes": "--device-memory"}.get(str(first["loc"][0]), "--used-by-others")
        raise typer.BadParameter(first["msg"], param_hint=option) from None


def _check_server(server: str | None) -> None:
    if server is None:
        return
    from peakcast.client.http import predict_url

    try:
        predict_url(server)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--server") from None
