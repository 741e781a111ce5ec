"""What `reduce-overhead` and `max-autotune` change: CUDA graphs with a private pool, copied inputs, own workspaces.

Read in torch's `_inductor/cudagraph_trees.py`, checked against measured plans. A segment, one compiled region forward
or backward, runs once in the private pool and is recorded in the second step.

- Recording copies each input that is neither a parameter, a buffer nor made by another segment into the pool (user's
  inputs, tangents). The copy goes at the last use; the caller still holds the original.
- cuBLAS workspaces are cleared before and after every segment, so that none is held across its borders.
- The pool shares no block with the rest of the process (`pool_of`).

Shapes: N nodes, S storages, B buffers, T tensors of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from peakcast.featurizer.lifetimes import NEVER, NO_REUSE, Lifetimes, StepEvents
from peakcast.featurizer.trace import Int64, Trace
from peakcast.featurizer.vocabulary import BUFFER, GPU, INPUT, PARAMETER, TEMPORARY

_OUTSIDE: Final = -1
_STATIC: Final = (PARAMETER, BUFFER)


@dataclass(frozen=True, slots=True, eq=False)
class GraphedLifetimes:
    """The lifetimes of a step that is recorded, and which of its buffers only the recording makes."""

    lifetimes: Lifetimes
    copies: range
    segment: Int64  # [N] in the order of time; -1 outside

    @property
    def first(self) -> Lifetimes:
        """The lifetimes of a step before the recording: nothing is copied."""
        born = self.lifetimes.born.copy()
        born[self.copies.start : self.copies.stop] = NEVER
        return replace(self.lifetimes, born=born)

    def pool_of(self, step: StepEvents) -> NDArray[np.bool_]:
        """Mark the tensors [T] of a step that live in the private pool."""
        if not len(self.segment):
            return np.zeros(len(step.node), np.bool_)
        inside: NDArray[np.bool_] = (step.node >= 0) & (self.segment[np.maximum(step.node, 0)] != _OUTSIDE)
        return inside


def graphed(trace: Trace, lifetimes: Lifetimes, takes: Sequence[tuple[NDArray[np.bool_], int]]) -> GraphedLifetimes:
    """Return lifetimes with the inputs' copies, and with each workspace within its segment, as under CUDA graphs.

    Args:
        trace: the trace of the compiled step.
        lifetimes: what lives when without CUDA graphs.
        takes: for each kind of workspace the nodes [N] that take it, and its bytes.
    """
    time = np.arange(len(trace)) if lifetimes.time is None else lifetimes.time.astype(np.int64)
    segment_N = trace.compiled_parts()
    in_time = lifetimes.in_time(segment_N)
    copied = _copies(trace, lifetimes, segment_N, time)
    held = _workspaces(in_time, [(np.sort(time[takers]), size_bytes) for takers, size_bytes in takes])
    added = [*copied, *held]
    bytes_A, born_A, died_A = np.array(added, np.int64).reshape(-1, 3).T
    first = len(lifetimes)
    return GraphedLifetimes(
        replace(
            lifetimes,
            bytes=np.concatenate((lifetimes.bytes, bytes_A)),
            role=np.concatenate((lifetimes.role, np.full(len(added), TEMPORARY, np.uint8))),
            born=np.concatenate((lifetimes.born, born_A.astype(np.int32))),
            died=np.concatenate((lifetimes.died, died_A.astype(np.int32))),
            reuses=np.concatenate((lifetimes.reuses, np.full(len(added), NO_REUSE, np.int32))),
        ),
        range(first, first + len(copied)),
        in_time,
    )


def _copies(trace: Trace, lifetimes: Lifetimes, segment_N: Int64, time: Int64) -> list[tuple[int, int, int]]:
    """Return bytes, birth and death of each input that is copied: those made outside of any segment."""
    if not len(trace):
        return []
    storages = trace.storages
    made_N = storages.born
    outside_S = np.where(made_N >= 0, segment_N[np.maximum(made_N, 0)] == _OUTSIDE, storages.role == INPUT)
    copied_S = outside_S & (storages.device == GPU) & (storages.bytes > 0) & ~np.isin(storages.role, _STATIC)
    copied_S &= lifetimes.born[: len(storages)] != NEVER
    reader, read = trace.inputs.rows(), trace.inputs.ids
    kept = copied_S[read] & (segment_N[reader] != _OUTSIDE)
    reader, read = reader[kept], read[kept]
    codes, code_N = np.unique(segment_N, return_inverse=True)
    start_C = np.full(len(codes), len(trace), np.int64)
    np.minimum.at(start_C, code_N, time)
    # One copy for each storage that a segment reads, until it does so for the last time.
    copies, copy = np.unique(code_N[reader] * len(storages) + read, return_inverse=True)
    last = np.zeros(len(copies), np.int64)
    np.maximum.at(last, copy, time[reader])
    code, storage = np.divmod(copies, max(len(storages), 1))
    return list(zip(storages.bytes[storage].tolist(), start_C[code].tolist(), last.tolist(), strict=True))


def _workspaces(in_time: Int64, takes: Sequence[tuple[Int64, int]]) -> list[tuple[int, int, int]]:
    """Return bytes, birth and death of each workspace: from the first product of a stretch to the stretch's end."""
    borders = np.flatnonzero(np.diff(in_time)) + 1
    ends = np.append(borders, len(in_time)) - 1
    found = []
    for nodes, size_bytes in takes:
        stretch, first = np.unique(np.searchsorted(borders, nodes, side="right"), return_index=True)
        found += [(size_bytes, int(nodes[place]), int(ends[one])) for one, place in zip(stretch, first, strict=True)]
    return found
