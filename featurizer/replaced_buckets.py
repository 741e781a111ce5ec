"""DDP's first gradient buckets, which can outlive their replacement into the second step.

The order in which gradients became ready is known after the first step. DDP then builds its buckets anew, as the second
step's forward begins, and drops the first ones. But NCCL's process group still holds what it has reduced: it lets go
with the first collective after its watchdog, which looks ten times a second, has seen that the reduction ended
(`torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp`). Seen before the rebuilding talks to the other
ranks, the old buckets go at once; else both sets are there until the first bucket of the second step is reduced. Which
of the two happens is a matter of milliseconds, on each rank by itself: what is expected is the first, what is required
is the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from peakcast.featurizer.lifetimes import NO_NODE, StepEvents
from peakcast.featurizer.trace import Int32, Int64, Trace
from peakcast.featurizer.vocabulary import BUFFER, GPU
from peakcast.featurizer.workspace import op_name

_REDUCES: Final = "allreduce_"


def with_replaced_buckets(
    first: StepEvents, steady: StepEvents, trace: Trace, ops: Sequence[str], time: Int32 | None = None
) -> tuple[StepEvents, StepEvents] | None:
    """Return both steps with a second set of DDP's buckets in the steady one, until it first reduces.

    None where the trace reduces no buckets. Both steps go on numbering the same tensors: the new ones come last. `time`
    is that of the lifetimes.
    """
    reductions = np.flatnonzero(np.array([op_name(op) == _REDUCES for op in ops], np.bool_)[trace.op])
    if not len(reductions):
        return None
    bucket = _buckets(trace, reductions)
    if not len(bucket):
        return None
    count, old = len(first.bytes), np.arange(len(bucket)) + len(first.bytes)
    reduces = int(reductions[0] if time is None else time[reductions].min())
    place = int(np.searchsorted(steady.event_node, reduces, side="right"))
    node = np.full(len(bucket), NO_NODE, np.int32)

    def numbered(step: StepEvents) -> StepEvents:
        assert len(step.bytes) == count
        return step.with_tensors(trace.storages.bytes[bucket], BUFFER, node)

    return numbered(first), replace(
        numbered(steady),
        start=np.append(steady.start, old),
        events=np.insert(steady.events, place, ~old),
        event_node=np.insert(steady.event_node, place, np.full(len(bucket), reduces, np.int32)),
    )


def _buckets(trace: Trace, reductions: Int64) -> Int64:
    """Return the storages that are there before the step and get reduced in it, but are no gradients themselves."""
    storages = trace.storages
    read = np.unique(np.concatenate([trace.inputs.row(int(node)) for node in reductions]))
    kept = (storages.born[read] < 0) & (storages.device[read] == GPU) & (storages.role[read] == BUFFER)
    found: Int64 = read[kept].astype(np.int64)
    return found
