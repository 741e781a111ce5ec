"""The nodes of compiled graphs as Python lists, for rules that walk them one by one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from peakcast.featurizer.op_kinds import op_kind, stem
from peakcast.featurizer.trace import Csr, Trace
from peakcast.featurizer.vocabulary import BACKWARD

_BLOCK_BYTES = 512
# Views that move elements: what is read through one is not read where it is written.
_MOVING_VIEWS = frozenset(
    {"permute", "transpose", "t", "slice", "select", "expand", "as_strided", "unfold", "split", "split_with_sizes"}
)


class CompiledGraph:
    """One trace, seen by the fusion rules. Lists are by node, or by storage where they say so."""

    def __init__(self, trace: Trace, ops: tuple[str, ...]) -> None:
        kinds, stems = [op_kind(op) for op in ops], [stem(op) for op in ops]
        self.kinds = [kinds[op] for op in trace.op.tolist()]
        self.stems = [stems[op] for op in trace.op.tolist()]
        self.inputs = _rows(trace.inputs)
        self.outputs = _rows(trace.outputs)
        # By storage: rounded as the allocator rounds, so that equal means that one can take the other's place.
        self.bytes: list[int] = (-(-trace.storages.bytes // _BLOCK_BYTES) * _BLOCK_BYTES).tolist()
        self.born: list[int] = trace.storages.born.tolist()
        self.died: list[int] = trace.storages.died.tolist()
        self.is_donated: list[bool] = _donated(trace).tolist()

    def new_storages(self, node: int) -> list[int]:
        """Return the storages that a node allocates."""
        return [storage for storage in self.outputs[node] if self.born[storage] == node]

    def is_view(self, node: int) -> bool:
        """Tell whether a node only renames the one storage it reads."""
        return len(self.inputs[node]) == 1 and self.outputs[node] == self.inputs[node]

    def moves_elements(self, view: int | None) -> bool:
        """Tell whether what is read through this view node lies elsewhere than it was written."""
        return view is not None and self.stems[view] in _MOVING_VIEWS

    def readers(self, first: int, end: int) -> dict[int, list[int]]:
        """Return, for each storage, the nodes of [first, end) that compute with it. Views do not."""
        readers: dict[int, list[int]] = {}
        for node in range(first, end):
            if not self.is_view(node):
                for storage in self.inputs[node]:
                    readers.setdefault(storage, []).append(node)
        return readers


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


def _rows(csr: Csr) -> list[list[int]]:
    flat, bounds = csr.ids.tolist(), csr.offsets.tolist()
    return [flat[start:end] for start, end in pairwise(bounds)]


def _donated(trace: Trace) -> NDArray[np.bool_]:
    """Tell which storages a compiled backward may overwrite: saved by a compiled forward, seen by nobody else."""
    born = trace.storages.born
    if not len(trace):
        return np.zeros(len(born), np.bool_)
    donated: NDArray[np.bool_] = (born >= 0) & (trace.region[born] >= 0) & (trace.phase[born] != BACKWARD)
    node_of_read = np.repeat(np.arange(len(trace)), np.diff(trace.inputs.offsets))
    donated[trace.inputs.ids[trace.region[node_of_read] < 0]] = False
    return donated
