"""A graph and its run as a fixed row of numbers for the trees: the prior, its parts, and what kind of work is done.

Bytes enter as log2 or as a share of the prior (steady allocated), so that a row says the same at any scale. What is
not known is NaN, which LightGBM takes as missing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from peakcast.featurizer.allocator_config import AllocatorConfig
from peakcast.featurizer.op_classes import OP_CLASSES, class_codes
from peakcast.featurizer.plans import parse_plan
from peakcast.featurizer.trace import Csr, Trace
from peakcast.featurizer.vocabulary import GPU, PHASES, QUANTITIES
from peakcast.featurizer.workspace import generation_of

if TYPE_CHECKING:
    from peakcast.featurizer.prior import Prior
    from peakcast.featurizer.run import DeviceSpec, RunSpec
    from peakcast.featurizer.spec import GraphSpec

Floats = NDArray[np.float64]

PARTS: Final = (
    "parameters",
    "buffers",
    "inputs",
    "outputs",
    "gradients",
    "optimizer_state",
    "saved_activations",
    "temporaries",
    "workspace",
    "rounding",
)
# Kernels of these classes take scratch that no storage shows, in proportion to what they read and write.
SCRATCH_CLASSES: Final = ("conv", "reduction", "scatter", "sort", "embedding", "attention_cudnn", "attention_flash",
                          "attention_efficient", "attention_math", "rnn", "norm")  # fmt: skip
OPTIMIZERS: Final = ("SGD", "Adam", "AdamW", "Adafactor")
IMPLEMENTATIONS: Final = ("foreach", "fused", "loop")
DTYPE_GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "fp32": ("float32",),
    "half": ("bfloat16", "float16"),
    "int": ("int8", "int16", "int32", "int64"),
    "mask": ("bool", "uint8"),
}

FEATURES: Final[tuple[str, ...]] = (
    *(f"log2_{quantity}_mib" for quantity in QUANTITIES),
    *(f"{quantity}_share" for quantity in QUANTITIES if quantity != "steady_allocated"),
    *(f"{part}_share" for part in PARTS),
    *(f"log2_{part}_mib" for part in PARTS),
    "saved_per_parameter",
    "watermark_mean_share",
    "largest_storage_share",
    "largest_alive_share",
    "top_tensors_share",
    "peak_position",
    *(f"peak_in_{phase}" for phase in PHASES),
    "log2_nodes",
    "log2_storages",
    "log2_regions",
    "region_nodes_share",
    "log2_branches",
    *(f"{phase}_phase_nodes_share" for phase in PHASES),
    *(f"{phase}_phase_born_share" for phase in PHASES),
    *(f"{name}_nodes_share" for name in OP_CLASSES),
    *(f"{name}_born_share" for name in OP_CLASSES),
    *(f"{name}_scratch_share" for name in SCRATCH_CLASSES),
    *(f"{name}_scratch_log2_mib" for name in SCRATCH_CLASSES),
    *(f"{name}_born_fraction" for name in DTYPE_GROUPS),
    "is_training",
    *(f"optimizer_{name.lower()}" for name in OPTIMIZERS),
    *(f"implementation_{name}" for name in IMPLEMENTATIONS),
    "autocast_half",
    "log2_accumulation",
    "log2_world_size",
    "expandable_segments",
    "is_compiled",
    "is_hybrid",
    "is_checkpoint",
    "uses_cuda_graphs",
    "uses_autotune",
    "budget",
    "is_derived",
    "device_capability",
    "torch_version",
    "traced_on_cpu",
)
"""The names, in the order of `summarize`. Append only: shipped models know their columns by it."""

_MIB: Final = 1 << 20


def summarize(spec: GraphSpec, plan: str, prior: Prior, run: RunSpec, device: DeviceSpec) -> dict[str, float]:
    """Return the features of one plan, in the order of FEATURES."""
    trace = spec.traces[prior.trace_plan]
    values = {
        **dict(_prior_features(prior)),
        **dict(_graph_features(spec, trace, prior)),
        **dict(_run_features(plan, run)),
        "is_derived": float(prior.trace_plan != plan),
        "device_capability": float(generation_of(device.name).capability) if prior.is_known_device else math.nan,
        "torch_version": _version_number(spec.captured_with.get("torch", "")),
        "traced_on_cpu": float(spec.captured_with.get("traced_on") == "cpu"),
    }
    return {name: values[name] for name in FEATURES}


def _log2_mib(size_bytes: float) -> float:
    """Return log2 of MiB, 0 for nothing."""
    return math.log2(1.0 + size_bytes / _MIB)


def _prior_features(prior: Prior) -> Iterator[tuple[str, float]]:
    whole = max(prior.steady_allocated_bytes, 1)
    for quantity in QUANTITIES:
        size_bytes = getattr(prior, f"{quantity}_bytes")
        yield f"log2_{quantity}_mib", _log2_mib(size_bytes)
        yield f"{quantity}_share", size_bytes / whole
    for part in PARTS:
        size_bytes = getattr(prior.parts, f"{part}_bytes")
        yield f"{part}_share", size_bytes / whole
        yield f"log2_{part}_mib", _log2_mib(size_bytes)
    parts, top = prior.parts, [tensor.bytes for tensor in prior.top_tensors]
    yield "saved_per_parameter", parts.saved_activations_bytes / max(parts.parameters_bytes, 1)
    count = len(prior.watermark_bytes)
    yield "watermark_mean_share", float(prior.watermark_bytes.mean()) / whole if count else math.nan
    yield "largest_alive_share", max(top, default=0) / whole
    yield "top_tensors_share", sum(top) / whole
    yield "peak_position", max(prior.peak_node, 0) / count if count else math.nan
    for code, phase in enumerate(PHASES):
        yield f"peak_in_{phase}", float(prior.peak_phase == code)


def _graph_features(spec: GraphSpec, trace: Trace, prior: Prior) -> Iterator[tuple[str, float]]:
    whole, count, storages = max(prior.steady_allocated_bytes, 1), len(trace), trace.storages
    size_bytes = np.where(storages.device == GPU, storages.bytes, 0).astype(float)
    is_born = storages.born >= 0
    born = _sums(storages.born[is_born], size_bytes[is_born], count)  # [N]
    yield "largest_storage_share", float(size_bytes.max(initial=0.0)) / whole
    yield "log2_nodes", math.log2(1 + count)
    yield "log2_storages", math.log2(1 + len(storages))
    yield "log2_regions", math.log2(1 + len(np.unique(trace.region[trace.region >= 0])))
    yield "region_nodes_share", float((trace.region >= 0).mean()) if count else 0.0
    yield "log2_branches", math.log2(1 + len(trace.branches))
    yield from _grouped("{}_phase_nodes_share", PHASES, trace.phase, np.ones(count), max(count, 1))
    yield from _grouped("{}_phase_born_share", PHASES, trace.phase, born, whole)

    class_of = class_codes(spec.ops)[trace.op] if count else np.empty(0, np.int64)
    yield from _grouped("{}_nodes_share", OP_CLASSES, class_of, np.ones(count), max(count, 1))
    yield from _grouped("{}_born_share", OP_CLASSES, class_of, born, whole)

    touched = _row_sums(trace.inputs, size_bytes) + _row_sums(trace.outputs, size_bytes)  # [N]
    most = np.zeros(len(OP_CLASSES))
    np.maximum.at(most, class_of, touched)
    for name in SCRATCH_CLASSES:
        scratch = float(most[OP_CLASSES.index(name)])
        yield f"{name}_scratch_share", scratch / whole
        yield f"{name}_scratch_log2_mib", _log2_mib(scratch)

    by_dtype = _sums(trace.dtype, born, len(spec.dtypes))
    for group, names in DTYPE_GROUPS.items():
        of_group = sum(float(by_dtype[code]) for code, dtype in enumerate(spec.dtypes) if dtype in names)
        yield f"{group}_born_fraction", of_group / max(float(born.sum()), 1.0)


def _grouped(
    pattern: str, names: tuple[str, ...], code: NDArray[np.integer], weight: Floats, whole: float
) -> Iterator[tuple[str, float]]:
    """Yield, by name, the share of `whole` that the rows with its code weigh."""
    sums = _sums(code, weight, len(names))
    for name, value in zip(names, sums.tolist(), strict=True):
        yield pattern.format(name), value / whole


def _row_sums(csr: Csr, weight: Floats) -> Floats:
    """Return, for each of N rows, the sum of the weights of its storages."""
    return _sums(csr.rows(), weight[csr.ids], len(csr.offsets) - 1)


def _sums(code: NDArray[np.integer], weight: Floats, length: int) -> Floats:
    """Return, for each of `length` codes, the sum of the weights that have it."""
    return np.bincount(code, weights=weight, minlength=length).astype(np.float64, copy=False)


def _run_features(plan: str, run: RunSpec) -> Iterator[tuple[str, float]]:
    yield "is_training", float(run.task == "training")
    for name in OPTIMIZERS:
        yield f"optimizer_{name.lower()}", float(run.optimizer == name)
    for implementation in IMPLEMENTATIONS:
        yield f"implementation_{implementation}", float(run.implementation == implementation)
    yield "autocast_half", float(run.autocast is not None)
    yield "log2_accumulation", math.log2(run.accumulation)
    yield "log2_world_size", math.log2(run.world_size)
    yield "expandable_segments", float(AllocatorConfig.parse(run.allocator).expandable_segments)
    parsed = parse_plan(plan)
    yield "is_compiled", float(parsed.compiled)
    yield "is_hybrid", float(parsed.compiler == "hybrid")
    yield "is_checkpoint", float(parsed.mode == "checkpoint")
    yield "uses_cuda_graphs", float(parsed.cuda_graphs)
    yield "uses_autotune", float(parsed.mode == "max-autotune")
    yield "budget", parsed.budget if parsed.budget is not None else math.nan


def _version_number(version: str) -> float:
    """Return 2.13.0+cpu as 213; NaN where it is not a version."""
    major, _, rest = version.partition(".")
    minor = rest.split(".")[0]
    if not (major.isascii() and major.isdigit() and minor.isascii() and minor.isdigit()):
        return math.nan
    return float(int(major[:4]) * 100 + int(minor[:4]))
