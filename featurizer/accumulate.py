"""Gradients that autograd adds up in place, where a trace on fake tensors shows a new sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from peakcast.featurizer.lifetimes import NO_REUSE, Lifetimes
from peakcast.featurizer.trace import Trace
from peakcast.featurizer.vocabulary import BACKWARD, GPU

_ADD = "aten.add.Tensor"


def accumulated_in_place(lifetimes: Lifetimes, trace: Trace, ops: Sequence[str]) -> Lifetimes:
    """Return the lifetimes in which a second gradient of one value is added into the first.

    Autograd's `InputBuffer::accumulate` (input_buffer.cpp) does so where it holds the first one alone, that is where it
    dies in the sum, and neither is a tensor subclass; fake tensors are, so that their traces show a third tensor. The
    sums that backward formulas write are few, and take the same.
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
    reuses = lifetimes.reuses.copy()
    reuses[total[adds]] = first[adds]
    return lifetimes if (reuses == NO_REUSE).all() else replace(lifetimes, reuses=reuses)
