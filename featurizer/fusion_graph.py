"""The nodes of compiled graphs as Python lists, for rules that walk them one by one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from peakcast.featurizer.op_kinds import OpKind, op_kind, stem
from peakcast.featurizer.trace import Csr, Trace
from peakcast.featurizer.vocabulary import BACKWARD

_BLOCK_BYTES = 512
# Views that move elements: what is read through one is not read where it is written.
_MOVING_VIEWS = frozenset(
    {"permute", "transpose", "t", "slice", "select", "expand", "as_strided", "unfold", "split", "split_with_sizes"}
)
_NEEDS_MEMORY = (OpKind.EXTERN, OpKind.WINDOW)
# Computed by ATen, into a buffer that holds the first input: inductor falls back for all reductions but a sum.
_SCATTERS_IN_PLACE = frozenset({"scatter_reduce"})


class CompiledGraph:
    """One trace, seen by the fusion rules. Lists are by node, or by storage where they say so."""

    def __init__(self, trace: Trace, ops: tuple[str, ...]) -> None:
        kinds, stems = [op_kind(op) for op in ops], [stem(op) for op in ops]
        self.kinds = [kinds[op] for op in trace.op.tolist()]
        self.stems = [stems[op] for op in trace.op.tolist()]
        is_view = _views(trace)
        self.is_view: list[bool] = is_view.tolist()  # only renames the one storage it reads
        self.inputs = _rows(trace.inputs)
        self.new = _rows(_allocated(trace))  # the storages that a node allocates
        self.changed = [
            [storage for storage in row if storage not in new] if not view else []
            for row, new, view in zip(_rows(trace.outputs), self.new, self.is_view, strict=True)
        ]  # the storages made before that a node writes to
        # By storage: how many nodes compute with it, and whether one needs it in memory. Views do neither.
        node, storage = _reads(trace, is_view)
        count = len(trace.storages)
        self.readers: list[int] = np.bincount(storage, minlength=count).tolist()
        needs_memory = np.array([kind in _NEEDS_MEMORY for kind in kinds], np.bool_)[trace.op[node]]
        needed = np.concatenate((storage[needs_memory], _written_later(trace, is_view), self._scattered()))
        self.is_needed_in_memory: list[bool] = _flags(needed, count)
        self.numel = _elements(trace)  # by storage: elements of the first tensor in it, 0 where it was there before
        born = trace.storages.born
        # By storage: the type of the first tensor that its maker returns; -1 where it was there before.
        self.dtype: list[int] = np.where(born >= 0, trace.dtype[born] if len(trace) else 0, -1).tolist()
        # By storage: rounded as the allocator rounds, so that equal means that one can take the other's place.
        self.bytes: list[int] = (-(-trace.storages.bytes // _BLOCK_BYTES) * _BLOCK_BYTES).tolist()
        self.born: list[int] = trace.storages.born.tolist()
        self.died: list[int] = trace.storages.died.tolist()
        self.is_donated: list[bool] = _donated(trace).tolist()
        self._last_touch = _last_touch(trace)
        self._dropped_at: dict[int, list[int]] = {}  # by node: the storages made in the step that die with it
        for number, (born_at, died_at) in enumerate(zip(self.born, self.died, strict=True)):
            if born_at >= 0:
                self._dropped_at.setdefault(died_at, []).append(number)

    def _scattered(self) -> NDArray[np.int64]:
        """Return what ATen's `scatter_reduce_` reads beside the copy it writes to (`ScatterFallback`, ir.py)."""
        rows = (row for name, row in zip(self.stems, self.inputs, strict=True) if name in _SCATTERS_IN_PLACE)
        return np.array([storage for row in rows for storage in row[1:]], np.int64)

    def returned_and_dropped(self, end: int) -> set[int]:
        """Return the storages that the graph ending before node `end` returns and that its caller drops at once.

        They die with the graph's last node, as do values that this node is the last to read; but nothing reads them
        then. A view that nothing reads is there because it is returned. An exponential that nothing reads is not: it
        is what inductor's `prepare_softmax_online` leaves of the softmax it replaces.
        """
        last = end - 1
        found = set()
        for storage in self._dropped_at.get(last, ()):
            touched, born = self._last_touch[storage], self.born[storage]
            if touched < last:
                is_returned = touched > born or self.stems[born] != "exp"
            else:
                is_returned = born == last or self.is_view[last]
            if is_returned:
                found.add(storage)
        return found

    def moves_elements(self, view: int) -> bool:
        """Tell whether what is read through this view node lies elsewhere than it was written."""
        return self.stems[view] in _MOVING_VIEWS


