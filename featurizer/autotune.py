"""What inductor takes on the card to choose between configurations of its own kernels, in a cold first step.

Each kernel that Triton generates is timed at its first launch, beside its inputs and outputs. The benchmark empties the
L2 cache by writing a buffer of that size; what the kernel writes in place is cloned first. Read in torch's
`_inductor/runtime/benchmarking.py` (`InductorBenchmarker`) and `triton_heuristics.py` (`copy_args_to_cpu_if_needed`).

Shapes: N nodes, T tensors, E events.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from peakcast.featurizer.lifetimes import NEVER, NO_REUSE, Lifetimes, StepEvents
from peakcast.featurizer.op_kinds import OpKind, op_kind
from peakcast.featurizer.pad_trials import padding_trial
from peakcast.featurizer.trace import Int64, Trace
from peakcast.featurizer.vocabulary import BACKWARD, KERNEL, TEMPORARY

if TYPE_CHECKING:
    from peakcast.featurizer.spec import GraphSpec

# As an H200's driver tells it. Of cards that were not measured nothing is known better.
L2_CACHE_BYTES: Final = 62_914_560
# A norm is four operators long after its reductions.
_CHAIN: Final = 5


def with_autotuning(
    step: StepEvents, trace: Trace, spec: GraphSpec, lifetimes: Lifetimes, *, recorded: bool = False
) -> StepEvents:
    """Return a cold first step with what the compiler tries on the card before and while it runs.

    `recorded` under CUDA graphs: what was tried before the step is gone then, since a recording, or the preparation of
    one, begins by giving back all that is cached (`torch.cuda.graph`).
    """
    tuned = _with_kernels_timed(step, trace, spec.ops, lifetimes)
    matrices = () if recorded else padding_trial(trace, spec.ops, spec.dtypes)
    return _with_trial(tuned, trace, matrices) if matrices else tuned


def with_autotuning_again(
    step: StepEvents, trace: Trace, spec: GraphSpec, lifetimes: Lifetimes, changed: int
) -> StepEvents:
    """Return a step in which the compiler runs a second time, on a graph that differs from the node `changed` on.

    What it tried before it remembers: how products are padded, and the kernels before that node, whose code is the
    same. Later kernels are counted on from another number, so that their code, which names them, is new.
    """
    return _with_kernels_timed(step, trace, spec.ops, lifetimes, since=changed)


def _with_trial(step: StepEvents, trace: Trace, matrices: tuple[int, ...]) -> StepEvents:
    """Put the trial of a padded product before the step; the workspace it takes stays."""
    workspace = np.array([one for one in step.workspaces if trace.phase[step.node[one]] != BACKWARD], np.int64)
    sizes = np.array([*matrices, L2_CACHE_BYTES], np.int64)
    tensors = len(step.bytes) + np.arange(len(sizes))
    before = np.concatenate((tensors, workspace, ~tensors[::-1]))
    stays = ~np.isin(step.events, workspace)
    return replace(
        step.with_tensors(sizes, TEMPORARY, np.zeros(len(sizes), np.int32)),
        events=np.concatenate((before, step.events[stays])),
        event_node=np.concatenate((np.zeros(len(before), np.int32), step.event_node[stays])).astype(np.int32),
    )


def _with_kernels_timed(
    step: StepEvents, trace: Trace, ops: Sequence[str], lifetimes: Lifetimes, *, since: int = 0
) -> StepEvents:
    """Return a step with the benchmark's buffer at the launch of each compiled part where it takes most.

    One launch of a part stands for all of them: the buffer goes before the kernel runs, and its block serves the next.
    """
    is_kernel_N, segment_N = _kernels(trace, ops, lifetimes)
    events = step.events
    at = step.event_node
    is_timed_N = is_kernel_N & (lifetimes.in_time(np.arange(len(trace))) >= since)
    candidate_E = (events >= 0) & is_timed_N[at]
    if not candidate_E.any():
        return step
    live_E = step.bytes[step.start].sum() + np.cumsum(np.where(events >= 0, step.bytes[events], -step.bytes[~events]))
    extra_N = L2_CACHE_BYTES + _cloned_bytes(trace, lifetimes, segment_N)
    candidates = np.flatnonzero(candidate_E)
    segment, most = segment_N[at[candidates]], live_E[candidates] + extra_N[at[candidates]]
    largest_first = np.lexsort((-most, segment))
    chosen = largest_first[np.unique(segment[largest_first], return_index=True)[1]]
    place = np.sort(candidates[chosen])
    tensor = len(step.bytes) + np.arange(len(place))
    where, what = np.repeat(place + 1, 2), np.stack((tensor, ~tensor), axis=1).ravel()
    return replace(
        step.with_tensors(extra_N[at[place]], TEMPORARY, at[place]),
        events=np.insert(events, where, what),
        event_node=np.insert(at, where, np.repeat(at[place], 2)),
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


def _cloned_bytes(trace: Trace, lifetimes: Lifetimes, segment_N: Int64) -> Int64:
    """Return what is cloned at each place [N]: buffers a kernel of a training's forward writes over its inputs.

    In backward and inference clones stay within what was allocated before, or go to the host.
    """
    cloned = np.zeros(len(trace), np.int64)
    if not (segment_N % 2 == 1).any():
        return cloned
    heirs = np.flatnonzero((lifetimes.reuses != NO_REUSE) & (lifetimes.born >= 0))
    np.add.at(cloned, lifetimes.born[heirs], lifetimes.bytes[heirs])
    cloned[(segment_N < 0) | (segment_N % 2 == 1)] = 0
    return cloned
