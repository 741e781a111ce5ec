"""The prior: what physics alone says a step takes, before anything is learned, and where its peak comes from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from peakcast.featurizer.accumulate import accumulated_in_place
from peakcast.featurizer.allocator_config import AllocatorConfig
from peakcast.featurizer.autotune import with_autotuning, with_autotuning_again
from peakcast.featurizer.communicators import communicator_bytes, communicators_of
from peakcast.featurizer.cuda_graphs import graphed
from peakcast.featurizer.lifetimes import Lifetimes, StepEvents, observed_lifetimes, step_events
from peakcast.featurizer.peak import Parts, Peak, PeakTensor, locate
from peakcast.featurizer.plans import parse_plan
from peakcast.featurizer.replaced_buckets import with_replaced_buckets
from peakcast.featurizer.scratch import with_scratch
from peakcast.featurizer.steps import Steps
from peakcast.featurizer.templates import left_to_cublas
from peakcast.featurizer.trace import Int64, Trace
from peakcast.featurizer.views import without_views
from peakcast.featurizer.workspace import (
    CONTEXT_BYTES,
    LIBRARIES_BYTES,
    generation_of,
    product_nodes,
    workspace_kinds,
    workspaces_of,
)

if TYPE_CHECKING:
    from peakcast.featurizer.run import DeviceSpec, RunSpec
    from peakcast.featurizer.spec import GraphSpec

_BLOCK_BYTES: Final = 512


@dataclass(frozen=True, eq=False)
class Prior:
    """Simulated bytes of one plan, and the peak taken apart.

    `trace_plan` is the plan whose trace was used; where it is not `plan`, the numbers are derived. `peak_node` is -1
    where the peak stands before the first node. `watermark_bytes` is what lives after each of the N nodes of a steady
    step. The parts are those of the step of interest at its peak, and add up to what is allocated then.
    """

    plan: str
    trace_plan: str
    peak_phase: int  # index into PHASES
    peak_node: int
    peak: Peak
    top_tensors: tuple[PeakTensor, ...]
    watermark_bytes: Int64  # [N]
    is_known_device: bool  # False: the workspace of an unknown card is a guess
    is_native_allocator: bool  # False: the driver's pool is not simulated, reserved and required are a guess
    steps: Steps
    communicators: int = 0  # process groups that the step uses
    replacing: Steps | None = None  # the same where DDP's first buckets outlive their replacement; None: no buckets

    @property
    def parts(self) -> Parts:
        """What is alive at the peak, by what it is for."""
        return self.peak.parts

    @property
    def steady_allocated_bytes(self) -> int:
        """Peak bytes of live blocks over steps 2 to 4."""
        return self.steps.peaks.steady_allocated_bytes

    @property
    def steady_reserved_bytes(self) -> int:
        """Peak bytes held from the driver over steps 2 to 4."""
        return self.steps.peaks.steady_reserved_bytes

    @property
    def first_allocated_bytes(self) -> int:
        """Peak bytes of live blocks in step 1, what inductor takes to tune its kernels included."""
        return self.steps.peaks.first_allocated_bytes

    @property
    def first_reserved_bytes(self) -> int:
        """Peak bytes held from the driver in step 1."""
        return self.steps.peaks.first_reserved_bytes

    @cached_property
    def required_bytes(self) -> int:
        """The smallest limit under which the steps run, come what may. Costs several simulations at the first call."""
        worst_bytes = 0 if self.replacing is None else self.replacing.required_bytes
        return max(self.steps.required_bytes, worst_bytes)

    @property
    def most_allocated_bytes(self) -> int:
        """Peak bytes of live blocks over steps 2 to 4 where DDP's first buckets outlive their replacement."""
        worst_bytes = 0 if self.replacing is None else self.replacing.peaks.steady_allocated_bytes
        return max(self.steady_allocated_bytes, worst_bytes)

    @property
    def overhead_bytes(self) -> int:
        """Bytes of the process on the card that the allocator does not see: context, libraries, communicators."""
        return CONTEXT_BYTES + LIBRARIES_BYTES + communicator_bytes(self.communicators)

    @property
    def device_bytes(self) -> int:
        """What `nvidia-smi` would show at the peak: reserved, context, libraries and communicators."""
        return self.steps.peaks.reserved_bytes + self.overhead_bytes

    @property
    def parameters_bytes(self) -> int:
        """Parameters and buffers."""
        return self.parts.parameters_bytes + self.parts.buffers_bytes

    @property
    def gradients_bytes(self) -> int:
        """Gradients alive at the peak."""
        return self.parts.gradients_bytes

    @property
    def optimizer_state_bytes(self) -> int:
        """Optimizer state alive at the peak."""
        return self.parts.optimizer_state_bytes

    @property
    def saved_activations_bytes(self) -> int:
        """What the forward keeps for the backward, as far as it is alive at the peak."""
        return self.parts.saved_activations_bytes

    @property
    def temporaries_bytes(self) -> int:
        """Everything else the step allocates and frees."""
        return self.parts.temporaries_bytes

    @property
    def inputs_bytes(self) -> int:
        """Inputs of the step."""
        return self.parts.inputs_bytes

    @property
    def workspace_bytes(self) -> int:
        """The cuBLAS workspaces."""
        return self.parts.workspace_bytes


