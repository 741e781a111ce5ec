"""Which bytes live when: from a trace to the allocations and frees of one step, in order.

Shapes: N nodes, S storages of the trace, B >= S buffers of the lifetimes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from peakcast.featurizer.trace import Int32, Int64, Trace, UInt8
from peakcast.featurizer.vocabulary import (
    BUFFER,
    GPU,
    GRADIENT,
    INPUT,
    OPTIMIZER,
    OPTIMIZER_STATE,
    OUTPUT,
    PARAMETER,
    SAVED,
    TEMPORARY,
)
from peakcast.featurizer.workspace import Workspace

T = TypeVar("T", bound=np.generic)

NEVER: Final = -2  # `born` of a buffer that is not materialised
NO_REUSE: Final = -1
NO_NODE: Final = -1

# Moments inside one node, in this order.
_BEFORE, _OUTPUT, _FIRST_CALL, _FIRST_CALL_FREE, _SECOND_CALL, _WORKSPACE, _FREE = range(7)
_MOMENTS: Final = 7

# The order in which a process puts what is alive before the step on the card, by role.
_START_ORDER: Final = np.empty(8, np.int64)
_START_ORDER[[PARAMETER, BUFFER, INPUT, OPTIMIZER_STATE, GRADIENT, SAVED, TEMPORARY, OUTPUT]] = [0, 0, 1, 2, 3, 4, 5, 6]


@dataclass(frozen=True, slots=True, eq=False)
class Lifetimes:
    """When each buffer of a step is allocated and freed. The first S buffers are the trace's storages.

    `born` is the node that allocates it (-1: alive before the first node, NEVER: not materialised), `died` the node
    after which it is freed (-1: outlives the step). `reuses[b]` is the buffer whose memory b takes over when it is
    born (NO_REUSE: its own); the memory is freed when the last of such a chain dies. Buffers beyond S are ones that no
    storage of the trace stands for, such as the zeros a compiled backward gets for unused outputs. `matmul` marks the
    nodes that call cuBLAS where that differs from the operators' names. `time` says which node's place each node takes
    where they do not run in the order of the trace. Where a node makes two calls in turn, `first_call` names the
    scratch that is gone before the second, and `second_call` what that allocates. `spare` names what a library does
    without where memory is short.
    """

    bytes: Int64  # [B]
    role: UInt8  # [B] index into ROLES
    born: Int32  # [B]
    died: Int32  # [B]
    reuses: Int32  # [B]
    matmul: NDArray[np.bool_] | None = None  # [N]
    time: Int32 | None = None  # [N]
    first_call: Int32 = field(default_factory=lambda: np.empty(0, np.int32))
    second_call: Int32 = field(default_factory=lambda: np.empty(0, np.int32))
    spare: Int32 = field(default_factory=lambda: np.empty(0, np.int32))

    def __len__(self) -> int:
        return len(self.bytes)

    def in_time(self, column: NDArray[T]) -> NDArray[T]:
        """Return a column of the trace's nodes [N] by the places in which they run."""
        if self.time is None:
            return column
        placed = np.empty_like(column)
        placed[self.time] = column
        return placed


def observed_lifetimes(trace: Trace) -> Lifetimes:
    """Take births and deaths as traced, which is exact for eager execution. What is not on the GPU is never born."""
    storages = trace.storages
    on_gpu = (storages.device == GPU) & (storages.bytes > 0)
    return Lifetimes(
        bytes=storages.bytes,
        role=storages.role,
        born=np.where(on_gpu, storages.born, NEVER).astype(np.int32),
        died=storages.died,
        reuses=np.full(len(storages), NO_REUSE, np.int32),
    )


