"""Replay: inductor's own plan without a kernel compiled. It lowers for real; its wrapper runs on fake tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from peakcast.featurizer.capture.replay.api import replay_workload
    from peakcast.featurizer.capture.replay.session import Replayed
    from peakcast.featurizer.capture.replay.versions import ReplayUnavailable

__all__ = ["ReplayUnavailable", "Replayed", "replay_workload"]

_HOME = {"Replayed": "session", "replay_workload": "api", "ReplayUnavailable": "versions"}


def __getattr__(name: str) -> Any:
    """Import on first use: the replaying process must load its fake device before torch."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
