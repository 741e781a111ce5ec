"""`peakcast compare`: eager beside compiled on the same job, measured on the GPU here, and predicted."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console

from peakcast.client.ask import predict
from peakcast.client.commands.capture import capture_with_progress
from peakcast.client.commands.options import JsonOption, PlansOption, read_memory, read_plans
from peakcast.client.commands.render import bytes_text, people_console
from peakcast.client.comparing.comparison import Measurement, PlanComparison, comparison_table, plot_comparison
from peakcast.featurizer.run import DeviceSpec
from peakcast.models.prediction import Prediction

DEFAULT_PLANS = ("eager", "inductor")
_WORKER = "peakcast.client.comparing.compare_worker"
# A cold compile under max-autotune takes most of an hour on the largest models we know.
_TIMEOUT_S = 3 * 3600.0


class NothingToCompareError(RuntimeError):
    """Neither half of the comparison can be made here."""


def compare_command(
    workload: Annotated[
        str, typer.Argument(help="package.module:name or path/to/file.py:name, a function that returns a Workload.")
    ],
    *,
    plans: PlansOption = None,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs over which pinned memory is watched.")] = 3,
    steps: Annotated[int, typer.Option(min=1, help="Steps of an epoch.")] = 20,
    predict_only: Annotated[bool, typer.Option("--predict-only", help="No GPU: give the predicted half.")] = False,
    device_memory: Annotated[
        str | None, typer.Option(help="With --predict-only: memory of the card, for instance 80GiB.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the steady peaks into this file, .png or .svg.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a workload eager and compiled on the GPU, each in a process of its own, and put the predictions beside it."""
    wanted = read_plans(plans) or list(DEFAULT_PLANS)
    _check(predict_only=predict_only, device_memory=device_memory, plot=plot)
    measured: dict[str, dict[str, Any]] = {}
    if not predict_only:
        measured = {plan: _measure(workload, plan, epochs=epochs, steps=steps) for plan in wanted}
    device = next((DeviceSpec.model_validate(told["device"]) for told in measured.values()), DeviceSpec())
    memory_bytes = read_memory(device_memory, "--device-memory")
    spec = capture_with_progress(workload, wanted)
    prediction = predict(spec, device=device, device_memory_bytes=memory_bytes, plans=wanted)
    rows = [_row(plan, prediction, measured.get(plan)) for plan in wanted]
    title = f"{workload} on {device.name}"
    if plot is not None:
        plot_comparison(rows, plot, title=title)
    if as_json:
        versions = {told["torch"] for told in measured.values()} or {spec.captured_with.get("torch")}
        document = {
            "workload": workload,
            "device": device.model_dump(),
            "torch": sorted(filter(None, versions)),
            "epochs": epochs,
            "steps_per_epoch": steps,
            "model_version": prediction.model_version,
            "plans": [row.to_dict() for row in rows],
        }
        typer.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2))
        return
    console = people_console()
    console.print(comparison_table(rows, heading=title))
    if plot is not None:
        console.print(f"drawn: {plot} ({bytes_text(plot.stat().st_size)})", soft_wrap=True)


def _check(*, predict_only: bool, device_memory: str | None, plot: Path | None) -> None:
    if device_memory is not None and not predict_only:
        raise typer.BadParameter("the GPU here is the card; give it with --predict-only", param_hint="--device-memory")
    if plot is not None:
        if plot.suffix not in {".png", ".svg"} or not plot.parent.is_dir():
            raise typer.BadParameter(
                f"{plot} must end in .png or .svg and lie in a folder there is", param_hint="--plot"
            )
        if find_spec("matplotlib") is None:
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
    if predict_only:
        return
    import torch

    if not torch.cuda.is_available():
        raise NothingToCompareError(
            "comparing runs the workload on a CUDA GPU, and torch sees none here: run it where there is one, with a "
            "CUDA build of torch, or ask for the predicted half with --predict-only"
        )


def _measure(workload: str, plan: str, *, epochs: int, steps: int) -> dict[str, Any]:
    from peakcast.featurizer.capture.isolated import ask_process

    request = {"target": workload, "plan": plan, "epochs": epochs, "steps": steps}
    with Console(stderr=True).status(f"running {workload} under {plan}"):
        told: dict[str, Any] = json.loads(ask_process(_WORKER, request, timeout_sec=_TIMEOUT_S))
    return told


def _row(plan: str, prediction: Prediction, told: dict[str, Any] | None) -> PlanComparison:
    measured = None if told is None else Measurement.from_dict(told["measured"])
    return PlanComparison(plan, prediction.plan(plan), measured)
