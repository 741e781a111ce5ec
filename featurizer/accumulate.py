"""Gradients that autograd adds up in place, where a trace on fake tensors shows a new sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from peakcast.featurizer.lifetimes import NO_REUSE, Lifetimes
from peakcast.featurizer.trace import Int32, Trace
from peakcast.featurizer.vocabulary import BACKWARD, GPU, KERNEL
from peakcast.featurizer.workspace import op_name

_ADD = "aten.add.Tensor"


def accumulated_in_place(lifetimes: Lifetimes, trace: Trace, ops: Sequence[str]) -> Lifetimes:
    """Return the lifetimes in which a second gradient of one value is added into the first.

    Autograd's `InputBuffer::accumulate` (input_buffer.cpp) does so where it holds the first one alone, that is where it
    dies in the sum, and neither is a tensor subclass; fake tensors are, so that their traces show a third tensor. A
    view holds its base and so never is alone, as the transposed gradient of a linear layer's weight. The sums that
    backward formulas write are few, and take the same.
    """
    if _ADD not in ops or not len(trace):
        return lifetimes
    is_sum = (
        (trace.op == list(ops).index(_ADD)) & (trace.phase == BACKWARD) & (trace.region < 0) & (trace.device == GPU)
    )
    born, died, size_bytes = trace.storages.born, trace.storages.died, trace.storages.bytes
    reads, writes = trace.inputs.sizes(), trace.outputs.sizes()
    node = np.flatnonzero(is_sum & (reads == 2) & (writes == 1))
    first, total = trace.inputs.ids[trace.inputs.offsets[node]], trace.outputs.ids[trace.outputs.offsets[node]]
    is_held_alone = (died[first] == node) & (born[first] >= 0) & (born[first] < node) & (lifetimes.born[first] >= 0)
    adds = is_held_alone & (born[total] == node) & (size_bytes[first] == size_bytes[total])
    first, total = first[adds], total[adds]
    is_whole = ~_is_view(trace, ops, first)
    reuses = lifetimes.reuses.copy()
    reuses[total[is_whole]] = first[is_whole]
    return lifetimes if (reuses == NO_REUSE).all() else replace(lifetimes, reuses=reuses)


def _is_view(trace: Trace, ops: Sequence[str], storages: Int32) -> NDArray[np.bool_]:
    """Tell of which storages a view is at hand where they die: the node that read each last, before that, made it."""
    reader, read = trace.inputs.rows(), trace.inputs.ids
    earlier = reader < trace.storages.died[read]
    last = np.full(len(trace.storages), -1, np.int64)
    np.maximum.at(last, read[earlier], reader[earlier])
    node = last[storages]
    count = len(trace.storages)
    returns = np.isin(node * count + storages, trace.outputs.rows() * count + trace.outputs.ids)
    is_in_place = np.fromiter((_writes_what_it_is_given(op) for op in ops), np.bool_, len(ops))
    is_view: NDArray[np.bool_] = (node >= 0) & returns & ~is_in_place[trace.op[node]]
    return is_view


def _writes_what_it_is_given(op: str) -> bool:
    """Tell whether an operator returns a tensor that it was given, not a view: in place, by `out=`, or a kernel."""
    return op_name(op).endswith("_") or op.endswith((".out", "_out")) or op == KERNEL
