"""Graphs captured once for all tests of the capture, and how the tests read them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from peakcast.featurizer.prior import Prior
from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.trace import Trace
from peakcast.featurizer.vocabulary import GPU

HERE = Path(__file__).parent
WORKLOADS = HERE / "featurizer" / "capture" / "workloads.py"


@dataclass(frozen=True)
class Captured:
    """What `capture_all.py` wrote, by the name of the workload."""

    folder: Path

    def spec(self, name: str) -> GraphSpec:
        """Return the graph of a workload."""
        failure = self.folder / f"{name}.error"
        assert not failure.exists(), failure.read_text()
        return GraphSpec.from_json((self.folder / f"{name}.json").read_bytes())

    def trace(self, name: str, plan: str = "eager") -> Trace:
        """Return one trace of a workload."""
        return self.spec(name).traces[plan]

    def ops(self, name: str, plan: str = "eager") -> list[str]:
        """Return the operators of a trace in order."""
        spec = self.spec(name)
        return [spec.ops[op] for op in spec.traces[plan].op]

    def error(self, name: str) -> str:
        """Return what the capture of a workload failed with."""
        told: dict[str, str] = json.loads((self.folder / f"{name}.error").read_text())
        return told["error"]


class Simulated(Protocol):
    """Simulates a workload under a plan."""

    def __call__(self, name: str, plan: str = "eager", *, device: str = "NVIDIA H200", **run: str) -> Prior:
        """Return its prior; `run` is put over what was captured."""


CAPTURE_ALL = WORKLOADS.with_name("capture_all.py")


def capture_all(folder: Path, script: Path = CAPTURE_ALL) -> Captured:
    """Capture all workloads of a script in one process of their own: the fake device must be loaded before torch."""
    path = os.pathsep.join(filter(None, [str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path, "TORCHINDUCTOR_COMPILE_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return Captured(folder)


def held(trace: Trace, role: int) -> list[tuple[int, int, int]]:
    """Return (bytes, born, died) of the storages on the GPU with a role, in order of appearance."""
    storages = trace.storages
    chosen = np.flatnonzero((storages.role == role) & (storages.device == GPU))
    return [(int(storages.bytes[i]), int(storages.born[i]), int(storages.died[i])) for i in chosen]


def sizes(trace: Trace, role: int) -> list[int]:
    """Return the bytes of the storages on the GPU with a role, smallest first."""
    return sorted(nbytes for nbytes, _, _ in held(trace, role))


def most_alive_bytes(trace: Trace, phase: int) -> int:
    """Return the most bytes alive at once, on the GPU, of what the nodes of one phase allocate."""
    storages = trace.storages
    born, died = storages.born, np.where(storages.died < 0, len(trace), storages.died)
    mine = (born >= 0) & (storages.device == GPU) & (trace.phase[np.maximum(born, 0)] == phase)
    alive = [int(storages.bytes[mine & (born <= node) & (node <= died)].sum()) for node in range(len(trace))]
    return max(alive, default=0)
