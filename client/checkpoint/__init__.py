"""Checkpoints that move between plans and wrappers: saved under one, restored under another, bit for bit.

Loaded on first use: to show or verify a checkpoint takes no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from peakcast.client.checkpoint.faults import CheckpointError, RefusedError
    from peakcast.client.checkpoint.loading import Restored, load
    from peakcast.client.checkpoint.manifest import Manifest, read_manifest
    from peakcast.client.checkpoint.names import plain_state, unwrapped
    from peakcast.client.checkpoint.saving import save
    from peakcast.client.checkpoint.verification import verify

__all__ = [
    "CheckpointError",
    "Manifest",
    "RefusedError",
    "Restored",
    "load",
    "plain_state",
    "read_manifest",
    "save",
    "unwrapped",
    "verify",
]

_HOMES = {
    "CheckpointError": "faults",
    "Manifest": "manifest",
    "RefusedError": "faults",
    "Restored": "loading",
    "load": "loading",
    "plain_state": "names",
    "read_manifest": "manifest",
    "save": "saving",
    "unwrapped": "names",
    "verify": "verification",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
