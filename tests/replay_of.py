"""Small replays made once for the tests of replay, and how the tests read them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.trace import Trace
from peakcast.featurizer.vocabulary import GPU

FOLDER = Path(__file__).parent / "featurizer" / "capture" / "replay"
# The sizes of `replay_workloads.py`.
BATCH, WIDTH, HIDDEN, OUT = 16, 64, 128, 32
HEADS_BATCH, TOKENS, CHANNELS = 4, 64, 32
ROWS, INNER, ODD = 2048, 256, 513


@dataclass(frozen=True)
class Replays:
    """What `replay_all.py` wrote, by the name of the workload."""

    folder: Path

    def spec(self, name: str) -> GraphSpec:
        """Return the graph of a workload."""
        return GraphSpec.from_json((self.folder / f"{name}.json").read_bytes())

    def trace(self, name: str, plan: str = "inductor") -> Trace:
        """Return one trace of a workload."""
        return self.spec(name).traces[plan]

    def ops(self, name: str, plan: str = "inductor") -> list[str]:
        """Return the operators of a trace in order."""
        spec = self.spec(name)
        return [spec.ops[op] for op in spec.traces[plan].op]

    def otherwise(self, name: str) -> GraphSpec | None:
        """Return the graph with products padded the other way."""
        path = self.folder / f"{name}.otherwise.json"
        return GraphSpec.from_json(path.read_bytes()) if path.exists() else None

    def told(self, name: str) -> dict[str, Any]:
        """Return what could not be replayed or decided."""
        told: dict[str, Any] = json.loads((self.folder / f"{name}.told.json").read_text())
        return told


def live_bytes(trace: Trace) -> list[int]:
    """Return the bytes of the storages on the GPU that live during each node, unrounded."""
    storages = trace.storages
    on_gpu = storages.device == GPU
    died = np.where(storages.died < 0, len(trace), storages.died)
    return [int(storages.bytes[on_gpu & (storages.born <= node) & (died >= node)].sum()) for node in range(len(trace))]


def replay_all(folder: Path) -> Replays:
    """Replay all workloads in one process of their own: the fake device must be loaded before torch."""
    path = os.pathsep.join([str(FOLDER.parents[2]), os.environ.get("PYTHONPATH", "")])
    variables = {
        **os.environ,
        "PYTHONPATH": path,
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
    }
    command = [sys.executable, "-W", "ignore", str(FOLDER / "replay_all.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    assert done.returncode == 0, done.stderr[-3000:]
    return Replays(folder)
