"""Capture a step as CUDA would run it. The only place that traces, and the only one here that needs torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from peakcast.featurizer.capture.api import capture
    from peakcast.featurizer.capture.isolated import CaptureError, capture_workload
    from peakcast.featurizer.capture.workload import Workload

__all__ = ["CaptureError", "Workload", "capture", "capture_workload"]

_HOME = {"capture": "api", "CaptureError": "isolated", "capture_workload": "isolated", "Workload": "workload"}


def __getattr__(name: str) -> Any:
    """Import on first use: the worker must load its fake device before torch."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
