"""Predict the peak GPU memory of a PyTorch training step from its graph, before anything is compiled.

The public names are loaded on first use: `import peakcast` alone imports neither torch nor LightGBM nor FastAPI.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from peakcast._version import __version__

if TYPE_CHECKING:
    from peakcast.client.ask import predict
    from peakcast.client.guard.guard import Guard, guard
    from peakcast.client.guard.policy import Policy
    from peakcast.featurizer.capture import capture
    from peakcast.featurizer.capture.workload import Workload
    from peakcast.featurizer.run import DeviceSpec, RunSpec
    from peakcast.featurizer.spec import GraphSpec
    from peakcast.models.prediction import Prediction

__all__ = [
    "DeviceSpec",
    "GraphSpec",
    "Guard",
    "Policy",
    "Prediction",
    "RunSpec",
    "Workload",
    "__version__",
    "capture",
    "guard",
    "predict",
]

_HOMES = {
    "DeviceSpec": "peakcast.featurizer.run",
    "GraphSpec": "peakcast.featurizer.spec",
    "Guard": "peakcast.client.guard.guard",
    "Policy": "peakcast.client.guard.policy",
    "Prediction": "peakcast.models.prediction",
    "RunSpec": "peakcast.featurizer.run",
    "Workload": "peakcast.featurizer.capture.workload",
    "capture": "peakcast.featurizer.capture",
    "guard": "peakcast.client.guard.guard",
    "predict": "peakcast.client.ask",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'peakcast' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
