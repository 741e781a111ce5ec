"""What inductor takes to choose between configurations of its own kernels, at their first launches.

Each kernel that Triton generates is timed beside its inputs and outputs. The benchmark empties the L2 cache by writing
a buffer of that size; what the kernel writes in place is cloned first. Kernels of the same code, those of like layers,
are timed once. Read in torch's `_inductor/runtime/benchmarking.py` (`InductorBenchmarker`) and `triton_heuristics.py`
(`copy_args_to_cpu_if_needed`).

Shapes: N nodes, T tensors, E events, K launches that are timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from peakcast.featurizer.lifetimes import NEVER, NO_REUSE, Lifetimes, StepEvents
from peakcast.featurizer.op_kinds import OpKind, op_kind
from peakcast.featurizer.trace import Int64, Trace
from peakcast.featurizer.vocabulary import BACKWARD, KERNEL, TEMPORARY

# As an H200's driver tells it. Of cards that were not measured nothing is known better.
L2_CACHE_BYTES: Final = 62_914_560
# Odd numbers, to tell columns apart in a sum that wraps around.
_PRIMES: Final = np.array([2654435761, 40503, 2246822519, 3266489917, 668265263], np.uint64)
# A norm is four operators long after its reductions.
_CHAIN: Final = 5


def with_kernels_timed(
    step: StepEvents, trace: Trace, ops: Sequence[str], lifetimes: Lifetimes, *, since: int = 0
) -> StepEvents:
    """Return a step with the benchmark's buffer at the launch of each compiled part where it takes most.

    One launch of a part stands for all of them: the buffer goes before the kernel runs, and its block serves the next.
    """
    is_kernel_N, part_N = _kernels(trace, ops, lifetimes)
    cloned_N = _cloned_bytes(trace, lifetimes)
    events, at = step.events, step.event_node
    is_birth_E = (events >= 0) & is_kernel_N[at]
    is_launch_N = np.full(len(trace), trace.replayed)
    is_launch_N[at[is_birth_E]] = True
    is_launch_N[lifetimes.born[_heirs(lifetimes)]] = True  # it allocates nothing
    is_launch_N &= is_kernel_N & (lifetimes.in_time(np.arange(len(trace))) >= since)
    place = np.flatnonzero(is_launch_N)
    if not len(place):
        return step
    code = lifetimes.in_time(_code(trace, lifetimes))[place] + cloned_N[place].astype(np.uint64)
    place = place[np.sort(np.unique(code, return_index=True)[1])]
    # A kernel is launched after what it makes is allocated, and before what it reads last goes.
    after = np.searchsorted(at, place) + np.bincount(at[is_birth_E], minlength=len(trace))[place]
    change_E = np.where(events >= 0, step.bytes[events], -step.bytes[~events])
    live = step.bytes[step.start].sum() + np.append(0, np.cumsum(change_E))
    is_frugal_N = (part_N % 2 == 1) | (trace.phase.max() < BACKWARD)
    extra = L2_CACHE_BYTES + _affordable(
        cloned_N[place], is_frugal_N[place], live[after], np.maximum.accumulate(live)[after]
    )
    part = part_N[place]
    largest_first = np.lexsort((-(live[after] + extra), part))
    chosen = np.sort(largest_first[np.unique(part[largest_first], return_index=True)[1]])
    node = place[chosen].astype(np.int32)
    tensor = len(step.bytes) + np.arange(len(chosen))
    where, what = np.repeat(after[chosen], 2), np.stack((tensor, ~tensor), axis=1).ravel()
    return replace(
        step.with_tensors(extra[chosen], TEMPORARY, node),
        events=np.insert(events, where, what),
        event_node=np.insert(at, where, np.repeat(node, 2)),
    )


def _kernels(trace: Trace, ops: Sequence[str], lifetimes: Lifetimes) -> tuple[NDArray[np.bool_], Int64]:
    """Mark the places [N] where a generated kernel runs, and tell which compiled part each place belongs to."""
    if trace.replayed:
        is_kernel = np.array([op == KERNEL for op in ops], np.bool_)[trace.op]
        return lifetimes.in_time(is_kernel), lifetimes.in_time(np.where(trace.phase == BACKWARD, 1, 0))
    kinds = np.array([op_kind(op) for op in ops], np.int64)[trace.op]
    # Backward, sums are over the batch, as for a bias: those kernels have several configurations, like pointwise ones.
    over_rows = (kinds == OpKind.REDUCTION) & (trace.phase != BACKWARD)
    generated = (kinds != OpKind.EXTERN) & ~_joins_a_reduction(trace, lifetimes, over_rows)
    return lifetimes.in_time(generated & (trace.region >= 0)), lifetimes.in_time(trace.compiled_parts())


def _joins_a_reduction(trace: Trace, lifetimes: Lifetimes, reduces_N: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mark the nodes [N] that are one kernel with a reduction over rows: those have one configuration, and no trial."""
    node, storage = trace.inputs.rows(), trace.inputs.ids
    made_by, inlined = trace.storages.born, lifetimes.born[: len(trace.storages)] == NEVER
    joins = reduces_N.copy()
    for _ in range(_CHAIN):
        carries = (made_by >= 0) & joins[np.maximum(made_by, 0)] & (inlined | reduces_N[np.maximum(made_by, 0)])
        before = joins.copy()
        joins[node[carries[storage]]] = True
        if np.array_equal(before, joins):
            break
    return joins