@dataclass(frozen=True, slots=True, eq=False)
class StepEvents:
    """One step as events over T tensors: the lifetimes' buffers, then those of branches, then the workspaces.

    An event `e >= 0` allocates tensor e, `~e` frees it. `start` lists what is alive before the first node, in the
    order it was allocated.
    """

    bytes: Int64  # [T]
    role: UInt8  # [T]
    node: Int32  # [T] node that allocates it; NO_NODE: before the step
    root: Int64  # [B] by buffer of the lifetimes: the tensor whose memory it lives in
    start: Int64
    events: Int64  # [E]
    event_node: Int32  # [E]
    survivors: dict[int, int]  # what outlives the step -> what of the next step's start it stands for
    left: list[int]  # what outlives the step and stands for nothing there: dropped when the next one starts
    workspaces: range
    # Tensors that are done without where memory is short.
    spare: Int32 = field(default_factory=lambda: np.empty(0, np.int32))

    @property
    def is_spare(self) -> NDArray[np.bool_]:
        """Mark the tensors [T] that are done without where memory is short."""
        marked = np.zeros(len(self.bytes), np.bool_)
        marked[self.spare] = True
        return marked

    def with_tensors(self, size_bytes: Int64, role: int, node: Int32) -> StepEvents:
        """Return the step with more tensors, numbered after its own, that no event touches yet."""
        return replace(
            self,
            bytes=np.append(self.bytes, size_bytes),
            role=np.append(self.role, np.full(len(size_bytes), role, np.uint8)),
            node=np.append(self.node, node),
        )

    def at_nodes(self, origin: Int64) -> StepEvents:
        """Return the step with its nodes named by what `origin` has in their places."""
        node = np.where(self.node >= 0, origin[self.node], self.node).astype(np.int32)
        return replace(self, node=node, event_node=origin[self.event_node].astype(np.int32))

    def with_workspaces_taken(self) -> StepEvents:
        """Return the step as later ones run: the workspaces are there from the start."""
        stays = self.events < self.workspaces.start  # the last tensors are the workspaces
        return replace(
            self,
            start=np.append(self.start, self.workspaces).astype(np.int64),
            events=self.events[stays],
            event_node=self.event_node[stays],
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Branches:
    """The chosen branch of each `cond`: tensors that live only inside its node, and their events in order."""

    bytes: Int64
    role: UInt8
    node: Int32
    events: Int64
    event_node: Int32


def step_events(
    trace: Trace, lifetimes: Lifetimes, workspaces: Sequence[Workspace] = (), *, is_first: bool = False
) -> StepEvents:
    """Put births and deaths in the order a process would allocate and free.

    All outputs of a node come before its dying inputs go, but the scratch of a first call before the outputs of a
    second; a workspace comes after the outputs of the node that takes it. In the first step (`is_first`) nothing of an
    earlier step is there: optimizer states are born at the first optimizer node, gradients that later steps find in
    place at the first node that touches them, and what an earlier step left behind is not born at all.
    """
    count = len(lifetimes)
    root = _roots(lifetimes)
    born, died = lifetimes.born.astype(np.int64), _chain_deaths(lifetimes, root)
    own = (born != NEVER) & (root == np.arange(count))
    at_start = own & (born == -1)
    birth_moment, death_moment = _calls(lifetimes)
    if is_first:
        born, at_start, moved = _without_history(trace, lifetimes, born, at_start, died)
        birth_moment[moved] = _BEFORE
        own &= born != NEVER
    start = np.flatnonzero(at_start)
    start = start[np.argsort(_START_ORDER[lifetimes.role[start]], kind="stable")]
    inside, ends = np.flatnonzero(own & (born >= 0)), np.flatnonzero(own & (died >= 0))

    branches = _chosen_branches(trace, count)
    nodes = np.array([workspace.node for workspace in workspaces], np.int64)
    sizes = np.array([workspace.bytes for workspace in workspaces], np.int64)
    first_workspace = count + len(branches.bytes)
    events = np.concatenate((branches.events, inside, np.arange(len(nodes)) + first_workspace, ~ends))
    event_node = np.concatenate((branches.event_node, born[inside], nodes, died[ends]))
    moment = np.concatenate(
        (
            np.full(len(branches.events), _BEFORE),
            birth_moment[inside],
            np.full(len(nodes), _WORKSPACE),
            death_moment[ends],
        )
    )
    order = np.argsort(event_node * _MOMENTS + moment, kind="stable")

    survivors, left = _succession(lifetimes, died, inside)
    return StepEvents(
        bytes=np.concatenate((lifetimes.bytes, branches.bytes, sizes)),
        role=np.concatenate((lifetimes.role, branches.role, np.full(len(nodes), TEMPORARY, np.uint8))),
        node=np.concatenate((np.maximum(born, NO_NODE), branches.node, nodes)).astype(np.int32),
        root=root,
        start=start,
        events=events[order],
        event_node=event_node[order].astype(np.int32),
        survivors=survivors,
        left=left,
        workspaces=range(first_workspace, first_workspace + len(nodes)),
        spare=lifetimes.spare,
    )


def _calls(lifetimes: Lifetimes) -> tuple[Int64, Int64]:
    """Return the moment within its node at which each buffer is allocated, and at which it is freed."""
    birth, death = np.full(len(lifetimes), _OUTPUT, np.int64), np.full(len(lifetimes), _FREE, np.int64)
    birth[lifetimes.first_call] = _FIRST_CALL
    death[lifetimes.first_call] = _FIRST_CALL_FREE
    birth[lifetimes.second_call] = _SECOND_CALL
    return birth, death


def _roots(lifetimes: Lifetimes) -> Int64:
    """Return, for each buffer, the one whose allocation it lives in. Pointer jumping: log2(chain) rounds."""
    root = np.where(lifetimes.reuses == NO_REUSE, np.arange(len(lifetimes)), lifetimes.reuses).astype(np.int64)
    while True:
        further = root[root]
        if np.array_equal(further, root):
            return root
        root = further


def _chain_deaths(lifetimes: Lifetimes, root: Int64) -> Int64:
    """Return when the allocation of each root is freed: the latest death in its chain, -1 if one outlives the step."""
    forever = np.int64(np.iinfo(np.int64).max)
    died = np.where(lifetimes.died < 0, forever, lifetimes.died.astype(np.int64))
    result = died.copy()
    np.maximum.at(result, root, np.where(lifetimes.born == NEVER, -1, died))
    return np.where(result == forever, -1, result)


def _without_history(
    trace: Trace, lifetimes: Lifetimes, born: Int64, at_start: NDArray[np.bool_], died: Int64
) -> tuple[Int64, NDArray[np.bool_], NDArray[np.bool_]]:
    """Take out of a steady step what only an earlier step can have put there; also return what the optimizer makes."""
    role = lifetimes.role
    born, at_start = born.copy(), at_start.copy()
    optimizer_nodes = np.flatnonzero(trace.phase == OPTIMIZER)
    states = at_start & (role == OPTIMIZER_STATE)
    if len(optimizer_nodes):
        born[states] = optimizer_nodes[0]
        at_start &= ~states
    gradients = at_start & (role == GRADIENT) & (died < 0)
    if gradients.any():
        touched = _first_touch(trace, len(born))
        gradients &= touched >= 0
        born[gradients] = touched[gradients]
        at_start &= ~gradients
    # Freed inside the step yet there before it: gradients until zero_grad, the last loss until it is overwritten.
    leftovers = at_start & (died >= 0) & ~np.isin(role, (PARAMETER, BUFFER, INPUT))
    born[leftovers] = NEVER
    return born, at_start & ~leftovers, states


def _first_touch(trace: Trace, count: int) -> Int64:
    """Return the first node that reads or writes each storage, -1 where none does."""
    touched = np.full(count, len(trace), np.int64)
    for csr in (trace.inputs, trace.outputs):
        np.minimum.at(touched, csr.ids, csr.rows())
    return np.where(touched == len(trace), -1, touched)


def _succession(lifetimes: Lifetimes, died: Int64, inside: Int64) -> tuple[dict[int, int], list[int]]:
    """Match what outlives a step with what the next one finds at its start and frees: the same bytes, in order."""
    free_places: dict[int, list[int]] = {}
    for place in np.flatnonzero((lifetimes.born == -1) & (died >= 0) & (lifetimes.reuses == NO_REUSE))[::-1].tolist():
        free_places.setdefault(int(lifetimes.bytes[place]), []).append(place)
    survivors, left = {}, []
    for tensor in inside[(died[inside] < 0) & (lifetimes.born[inside] >= 0)].tolist():
        places = free_places.get(int(lifetimes.bytes[tensor]))
        if places:
            survivors[tensor] = places.pop()
        else:
            left.append(tensor)
    return survivors, left


def _chosen_branches(trace: Trace, first_tensor: int) -> _Branches:
    """Inline, for each `cond`, the branch that takes most beyond what lives outside: the maximum, never the sum."""
    sizes, roles, nodes, events, event_nodes = [], [], [], [], []
    for node, branches in trace.branches:
        chosen = max((_branch(branch) for branch in branches), key=lambda inner: inner[2], default=None)
        if chosen is None or not chosen[2]:
            continue
        inner, inner_events, _ = chosen
        tensors = np.where(inner_events >= 0, inner_events + first_tensor, inner_events - first_tensor)
        first_tensor += len(inner)
        sizes.append(inner)
        roles.append(np.full(len(inner), TEMPORARY, np.uint8))
        nodes.append(np.full(len(inner), node, np.int32))
        events.append(tensors)
        event_nodes.append(np.full(len(tensors), node, np.int32))
    empty = np.empty(0, np.int64)
    return _Branches(
        bytes=np.concatenate((empty, *sizes)),
        role=np.concatenate((np.empty(0, np.uint8), *roles)),
        node=np.concatenate((np.empty(0, np.int32), *nodes)),
        events=np.concatenate((empty, *events)),
        event_node=np.concatenate((np.empty(0, np.int32), *event_nodes)),
    )


def _branch(trace: Trace) -> tuple[Int64, Int64, int]:
    """Return a branch's tensors (bytes), its events with everything freed at the end, and its peak of live bytes.

    What it returns is freed too: the node outside allocates it as its own output right after.
    """
    lifetimes = observed_lifetimes(trace)
    steps = step_events(trace, lifetimes)
    operands = set(steps.start.tolist())
    events = [event for event in steps.events.tolist() if (event if event >= 0 else ~event) not in operands]
    alive = dict.fromkeys(event for event in events if event >= 0)
    for event in events:
        if event < 0:
            alive.pop(~event, None)
    program = np.array([*events, *(~tensor for tensor in alive)], np.int64)
    change = np.where(program >= 0, steps.bytes[program], -steps.bytes[~program])
    return steps.bytes, program, int(np.cumsum(change).max(initial=0))
