"""What is alive at the peak of a step: its parts by role, and the largest tensors with the node that made each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from peakcast.featurizer.lifetimes import NO_NODE, NO_REUSE, Lifetimes, StepEvents
from peakcast.featurizer.trace import Int64, Trace
from peakcast.featurizer.vocabulary import ROLES

if TYPE_CHECKING:
    from peakcast.featurizer.spec import GraphSpec

TOP_TENSORS: Final = 10


@dataclass(frozen=True, slots=True)
class Parts:
    """Bytes alive at the peak by what they are for. They add up to what the allocator counts as allocated.

    `rounding_bytes` is what blocks have beyond their tensors: sizes round up to 512 bytes, and a rest of up to 1 MiB
    of a large block is not split off.
    """

    parameters_bytes: int
    buffers_bytes: int
    inputs_bytes: int
    outputs_bytes: int
    gradients_bytes: int
    optimizer_state_bytes: int
    saved_activations_bytes: int
    temporaries_bytes: int
    workspace_bytes: int
    rounding_bytes: int


@dataclass(frozen=True, slots=True)
class PeakTensor:
    """One tensor alive at the peak. `node` is -1 and `op` empty where it was there before the step."""

    node: int
    op: str
    bytes: int
    line: str | None
    role: str


@dataclass(frozen=True, slots=True, eq=False)
class Peak:
    """The instant of a step's peak. `alive` are the tensors of the step that live then, largest first."""

    node: int
    parts: Parts
    alive: Int64
    label: Int64  # as `alive`: the buffer that uses each tensor's memory at that instant
    step: StepEvents

    def at_nodes(self, origin: Int64) -> Peak:
        """Return the peak with its nodes named by what `origin` has in their places."""
        node = int(origin[self.node]) if self.node >= 0 else self.node
        return replace(self, node=node, step=self.step.at_nodes(origin))

    def top_tensors(self, spec: GraphSpec, trace: Trace, count: int | None = TOP_TENSORS) -> tuple[PeakTensor, ...]:
        """Return the largest tensors, workspaces left out; all of them where `count` is None."""
        found = []
        for tensor, label in zip(self.alive.tolist(), self.label.tolist(), strict=True):
            if tensor in self.step.workspaces:
                continue
            node = _maker(self.step, trace, label)
            line = int(trace.line[node]) if node != NO_NODE else -1
            found.append(
                PeakTensor(
                    node=node,
                    op=spec.ops[trace.op[node]] if node != NO_NODE else "",
                    bytes=int(self.step.bytes[tensor]),
                    line=spec.lines[line] if 0 <= line < len(spec.lines) else None,
                    role=ROLES[self.step.role[label]],
                )
            )
            if len(found) == count:
                break
        return tuple(found)


def _maker(step: StepEvents, trace: Trace, label: int) -> int:
    """Return the node that makes a tensor. A compiled region may run it in another node's place."""
    at = int(step.node[label])
    return int(trace.storages.born[label]) if label < len(trace.storages) and at != NO_NODE else at


def locate(step: StepEvents, lifetimes: Lifetimes, tensor: int, allocated_bytes: int) -> Peak:
    """Find what is alive when `tensor` is allocated (-1: when the step starts), at `allocated_bytes` in all."""
    # Not found: it was there before the step. The peak of a first step may be its start.
    moment = int(next(iter(np.flatnonzero(step.events == tensor)), -1)) if tensor >= 0 else -1
    node = int(step.event_node[moment]) if moment >= 0 else NO_NODE
    alive_mask = np.zeros(len(step.bytes), np.bool_)
    alive_mask[step.start] = True
    before = step.events[: moment + 1]
    alive_mask[before[before >= 0]] = True
    alive_mask[~before[before < 0]] = False
    alive = np.flatnonzero(alive_mask)
    alive = alive[np.argsort(-step.bytes[alive], kind="stable")]
    label = _labels(step, lifetimes, node)[alive]
    return Peak(node, _parts(step, alive, label, allocated_bytes), alive, label, step)


def _labels(step: StepEvents, lifetimes: Lifetimes, node: int) -> Int64:
    """Return, for each tensor, the buffer that uses its memory at a node: the latest born of those that share it."""
    label = np.arange(len(step.bytes))
    heirs = np.flatnonzero((lifetimes.reuses != NO_REUSE) & (lifetimes.born >= 0) & (lifetimes.born <= node))
    heirs = heirs[np.argsort(lifetimes.born[heirs], kind="stable")]
    label[step.root[heirs]] = heirs  # the last assignment wins
    return label


def _parts(step: StepEvents, alive: Int64, label: Int64, allocated_bytes: int) -> Parts:
    is_workspace: NDArray[np.bool_] = alive >= step.workspaces.start
    by_role = np.zeros(len(ROLES), np.int64)
    np.add.at(by_role, step.role[label[~is_workspace]], step.bytes[alive[~is_workspace]])
    role_bytes = dict(zip(ROLES, by_role.tolist(), strict=True))
    return Parts(
        parameters_bytes=role_bytes["parameter"],
        buffers_bytes=role_bytes["buffer"],
        inputs_bytes=role_bytes["input"],
        outputs_bytes=role_bytes["output"],
        gradients_bytes=role_bytes["gradient"],
        optimizer_state_bytes=role_bytes["optimizer_state"],
        saved_activations_bytes=role_bytes["saved"],
        temporaries_bytes=role_bytes["temporary"],
        workspace_bytes=int(step.bytes[alive[is_workspace]].sum()),
        rounding_bytes=allocated_bytes - int(step.bytes[alive].sum()),
    )
