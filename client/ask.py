"""`peakcast.predict`: ask for a graph's peaks, in this process or from a service."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from peakcast.client.facts import with_lines
from peakcast.featurizer.plans import parse_plan
from peakcast.featurizer.polynomials import choose_values
from peakcast.featurizer.run import LARGEST_RISK, LEAST_RISK, DeviceSpec, RunSpec
from peakcast.featurizer.spec import GraphSpec
from peakcast.models.asked import settled_run

if TYPE_CHECKING:
    from peakcast.models.prediction import Prediction


def predict(
    spec: GraphSpec,
    *,
    device_memory_bytes: int | None = None,
    device: DeviceSpec | None = None,
    run: RunSpec | None = None,
    plans: Sequence[str] | None = None,
    risk: float = 0.01,
    symbols: Mapping[str, int] | None = None,
    server: str | None = None,
    token: str | None = None,
    timeout_seconds: float = 30.0,
) -> Prediction:
    """Predict the peak memory of a captured step under each plan, and decide among them.

    Args:
        spec: the captured graph.
        device_memory_bytes: memory of the card; takes the place of `device.total_bytes`.
        device: the card; default: the current CUDA device where torch is loaded and sees one, else an empty H200.
        run: the run that the graph was captured from; each field left out: as the graph says. A task that the graph
            rules out is refused; another contradiction makes the answer `unknown`.
        plans: names as in `peakcast.featurizer.plans`; default: those the graph has traces of.
        risk: how often the true peak may exceed the upper bound, 0.0001 to 0.5.
        symbols: values for the symbols of a graph captured with `symbolic`, such as {"batch": 64}; default: its own.
        server: URL of a service; default: predict in this process.
        token: bearer token for the server; default: the environment's PEAKCAST_TOKEN.
        timeout_seconds: bounds everything that is asked of the server, retries included.

    Raises:
        ValueError: for a plan, risk, run, card, symbol (SymbolError) or server that cannot be.
        TypeError: for a spec that is no GraphSpec, or an argument of another type than it says here.
        AskError: where a server was asked and gave no prediction; ServerError and ServerUnreachableError say more.
        ArtefactError: in-process, if the shipped model is missing or was altered.
    """
    _check_types(spec, run, device, risk, symbols)
    if not LEAST_RISK <= risk <= LARGEST_RISK:
        raise ValueError(f"risk must be from {LEAST_RISK:g} to {LARGEST_RISK:g}, got {risk!r}")
    if isinstance(plans, str):
        raise TypeError(f"plans must be a list of names such as ['eager', 'inductor'], got the text {plans!r}")
    if plans is not None:
        for plan in plans:
            parse_plan(plan)
    device = device or _current_device()
    if device_memory_bytes is not None:
        device = DeviceSpec.model_validate({**device.model_dump(), "total_bytes": device_memory_bytes})
    choose_values(spec.symbols, symbols or {})  # raises before a server is asked
    run = settled_run(spec, run)
    if server is not None:
        from peakcast.client.http import Asker

        question: dict[str, Any] = {"run": run.model_dump(), "device": device.model_dump(), "risk": risk}
        if plans is not None:
            question["plans"] = list(plans)
        if symbols:
            question["symbols"] = dict(symbols)
        token = token or os.environ.get("PEAKCAST_TOKEN")
        return Asker(server, token=token, timeout_seconds=timeout_seconds).ask(spec, question)
    from peakcast.models.predictor import Predictor

    prediction = Predictor.load().predict(spec, run=run, device=device, plans=plans, risk=risk, symbols=symbols)
    return with_lines(prediction, spec)


def _check_types(spec: object, run: object, device: object, risk: object, symbols: object) -> None:
    if not isinstance(spec, GraphSpec):
        raise TypeError(
            f"spec must be a peakcast.GraphSpec, got {_kind(spec)}: peakcast.capture(model, inputs, ...) makes one, "
            "GraphSpec.from_json reads one"
        )
    if run is not None and not isinstance(run, RunSpec):
        raise TypeError(f"run must be a peakcast.RunSpec or None, got {_kind(run)}")
    if device is not None and not isinstance(device, DeviceSpec):
        raise TypeError(f"device must be a peakcast.DeviceSpec or None, got {_kind(device)}")
    if symbols is not None and not isinstance(symbols, Mapping):
        raise TypeError(f"symbols must be a mapping such as {{'batch': 64}} or None, got {_kind(symbols)}")
    if isinstance(risk, bool) or not isinstance(risk, int | float):
        raise TypeError(f"risk must be a number from {LEAST_RISK:g} to {LARGEST_RISK:g}, got {_kind(risk)}")


def _kind(value: object) -> str:
    kind = type(value)
    return "None" if value is None else f"an object of {kind.__module__}.{kind.__qualname__}"


def _current_device() -> DeviceSpec:
    # Only where the caller uses torch already: asking for a number must not start CUDA, or import a gigabyte.
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return DeviceSpec()
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return DeviceSpec(name=properties.name, total_bytes=properties.total_memory)
