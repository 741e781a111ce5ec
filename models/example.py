"""One (graph, plan, run, card) turned into the numbers the pair reads: the same code for training and for serving.

Shapes: N nodes, T steps of the sequence (T <= MAX_STEPS), C = 14 channels, K context, Q = 5 quantities.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peakcast.featurizer.nodes import node_matrix
from peakcast.featurizer.prior import Prior
from peakcast.featurizer.run import DeviceSpec, RunSpec
from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.summary import summarize
from peakcast.featurizer.vocabulary import QUANTITIES
from peakcast.models.coverage import Facts, facts_of
from peakcast.models.decision import DEFAULT_SPEED, plan_kind
from peakcast.models.scratch import overshoot_bytes, overshoot_features

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]

# The sequence is read one step at a time, in Python: 128 steps keep that near 1 ms.
MAX_STEPS = 128
CHANNELS = 14  # the 12 of a node, log2(1 + nodes in the step), phase / 3
PLAN_KINDS = tuple(sorted(DEFAULT_SPEED))
CONTEXT_NAMES = (
    *(f"plan={kind}" for kind in PLAN_KINDS),
    "training",
    "bfloat16",
    "float16",
    "accumulates",
    "log2_prior_gib",
    "log2_nodes",
)


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """What the pair knows of one plan of one graph before it answers."""

    plan: str
    task: str
    prior_bytes: Floats  # [Q], in the order of QUANTITIES
    parameters_bytes: int  # buffers included; no quantity can be below
    optimizer_state_bytes: int  # on top of that in a steady step
    scratch_bytes: float  # how far the peak would rise if kernels took as much as they read and write
    summary: Mapping[str, float]
    steps_TC: Singles
    watermark_T: Singles  # largest simulated live bytes of the step's nodes, as a share of the peak
    peak_step: int
    context_K: Singles
    facts: Facts
    most_allocated_bytes: int = 0  # in a steady step where a rank is unlucky; 0: luck has no part in it

    @property
    def floor_bytes(self) -> Floats:
        """Return what each quantity [Q] holds at least. A fresh first step has no optimizer state yet."""
        steady = self.parameters_bytes + self.optimizer_state_bytes
        return np.array(
            [self.parameters_bytes if name.startswith("first") else steady for name in QUANTITIES], dtype=float
        )

    @property
    def is_eager(self) -> bool:
        """Tell whether the plan runs without a compiler."""
        return self.plan.startswith("eager")


def make_example(spec: GraphSpec, plan: str, prior: Prior, run: RunSpec, device: DeviceSpec) -> Example:
    """Turn one plan of a graph and its prior into an example."""
    nodes_NF = node_matrix(spec, prior.trace_plan)
    trace = spec.traces[prior.trace_plan]
    steps_TC, watermark_T, peak_step = pool_nodes(nodes_NF, trace.phase, prior.watermark_bytes, prior.peak_node)
    overshoot = overshoot_bytes(spec, prior)
    prior_bytes = np.array([getattr(prior, f"{quantity}_bytes") for quantity in QUANTITIES], dtype=float)
    return Example(
        plan=plan,
        task=run.task,
        prior_bytes=np.maximum(prior_bytes, 1.0),
        parameters_bytes=prior.parameters_bytes,
        optimizer_state_bytes=prior.optimizer_state_bytes,
        scratch_bytes=max(overshoot.values()),
        summary={**summarize(spec, plan, prior, run, device), **overshoot_features(overshoot, prior)},
        steps_TC=steps_TC,
        watermark_T=watermark_T,
        peak_step=peak_step,
        context_K=_context(plan, run, prior_bytes[0], len(trace)),
        facts=facts_of(spec, plan, prior, run, device),
        most_allocated_bytes=0 if prior.replacing is None else prior.most_allocated_bytes,
    )


def window_edges(count: int, peak: int, max_steps: int = MAX_STEPS) -> NDArray[np.int64]:
    """Cut `count` nodes into at most `max_steps` runs, in order: single nodes around the peak, even runs elsewhere.

    Returns ascending edges [T + 1]; step t holds the nodes `edges[t]:edges[t + 1]`, never none.
    """
    if count <= max_steps:
        return np.arange(count + 1)
    near = max_steps // 2
    start = min(max(peak - near // 2, 0), count - near)
    before, after = start, count - near - start
    # Share the other half in proportion; a side that has nodes gets a step at least.
    steps_before = min(round((max_steps - near) * before / (before + after)), before)
    steps_before = min(max(steps_before, int(before > 0)), max_steps - near - int(after > 0))
    steps_after = min(max_steps - near - steps_before, after)
    head = np.linspace(0, start, steps_before + 1).astype(np.int64)[:-1] if before else np.zeros(0, np.int64)
    middle = np.arange(start, start + near)
    tail = np.linspace(start + near, count, steps_after + 1).astype(np.int64) if after else np.array([count])
    return np.concatenate([head, middle, tail])


def pool_nodes(
    nodes_NF: Singles,
    phase_N: NDArray[np.uint8],
    watermark_N: NDArray[np.int64],
    peak_node: int,
) -> tuple[Singles, Singles, int]:
    """Pool runs of nodes into steps: means of the 12 and of the phase, the count, and the largest watermark.

    Returns (steps_TC, watermark_T, peak_step). An empty trace becomes one step of zeros.
    """
    count = len(nodes_NF)
    if count == 0:
        return np.zeros((1, CHANNELS), np.float32), np.zeros(1, np.float32), 0
    edges = window_edges(count, peak_node)
    starts, sizes = edges[:-1], np.diff(edges)[:, None]
    columns_NC = np.concatenate([nodes_NF, phase_N[:, None].astype(np.float32) / 3.0], axis=1)
    means = np.add.reduceat(columns_NC, starts, axis=0) / sizes
    steps_TC = np.concatenate([means[:, :-1], np.log2(1.0 + sizes), means[:, -1:]], axis=1).astype(np.float32)
    watermark_T = np.maximum.reduceat(watermark_N, starts) / max(int(watermark_N.max()), 1)
    peak_step = int(np.searchsorted(edges, peak_node, side="right")) - 1
    return steps_TC, watermark_T.astype(np.float32), min(max(peak_step, 0), len(starts) - 1)


def _context(plan: str, run: RunSpec, prior_bytes: float, count: int) -> Singles:
    kind = plan_kind(plan)
    values = [float(kind == known) for known in PLAN_KINDS]
    values += [
        float(run.task == "training"),
        float(run.autocast == "bfloat16"),
        float(run.autocast == "float16"),
        float(run.accumulation > 1),
        math.log2(max(prior_bytes, 1.0)) - 30.0,
        math.log2(1.0 + count) - 10.0,
    ]
    return np.array(values, dtype=np.float32)
