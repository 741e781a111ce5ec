"""When inductor allocates a concatenation that is written: with the first part that is.

A concatenation has no kernel of its own (`ConcatKernel` in torch/_inductor/ir.py): each part is written into a slice of
the whole, which `codegen_allocation` in codegen/wrapper.py allocates with the first of them. A part that a generated
kernel makes is written there by that kernel, or copied there by one that is fused with it: what makes a value and what
reads it are fused at any distance. Where `cat` in lowering.py would have to copy every part of a few, one kernel writes
them all (`pointwise_cat`), when the last is there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from peakcast.featurizer.fusion_graph import MOST_PARTS, GraphColumns
from peakcast.featurizer.lifetimes import NEVER, NO_REUSE, Lifetimes
from peakcast.featurizer.op_kinds import OpKind
from peakcast.featurizer.trace import Int64, Trace

# What such a kernel makes can be copied by it, too.
_GENERATED: Final = (OpKind.POINTWISE, OpKind.REDUCTION, OpKind.WINDOW)


def with_early_births(lifetimes: Lifetimes, columns: GraphColumns, trace: Trace) -> Lifetimes:
    """Return the lifetimes with each concatenation that is written born with the first part that is."""
    is_new = columns.new.sizes() == 1
    nodes = np.flatnonzero((columns.kind == OpKind.CONCAT) & is_new & (trace.region >= 0))
    whole = columns.new.ids[columns.new.offsets[nodes]]
    is_written = lifetimes.born[whole] >= 0
    nodes, whole = nodes[is_written], whole[is_written]
    if not len(nodes):
        return lifetimes
    parts = _Parts(columns, trace, lifetimes)
    born = lifetimes.born.copy()
    for node, storage in zip(nodes.tolist(), whole.tolist(), strict=True):
        read = trace.inputs.row(node).astype(np.int64)
        if len(read) > MOST_PARTS or not parts.are_copied(read, node).all():
            born[storage] = min(born[storage], parts.first_made(read, node))
    moved = born < lifetimes.born
    # What it would have taken over may still be in use.
    reused = np.maximum(lifetimes.reuses, 0)
    in_use = moved & (lifetimes.reuses != NO_REUSE) & ((lifetimes.died[reused] >= born) | (lifetimes.died[reused] < 0))
    reuses = np.where(in_use, NO_REUSE, lifetimes.reuses).astype(np.int32)
    return replace(lifetimes, born=born, reuses=reuses)


class _Parts:
    """What the parts of concatenations are to inductor when it lowers these."""

    def __init__(self, columns: GraphColumns, trace: Trace, lifetimes: Lifetimes) -> None:
        self._columns = columns
        self._trace = trace
        self._born = lifetimes.born.astype(np.int64)
        self._run = np.cumsum(np.diff(trace.compiled_parts(), prepend=-1) != 0)  # of one graph, without a break
        node, storage = trace.inputs.rows(), trace.inputs.ids
        count = len(trace.storages)
        self._first_view = _first(node, storage, columns.is_view, count)
        self._first_library_call = _first(node, storage, columns.kind == OpKind.EXTERN, count)

    def are_copied(self, parts: Int64, node: int) -> NDArray[np.bool_]:
        """Tell which parts can only be copied: `can_realize_into_without_copy` in ir.py, or not written so far.

        What was there before; what a library call allocates for itself, or has read: its layout is fixed. So is that of
        an image that is written since it reads or computes much (`maybe_apply_channels_last_stride_order` in graph).
        """
        columns, made_here = self._columns, self._is_made_here(parts, node)
        maker = np.maximum(columns.born[parts], 0)
        kind = columns.kind[maker]
        is_fixed = ~made_here | columns.allocates_itself[maker] | (self._first_library_call[parts] < node)
        is_pointwise = (kind == OpKind.POINTWISE) | (kind == OpKind.WINDOW)
        is_late = columns.is_needed_in_memory[parts]  # which is after the concatenation, or its layout is fixed
        is_unwritten = is_late | (self._born[parts] == NEVER)
        copied: NDArray[np.bool_] = is_fixed | (is_pointwise & (columns.lies_in_images[maker] | is_unwritten))
        return copied

    def first_made(self, parts: Int64, node: int) -> int:
        """Return when the first of the parts that generated kernels write is made; without one, the end of time."""
        maker = np.maximum(self._columns.born[parts], 0)
        found = self._is_made_here(parts, node) & np.isin(self._columns.kind[maker], _GENERATED)
        found &= (self._born[parts] >= 0) & (self._first_view[parts] > node)
        return int(self._born[parts[found]].min(initial=len(self._trace)))

    def _is_made_here(self, parts: Int64, node: int) -> NDArray[np.bool_]:
        made = self._columns.born[parts]
        is_here: NDArray[np.bool_] = (made >= 0) & (self._run[np.maximum(made, 0)] == self._run[node])
        return is_here


def _first(node: Int64, storage: NDArray[np.integer], is_meant: NDArray[np.bool_], count: int) -> Int64:
    """Return the first of the nodes meant that reads each storage [count]; beyond all nodes where none does."""
    first = np.full(count, len(is_meant), np.int64)
    meant = is_meant[node]
    np.minimum.at(first, storage[meant], node[meant])
    return first