def _cloned_bytes(trace: Trace, lifetimes: Lifetimes) -> Int64:
    """Return what is cloned at each place [N]: what a kernel writes over its inputs."""
    cloned = np.zeros(len(trace), np.int64)
    if trace.replayed:
        count = len(trace.storages)
        read = trace.inputs.rows().astype(np.int64) * count + trace.inputs.ids
        over = np.intersect1d(read, trace.outputs.rows().astype(np.int64) * count + trace.outputs.ids)
        np.add.at(cloned, over // count, trace.storages.bytes[over % count])
        return lifetimes.in_time(cloned)
    heirs = _heirs(lifetimes)
    heirs = heirs[lifetimes.died[lifetimes.reuses[heirs]] == lifetimes.born[heirs]]
    np.add.at(cloned, lifetimes.born[heirs], lifetimes.bytes[heirs])
    return cloned


def _code(trace: Trace, lifetimes: Lifetimes) -> NDArray[np.uint64]:
    """Return a number for each node [N] that is the same for kernels of the same code, those of like layers.

    That is what is computed and of which sizes, back to what lies in memory.
    """
    node, storage = trace.inputs.rows(), trace.inputs.ids
    made_by = trace.storages.born[storage]
    is_inlined = (made_by >= 0) & (lifetimes.born[: len(trace.storages)] == NEVER)[storage]
    size = trace.storages.bytes[storage].astype(np.uint64) * _PRIMES[0]
    columns = np.stack((trace.op, trace.numel, trace.dtype, trace.attribute)).astype(np.uint64)
    own: NDArray[np.uint64] = _PRIMES[1:] @ columns
    code = own
    for _ in range(_CHAIN):
        read = np.where(is_inlined, code[np.maximum(made_by, 0)] * _PRIMES[1], size)
        before, code = code, own.copy()
        np.add.at(code, node, read)
        if np.array_equal(code, before):
            break
    return code


def _heirs(lifetimes: Lifetimes) -> Int64:
    """Return the buffers that take over the memory of others."""
    return np.flatnonzero((lifetimes.reuses != NO_REUSE) & (lifetimes.born >= 0))


def _affordable(cloned_K: Int64, is_frugal_K: NDArray[np.bool_], live_K: Int64, most_live_K: Int64) -> Int64:
    """Return what is cloned on the card at each launch [K], in the order they run.

    In backward and inference (`is_frugal_K`) that is what stays within the peak so far, of earlier trials or the same
    one's first configuration; else it goes to the host. `most_live_K`: the peak so far without trials.
    """
    taken = []
    peak = 0
    rows = zip(cloned_K.tolist(), is_frugal_K.tolist(), live_K.tolist(), most_live_K.tolist(), strict=True)
    for cloned, is_frugal, live, most_live in rows:
        peak = max(peak, most_live)
        is_on_card = not is_frugal or cloned <= max(peak - live, L2_CACHE_BYTES)
        taken.append(cloned if is_on_card else 0)
        peak = max(peak, live + taken[-1] + L2_CACHE_BYTES)
    return np.array(taken, np.int64)