def simulate(spec: GraphSpec, plan: str, run: RunSpec, device: DeviceSpec) -> Prior:
    """Simulate the first and the steady steps of one plan.

    A plan without a trace of its own is derived from the nearest one that has (`Prior.trace_plan`).

    Raises:
        ValueError: if the plan's name is unknown, or `run.allocator` is not valid (AllocatorConfigError).
    """
    trace_plan = source_plan(spec, plan)
    observed, origin = spec.traces[trace_plan], None
    named, trace = spec, observed
    if (observed.region >= 0).any():
        from peakcast.featurizer.insertions import with_insertions
        from peakcast.featurizer.padded_strides import with_padded_strides

        found = with_insertions(spec, observed)
        if found is not None:
            named, trace, origin = found
        trace = with_padded_strides(trace, named.ops, named.dtypes)
    config = AllocatorConfig.parse(run.allocator)
    generation = generation_of(device.name)
    lifetimes = with_scratch(lifetimes_of(trace, named.ops, named.attributes), trace, named, generation)
    is_fresh = run.step_of_interest != "resumed"
    parsed = parse_plan(plan)
    products = product_nodes(trace, named.ops) if lifetimes.matmul is None else lifetimes.matmul
    if parsed.mode == "max-autotune":
        products = left_to_cublas(trace, named.dtypes, products)
    if parsed.cuda_graphs:
        kinds = workspace_kinds(trace, named.ops, generation, products)
        recorded = graphed(trace, lifetimes, kinds)
        lifetimes = recorded.lifetimes
        first, steady = step_events(trace, recorded.first, is_first=is_fresh), step_events(trace, lifetimes)
        private = recorded.pool_of(steady)
    else:
        workspaces = workspaces_of(trace, named.ops, generation, products)
        first = step_events(trace, lifetimes, workspaces, is_first=is_fresh)
        steady = step_events(trace, lifetimes, workspaces).with_workspaces_taken()
        private = None
    tuned = tuned_again = None
    if trace.replayed or (trace.region >= 0).any():
        tuned = with_autotuning(first, trace, named, lifetimes, recorded=private is not None)
        if observed.compiled_again >= 0 and private is None:
            changed = observed.compiled_again
            changed = changed if origin is None else int(np.searchsorted(origin, changed))
            tuned_again = with_autotuning_again(steady, trace, named, lifetimes, changed)
    steps = Steps(first, steady, config, private, tuned, tuned_again)
    replaced = with_replaced_buckets(first, steady, trace, named.ops, lifetimes.time)
    peaks = steps.peaks
    if run.step_of_interest == "steady":
        # The second step's peak is its own where a trial set it.
        highest = tuned_again if tuned_again is not None and peaks.steady_tensor >= len(steady.bytes) else steady
        peak = locate(highest, lifetimes, peaks.steady_tensor, peaks.steady_allocated_bytes)
    else:
        peak = locate(tuned or first, lifetimes, peaks.first_tensor, peaks.first_allocated_bytes)
    if origin is not None:
        steady, peak = steady.at_nodes(origin), peak.at_nodes(origin)
    return Prior(
        plan=plan,
        trace_plan=trace_plan,
        peak_phase=int(observed.phase[max(peak.node, 0)]) if len(observed) else 0,
        peak_node=peak.node,
        peak=peak,
        top_tensors=peak.top_tensors(spec, observed),
        watermark_bytes=watermark_bytes(steady, len(observed)),
        is_known_device=generation.is_known,
        is_native_allocator=config.is_native,
        steps=steps,
        communicators=communicators_of(observed, spec),
        replacing=None if replaced is None else Steps(*replaced, config),
    )


def lifetimes_of(trace: Trace, ops: tuple[str, ...], attributes: tuple[str, ...]) -> Lifetimes:
    """Return the lifetimes of a trace: as observed, or as the compiler makes them where regions are compiled."""
    if (trace.region >= 0).any():
        from peakcast.featurizer.fusion import fused_lifetimes

        lifetimes = fused_lifetimes(trace, ops, attributes)
    else:
        lifetimes = observed_lifetimes(trace)
    return accumulated_in_place(without_views(lifetimes, trace, ops), trace, ops)


def source_plan(spec: GraphSpec, plan: str) -> str:
    """Return the plan whose trace stands for `plan`: its own, else the nearest one that is there.

    Raises:
        ValueError: if the plan's name is unknown.
    """
    if plan in spec.traces:
        return plan
    wanted = parse_plan(plan)

    def distance(name: str) -> tuple[bool, bool, bool]:
        other = parse_plan(name)
        return other.compiled != wanted.compiled, other.compiler != wanted.compiler, name != other.compiler

    return min(spec.traces, key=distance)


def derivation(spec: GraphSpec, plan: str) -> tuple[str, bool]:
    """Return what tells plans apart that are simulated from one trace: the trace's plan, and CUDA graphs.

    Raises:
        ValueError: if the plan's name is unknown.
    """
    return source_plan(spec, plan), parse_plan(plan).cuda_graphs


def watermark_bytes(step: StepEvents, node_count: int) -> Int64:
    """Return the bytes (rounded to 512) that live after each of N nodes of a step."""
    rounded = -(-step.bytes // _BLOCK_BYTES) * _BLOCK_BYTES
    events = step.events
    change = np.zeros(node_count, np.int64)
    np.add.at(change, step.event_node, np.where(events >= 0, rounded[events], -rounded[~events]))
    live: Int64 = rounded[step.start].sum() + np.cumsum(change)
    return live