def segments(trace: Trace) -> Iterator[tuple[int, int]]:
    """Yield [first, end) of each run of one compiled graph, forward and backward apart."""
    if not len(trace):
        return
    code = np.where(trace.region < 0, -1, trace.region * 2 + (trace.phase == BACKWARD))
    edges = np.flatnonzero(np.diff(code)) + 1
    bounds = [0, *edges.tolist(), len(code)]
    for first, end in pairwise(bounds):
        if code[first] >= 0:
            yield first, end


def _elements(trace: Trace) -> list[int]:
    born = trace.storages.born
    elements: list[int] = np.where(born >= 0, trace.numel[born] if len(trace) else 0, 0).tolist()
    return elements


def _rows(csr: Csr) -> list[list[int]]:
    flat, bounds = csr.ids.tolist(), csr.offsets.tolist()
    return [flat[start:end] for start, end in pairwise(bounds)]


def _nodes(csr: Csr) -> NDArray[np.int64]:
    """Return the row that each id of a column belongs to."""
    return np.repeat(np.arange(len(csr.offsets) - 1), np.diff(csr.offsets))


def _allocated(trace: Trace) -> Csr:
    """Keep, of what each node returns, the storages that it allocates."""
    outputs = trace.outputs
    is_new = trace.storages.born[outputs.ids] == _nodes(outputs)
    kept_before = np.concatenate(([0], np.cumsum(is_new)))
    return Csr(offsets=kept_before[outputs.offsets].astype(np.int32), ids=outputs.ids[is_new])


def _views(trace: Trace) -> NDArray[np.bool_]:
    inputs, outputs = trace.inputs, trace.outputs
    views: NDArray[np.bool_] = (np.diff(inputs.offsets) == 1) & (np.diff(outputs.offsets) == 1)
    candidates = np.flatnonzero(views)
    views[candidates] = inputs.ids[inputs.offsets[candidates]] == outputs.ids[outputs.offsets[candidates]]
    return views


def _reads(trace: Trace, is_view: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return each pair of a node that computes and a storage it reads, once."""
    node, count = _nodes(trace.inputs), max(len(trace.storages), 1)
    computes = ~is_view[node]
    pairs = np.unique(node[computes] * count + trace.inputs.ids[computes])
    return pairs // count, pairs % count


def _written_later(trace: Trace, is_view: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the storages that a node writes which did not make them: there must be memory to write to."""
    node, storage = _nodes(trace.outputs), trace.outputs.ids
    written: NDArray[np.int64] = storage[~is_view[node] & (trace.storages.born[storage] != node)]
    return written


def _last_touch(trace: Trace) -> list[int]:
    """Return the last node that reads, writes or views each storage; -1 where none does."""
    touched = np.full(len(trace.storages), -1, np.int64)
    for csr in (trace.inputs, trace.outputs):
        np.maximum.at(touched, csr.ids, _nodes(csr))
    return touched.tolist()


def _flags(ids: NDArray[np.int64], count: int) -> list[bool]:
    flags = np.zeros(count, np.bool_)
    flags[ids] = True
    return flags.tolist()


def _donated(trace: Trace) -> NDArray[np.bool_]:
    """Tell which storages a compiled backward may overwrite: saved by a compiled forward, seen by nobody else."""
    born = trace.storages.born
    if not len(trace):
        return np.zeros(len(born), np.bool_)
    donated: NDArray[np.bool_] = (born >= 0) & (trace.region[born] >= 0) & (trace.phase[born] != BACKWARD)
    donated[trace.inputs.ids[trace.region[_nodes(trace.inputs)] < 0]] = False
    return donated
