"""How far an answer can be trusted, judged by what training covered: the confidence, and the doubts in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any, Self

import numpy as np

from peakcast.featurizer.prior import Prior
from peakcast.featurizer.run import DeviceSpec, RunSpec
from peakcast.featurizer.spec import GraphSpec, walk
from peakcast.featurizer.trace import Trace
from peakcast.featurizer.vocabulary import DTYPE_BYTES, GPU, GRADIENT, KERNEL
from peakcast.featurizer.workspace import generation_of
from peakcast.models.asked import beyond_captured, contradictions, guessed
from peakcast.models.card import card_name, is_foreign, is_slice
from peakcast.models.decision import is_compiled, plan_kind
from peakcast.models.prediction import Confidence

# Ops whose output size is in the data: a trace holds one guess of it.
DATA_DEPENDENT = frozenset(
    f"aten.{stem}"
    for stem in (
        "nonzero",
        "masked_select",
        "_unique2",
        "unique_dim",
        "unique_consecutive",
        "repeat_interleave",
        "bincount",
    )
)
# What PyTorch itself registers ops under. Anything else is somebody's own kernel, whose scratch nobody told.
PYTORCH_NAMESPACES = frozenset(
    (
        *("aten", "prims", "higher_order", "profiler", "inductor", "inductor_prims", "rngprims", "debugprims"),
        *("fsdp", "c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "_dtensor", "symm_mem"),
        *("quantized", "_quantized", "quantization", "quantized_decomposed", "sparse", "export", "_native"),
        *("mkl", "mkldnn", "mkldnn_prepacked", "onednn", "static_runtime", "debug_mode_ops"),
    )
)
# What takes nothing out of sight: operators that only allocate; FSDP's copies in and out of flat buffers; collectives,
# whose own buffers are NCCL's and no allocator's; and in a replayed trace the compiler's own kernels, whose generated
# code allocates all they need.
NO_SCRATCH = frozenset(
    (
        *(KERNEL, "aten.empty", "aten.empty_like", "aten.empty_strided"),
        *("aten.new_empty", "aten.new_empty_strided"),
        *("fsdp.all_gather_copy_in", "fsdp.split_with_sizes_copy", "fsdp.chunk_cat"),
        *("c10d.allreduce", "c10d._allgather_base", "c10d._reduce_scatter_base", "c10d.broadcast"),
        *("_c10d_functional.all_reduce", "_c10d_functional.all_gather_into_tensor"),
        *("_c10d_functional.reduce_scatter_tensor", "_c10d_functional.wait_tensor"),
    )
)
# What a step takes where a kernel of unknown scratch runs is anybody's guess: this often the step without fusion.
OPAQUE_FACTOR = 2
# Of an op never measured the simulation still knows the outputs, not the scratch. Below 1 % of the bytes written such
# scratch is lost in the noise; above 10 % the peak may be the scratch's.
MINOR_SHARE = 0.01
MAJOR_SHARE = 0.10
# One octave beyond what was measured is still near it.
OCTAVES = 1.0
# The dtype a trace names for a node without a tensor output.
NO_TENSOR = "none"
_BLOCK_BYTES = 512  # the caching allocator's granule


@dataclass(frozen=True, slots=True)
class Facts:
    """What of an example decides whether training covered it."""

    op_share: Mapping[str, float]  # op name -> share of all bytes written
    dtypes: frozenset[str]
    plan_kind: str
    task: str
    trace_plan: str  # the plan whose trace was simulated
    derived: bool  # the plan had no trace of its own
    optimizer: str
    autocast: str
    world_size: int
    accumulates: bool
    allocator: str
    device: str  # the generation where the name tells it
    torch: str  # major.minor
    traced_on: str
    log2_nodes: float
    log2_prior: float
    written_bytes: int
    gradients_bytes: int
    unfused_bytes: int  # the step's peak if nothing is fused or reused in place, the prior's workspaces on top
    guessed_values: int = 0  # conditions and integers of the data that capture guessed: other nodes may run
    guessed_sizes: int = 0  # sizes of the data that capture guessed
    contradictions: tuple[str, ...] = ()  # where the run says otherwise than the graph, in words
    far_sizes: tuple[str, ...] = ()  # symbols far from where the graph was captured, in words
    replayed: bool = False  # the trace is the compiler's own code: nothing was learned of such, nor needs to be
    card: str = ""  # the card's model in one spelling, `H200`
    is_a_rank: bool = False  # the trace is of one of `world_size` ranks, with what it allocates for the others
    compiles_itself: bool = False  # the plan compiles nothing, and the step calls torch.compile
    own_cuda_graphs: bool = False  # the step asks for CUDA graphs by itself


def facts_of(spec: GraphSpec, plan: str, prior: Prior, run: RunSpec, device: DeviceSpec) -> Facts:
    """Collect the facts of one plan of a graph."""
    trace = spec.traces[prior.trace_plan]
    written = _written_bytes(trace, spec.ops)
    total_bytes = sum(written.values())
    captured = spec.captured_with
    generation = generation_of(device.name)
    used = np.unique(np.concatenate([part.dtype for part in walk(trace)]))
    return Facts(
        op_share={op: size / max(total_bytes, 1.0) for op, size in written.items()},
        dtypes=frozenset(spec.dtypes[code] for code in used) - {NO_TENSOR},
        plan_kind=plan_kind(plan),
        task=run.task,
        trace_plan=prior.trace_plan,
        derived=prior.trace_plan != plan,
        optimizer=f"{run.optimizer or 'none'}/{run.implementation or 'default'}",
        autocast=run.autocast or "none",
        world_size=run.world_size,
        accumulates=run.accumulation > 1,
        allocator=run.allocator or "default",
        device=f"sm_{generation.capability}" if generation.is_known else device.name,
        torch=".".join(captured.get("torch", "unknown").split("+")[0].split(".")[:2]),
        traced_on=captured.get("traced_on", "unknown"),
        log2_nodes=math.log2(1 + len(trace)),
        log2_prior=math.log2(max(prior.steady_allocated_bytes, 1)),
        written_bytes=int(total_bytes),
        gradients_bytes=int(trace.storages.bytes[trace.storages.role == GRADIENT].sum()),
        unfused_bytes=unfused_bytes(trace) + prior.workspace_bytes,
        guessed_values=guessed(captured, "conditions", "integers"),
        guessed_sizes=guessed(captured, "sizes"),
        contradictions=contradictions(spec, trace, run),
        far_sizes=beyond_captured(spec),
        replayed=trace.replayed,
        card=card_name(device.name),
        is_a_rank=captured.get("world_size") == str(run.world_size),
        compiles_itself=not is_compiled(prior.trace_plan) and bool((trace.region >= 0).any()),
        own_cuda_graphs="own_cuda_graphs" in captured,
    )


def unfused_bytes(trace: Trace) -> int:
    """Return the peak of the storages as traced, each with memory of its own; branches count as if all were run."""
    storages, count = trace.storages, len(trace)
    size_bytes = np.where(storages.device == GPU, -(-storages.bytes // _BLOCK_BYTES) * _BLOCK_BYTES, 0)
    # Place k is before node k: born at node k lives from there, died after node k is gone at k + 1.
    change = np.zeros(count + 2, np.int64)
    np.add.at(change, np.maximum(storages.born, 0), size_bytes)
    dies = storages.died >= 0
    np.add.at(change, storages.died[dies] + 1, -size_bytes[dies])
    inner = sum(unfused_bytes(branch) for _, branches in trace.branches for branch in branches)
    return int(np.cumsum(change).max()) + inner


def _written_bytes(trace: Trace, ops: tuple[str, ...]) -> dict[str, float]:
    """Return the bytes each op writes, nested branches included. An op that writes nothing is listed with 0."""
    written: dict[str, float] = {}
    for part in walk(trace):
        by_node = np.bincount(part.outputs.rows(), weights=part.storages.bytes[part.outputs.ids], minlength=len(part))
        by_op = np.bincount(part.op, weights=by_node, minlength=len(ops))
        for code in np.flatnonzero(np.bincount(part.op)):
            written[ops[code]] = written.get(ops[code], 0.0) + float(by_op[code])
    return written


@lru_cache(maxsize=8192)
def _stem(op: str) -> str:
    """Return namespace and name without the overload: `aten.add_.Tensor` -> `aten.add`."""
    return ".".join(op.split(".")[:2]).removesuffix("_")


@dataclass(frozen=True, slots=True)
class Coverage:
    """What the measured records covered. Lists are sorted, so that equal corpora give equal files."""

    ops: list[str]
    dtypes: list[str]
    plan_tasks: dict[str, list[float]]  # "plan kind/task" -> [log2 nodes min, max, log2 prior min, max]
    optimizers: list[str]
    autocasts: list[str]
    world_sizes: list[int]
    accumulates: list[bool]
    allocators: list[str]
    devices: list[str]
    torch: list[str]
    cards: list[str] = field(default_factory=list)  # none: a version that did not note them
    _ops: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ops", frozenset(self.ops))

    @classmethod
    def fit(cls, facts: Iterable[Facts], *, torch_versions: Iterable[str] = ()) -> Self:
        """Collect what was covered. `torch_versions` of the labels count beside those the graphs were traced with."""
        facts = list(facts)
        ranges: dict[str, list[float]] = {}
        for fact in facts:
            low_n, high_n, low_p, high_p = ranges.get(_plan_task(fact), [math.inf, -math.inf, math.inf, -math.inf])
            nodes, prior = fact.log2_nodes, fact.log2_prior
            ranges[_plan_task(fact)] = [min(low_n, nodes), max(high_n, nodes), min(low_p, prior), max(high_p, prior)]
        return cls(
            ops=sorted({_stem(op) for fact in facts for op in fact.op_share}),
            dtypes=sorted({dtype for fact in facts for dtype in fact.dtypes}),
            plan_tasks=dict(sorted(ranges.items())),
            optimizers=sorted({fact.optimizer for fact in facts}),
            autocasts=sorted({fact.autocast for fact in facts}),
            world_sizes=sorted({fact.world_size for fact in facts}),
            accumulates=sorted({fact.accumulates for fact in facts}),
            allocators=sorted({fact.allocator for fact in facts}),
            devices=sorted({fact.device for fact in facts}),
            torch=sorted({fact.torch for fact in facts} | set(torch_versions)),
            cards=sorted({fact.card for fact in facts} - {""}),
        )

    def joined(self, other: Coverage) -> Coverage:
        """Return what either covered."""
        mine, theirs = self.to_dict(), other.to_dict()
        ranges = dict(mine["plan_tasks"])
        for name, (low_n, high_n, low_p, high_p) in theirs["plan_tasks"].items():
            own = ranges.get(name, [low_n, high_n, low_p, high_p])
            ranges[name] = [min(own[0], low_n), max(own[1], high_n), min(own[2], low_p), max(own[3], high_p)]
        lists = {name: sorted({*mine[name], *theirs[name]}) for name in mine if name != "plan_tasks"}
        return Coverage(**lists, plan_tasks=dict(sorted(ranges.items())))

    def judge(self, facts: Facts) -> tuple[Confidence, tuple[str, ...]]:
        """Return the confidence and the doubts in words, the gravest first."""
        unknown = [*self._unknown_ops(facts), *self._unknown_regime(facts)]
        doubts = [*self._stretched_ops(facts), *self._stretched_regime(facts)]
        if unknown:
            return "unknown", (*unknown, *doubts)
        return ("extrapolating", tuple(doubts)) if doubts else ("in_distribution", ())

    def unseen(self, facts: Facts) -> dict[str, float]:
        """Return the ops never measured and their shares of the bytes written."""
        known = self._ops | NO_SCRATCH
        return {op: share for op, share in facts.op_share.items() if _stem(op) not in known}

    def cautious_bytes(self, facts: Facts) -> int:
        """Return a bound that asks nothing of what was learned.

        Nothing is fused; ops never measured keep what they write and take as much scratch; among ranks that were not
        measured there is a second copy of the gradients, as in the buckets of DDP. Where an op is opaque, all of
        that twice.
        """
        unseen_bytes = 2 * sum(self.unseen(facts).values()) * facts.written_bytes
        copies = facts.gradients_bytes if facts.world_size not in self.world_sizes and not facts.is_a_rank else 0
        factor = OPAQUE_FACTOR if self.opaque(facts) else 1
        return factor * (facts.unfused_bytes + int(unseen_bytes) + copies)

    def opaque(self, facts: Facts) -> tuple[str, ...]:
        """Return the ops never measured and not PyTorch's own: no bound holds for a plan that runs one."""
        return tuple(sorted(op for op in self.unseen(facts) if op.split(".")[0] not in PYTORCH_NAMESPACES))

    def _unknown_ops(self, facts: Facts) -> list[str]:
        unseen = self.unseen(facts)
        foreign = self.opaque(facts)
        found = [f"op never measured and not PyTorch's own: {', '.join(foreign[:5])}"] if foreign else []
        share = sum(share for op, share in unseen.items() if op not in foreign)
        if share > MAJOR_SHARE:
            names = sorted(unseen, key=lambda op: -unseen[op])[:5]
            found.append(f"ops never measured write {share:.0%} of the bytes: {', '.join(names)}")
        return found

    def _stretched_ops(self, facts: Facts) -> list[str]:
        unseen = self.unseen(facts)
        share = sum(unseen.values())
        found = []
        if MINOR_SHARE < share <= MAJOR_SHARE:
            found.append(f"ops never measured write {share:.1%} of the bytes: {', '.join(sorted(unseen)[:5])}")
        dependent = sorted(op for op in facts.op_share if _stem(op) in DATA_DEPENDENT)
        if dependent:
            found.append(f"sizes depend on the data: {', '.join(dependent[:5])}")
        if facts.guessed_sizes:
            sizes = _counted(facts.guessed_sizes, "size")
            found.append(f"{sizes} guessed, for they depend on the data: the step may take more")
        return found

    def _unknown_regime(self, facts: Facts) -> list[str]:
        found = list(facts.contradictions)
        if facts.guessed_values:
            values = _counted(facts.guessed_values, "value")
            found.append(f"the step branches on {values} guessed: it may run more than was traced")
        if is_foreign(facts.card) and facts.card not in self.cards:
            found.append(f"device {facts.card} does not run CUDA: none of its kind was measured")
        if facts.own_cuda_graphs:
            found.append("the step records CUDA graphs by itself, and their pools are not simulated")
        foreign = sorted(dtype for dtype in facts.dtypes if dtype not in DTYPE_BYTES)
        if foreign:
            found.append(f"dtype of unknown size: {', '.join(foreign)}")
        if facts.world_size not in self.world_sizes and not facts.is_a_rank:
            measured = f"{facts.world_size} ranks were not measured (only {self.world_sizes})"
            found.append(f"{measured}, and the graph is not of one of so many")
        if is_compiled(facts.trace_plan) != is_compiled(facts.plan_kind):
            found.append(
                f"plan {facts.plan_kind} has no trace in this graph, and {facts.trace_plan} says little about it"
            )
        elif facts.derived and _plan_task(facts) not in self.plan_tasks:
            found.append(f"plan {facts.plan_kind} has no trace in this graph and was not measured for {facts.task}")
        return found

    def _stretched_regime(self, facts: Facts) -> list[str]:
        found = []
        unmeasured = sorted(facts.dtypes & DTYPE_BYTES.keys() - set(self.dtypes))
        if unmeasured:
            found.append(f"dtype not measured: {', '.join(unmeasured)}")
        found += facts.far_sizes
        if facts.derived:
            found.append(f"plan {facts.plan_kind} has no trace of its own in this graph")
        for name, value, known in (
            ("optimizer", facts.optimizer, self.optimizers),
            ("autocast", facts.autocast, self.autocasts),
            ("allocator", facts.allocator, self.allocators),
            ("device", facts.device, self.devices),
            ("torch", facts.torch, self.torch),
        ):
            if value not in known:
                found.append(f"{name} {value} was not measured (only {', '.join(known)})")
        if facts.card not in self.cards:
            if is_slice(facts.card):
                found.append(f"{facts.card} is a slice of a card, and none was measured")
            elif facts.device in self.devices and self.cards:
                found.append(f"card {facts.card} was not measured (only {', '.join(self.cards)})")
        if facts.world_size not in self.world_sizes and facts.is_a_rank:
            found.append(f"{facts.world_size} ranks were not measured (only {self.world_sizes})")
        if facts.accumulates not in self.accumulates:
            found.append("gradient accumulation was not measured")
        if facts.compiles_itself:
            found.append(f"the step compiles parts by itself, which was not measured under plan {facts.plan_kind}")
        if facts.traced_on == "cpu":
            found.append("traced as the CPU runs it, not as CUDA does")
        return found + self._stretched_range(facts)

    def _stretched_range(self, facts: Facts) -> list[str]:
        known = self.plan_tasks.get(_plan_task(facts))
        if known is None:
            return [f"plan {facts.plan_kind} was not measured for {facts.task}"]
        _, high_nodes, low_prior, high_prior = known
        found = []
        # Few nodes are no doubt: the fewer there are, the less the simulation can miss.
        if facts.log2_nodes > high_nodes + OCTAVES:
            found.append(f"{2**facts.log2_nodes - 1:.0f} nodes; up to {2**high_nodes - 1:.0f} were measured")
        if not low_prior - OCTAVES <= facts.log2_prior <= high_prior + OCTAVES:
            sizes = [f"{2 ** (log2 - 30):.2f}" for log2 in (facts.log2_prior, low_prior, high_prior)]
            found.append(f"{sizes[0]} GiB; {sizes[1]} to {sizes[2]} were measured")
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values for `Coverage(**values)`."""
        return {name: value for name, value in asdict(self).items() if name != "_ops"}


def _counted(count: int, noun: str) -> str:
    return f"1 {noun} that was" if count == 1 else f"{count} {noun}s that were"


def _plan_task(facts: Facts) -> str:
    return f"{facts.plan_kind}/{facts.task}"
