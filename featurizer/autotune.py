"""What inductor tries on the card in a step that it compiles: paddings of products, configurations of kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from peakcast.featurizer.kernel_trials import L2_CACHE_BYTES, with_kernels_timed
from peakcast.featurizer.lifetimes import Lifetimes, StepEvents
from peakcast.featurizer.pad_trials import padding_trial
from peakcast.featurizer.trace import Trace
from peakcast.featurizer.vocabulary import BACKWARD, TEMPORARY

if TYPE_CHECKING:
    from peakcast.featurizer.spec import GraphSpec


def with_autotuning(
    step: StepEvents, trace: Trace, spec: GraphSpec, lifetimes: Lifetimes, *, recorded: bool = False
) -> StepEvents:
    """Return a cold first step with what the compiler tries on the card before and while it runs.

    `recorded` under CUDA graphs: what was tried before the step is gone then, since a recording, or the preparation of
    one, begins by giving back all that is cached (`torch.cuda.graph`).
    """
    tuned = with_kernels_timed(step, trace, spec.ops, lifetimes)
    matrices = () if recorded else padding_trial(trace, spec.ops, spec.dtypes)
    return _with_trial(tuned, trace, matrices) if matrices else tuned


def with_autotuning_again(
    step: StepEvents, trace: Trace, spec: GraphSpec, lifetimes: Lifetimes, changed: int
) -> StepEvents:
    """Return a step in which the compiler runs a second time, on a graph that differs from the node `changed` on.

    What it tried before it remembers: how products are padded, and the kernels before that node, whose code is the
    same. Later kernels are counted on from another number, so that their code, which names them, is new.
    """
    return with_kernels_timed(step, trace, spec.ops, lifetimes, since=changed)


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
