"""The live bytes of one step over its course, and what lives at their highest: simulated from a graph, or measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from peakcast.featurizer.prior import simulate
from peakcast.featurizer.vocabulary import PHASES

if TYPE_CHECKING:
    from peakcast.featurizer.run import DeviceSpec, RunSpec
    from peakcast.featurizer.spec import GraphSpec

BLOCK_BYTES = 512


@dataclass(frozen=True, slots=True)
class Alive:
    """One tensor, or a workspace, that lives at the peak. `op`, `phase` and `line` are empty where nothing tells."""

    bytes: int
    op: str
    phase: str
    role: str
    line: str

    def to_dict(self) -> dict[str, Any]:
        """Give the fields as JSON values."""
        return {"bytes": self.bytes, "op": self.op, "phase": self.phase, "role": self.role, "line": self.line}


@dataclass(frozen=True, slots=True)
class Timeline:
    """One step. `live_bytes` are taken after each event of a measured step, after each node of a simulated one.

    `peak_bytes` counts what the allocator counts as allocated, `reserved_bytes` what it holds from the driver at most.
    """

    source: Literal["simulated", "measured"]
    live_bytes: tuple[int, ...]
    peak_at: int  # index into live_bytes
    peak_bytes: int
    reserved_bytes: int
    workspace_bytes: int
    alive: tuple[Alive, ...]  # largest first

    def to_dict(self, tensors: int) -> dict[str, Any]:
        """Give the timeline as JSON values, with so many of the largest tensors."""
        return {
            "source": self.source,
            "peak_bytes": self.peak_bytes,
            "reserved_bytes": self.reserved_bytes,
            "workspace_bytes": self.workspace_bytes,
            "peak_at": self.peak_at,
            "live_bytes": list(self.live_bytes),
            "alive": [tensor.to_dict() for tensor in self.alive[:tensors]],
            "alive_count": len(self.alive),
        }


@dataclass(frozen=True, slots=True)
class Difference:
    """What a measured peak holds that the simulated one does not, and the other way round, by size."""

    missing: tuple[Alive, ...]
    surplus: tuple[Alive, ...]

    @property
    def missing_bytes(self) -> int:
        """Bytes that only the measured step holds."""
        return sum(tensor.bytes for tensor in self.missing)

    @property
    def surplus_bytes(self) -> int:
        """Bytes that only the simulated step holds."""
        return sum(tensor.bytes for tensor in self.surplus)


def simulated_timeline(spec: GraphSpec, plan: str, run: RunSpec, device: DeviceSpec) -> Timeline:
    """Simulate a steady step of one plan.

    Raises:
        ValueError: if the plan's name is unknown, or the run's allocator is not valid.
    """
    prior = simulate(spec, plan, run.model_copy(update={"step_of_interest": "steady"}), device)
    trace = spec.traces[prior.trace_plan]
    alive = [
        Alive(
            bytes=tensor.bytes,
            op=tensor.op,
            phase=PHASES[trace.phase[tensor.node]] if tensor.node >= 0 else "",
            role=tensor.role,
            line=tensor.line or "",
        )
        for tensor in prior.peak.top_tensors(spec, trace, count=None)
    ]
    step = prior.peak.step
    taken = set(prior.peak.alive.tolist())
    workspaces = [int(step.bytes[tensor]) for tensor in step.workspaces if tensor in taken]
    alive += [Alive(size, "cuBLAS workspace", "", "workspace", "") for size in workspaces]
    return Timeline(
        source="simulated",
        live_bytes=tuple(prior.watermark_bytes.tolist()),
        peak_at=max(prior.peak_node, 0),
        peak_bytes=prior.steady_allocated_bytes,
        reserved_bytes=prior.steady_reserved_bytes,
        workspace_bytes=sum(workspaces),
        alive=tuple(sorted(alive, key=lambda tensor: -tensor.bytes)),
    )


def difference(measured: Timeline, simulated: Timeline) -> Difference:
    """Match what lives at both peaks by size, as the allocator rounds it, and return what is left on either side."""
    left: dict[int, list[Alive]] = {}
    for tensor in simulated.alive:
        left.setdefault(_rounded(tensor.bytes), []).append(tensor)
    missing = []
    for tensor in measured.alive:
        alike = left.get(_rounded(tensor.bytes))
        if alike:
            alike.pop()
        else:
            missing.append(tensor)
    surplus = [tensor for tensors in left.values() for tensor in tensors]
    return Difference(_largest_first(missing), _largest_first(surplus))


def _rounded(size_bytes: int) -> int:
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


def _largest_first(tensors: Sequence[Alive]) -> tuple[Alive, ...]:
    return tuple(sorted(tensors, key=lambda tensor: -tensor.bytes))


def thinned(values: Sequence[int], most: int) -> tuple[list[int], list[int]]:
    """Return positions and values of at most `most` points of a line, the highest of each stretch, for a plot."""
    series = np.asarray(values, np.int64)
    if len(series) <= most:
        return list(range(len(series))), series.tolist()
    edges = np.linspace(0, len(series), most + 1).astype(int)
    kept = [int(start + np.argmax(series[start:end])) for start, end in pairwise(edges.tolist())]
    return kept, series[kept].tolist()
