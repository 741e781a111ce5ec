"""Bytes that no tensor of the graph shows: cuBLAS workspaces, the CUDA context, the libraries' own memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from peakcast.featurizer.trace import Trace
from peakcast.featurizer.vocabulary import BACKWARD, GPU

# torch asks cuBLAS for :4096:2:16:8 (KiB x count) before Hopper and for :4096:8:0:0 from Hopper on
# (`aten/src/ATen/cuda/CublasHandlePool.cpp`).
_WORKSPACE_BEFORE_HOPPER_BYTES: Final = (4096 * 2 + 16 * 8) * 1024  # 8,519,680
_WORKSPACE_HOPPER_BYTES: Final = 4096 * 8 * 1024  # 32 MiB

# Products with a bias go through cuBLASLt, which takes this on top, in the small pool. Measured on an H200, torch 2.11:
# 1 MiB more from the first `addmm` on, kept. Versions in which cuBLASLt shares cuBLAS's workspace take less by that.
LT_WORKSPACE_BYTES: Final = 1 << 20

# Measured on an H200, driver for CUDA 13, torch 2.11: memory a process takes beyond what the allocator reserved.
# A bare context, and 767 MiB once cuDNN and cuBLAS are loaded (ResNet-50).
# Of one call, whatever an attribute says: as much as the largest storage that a graph may name.
MOST_SCRATCH_BYTES: Final = 1 << 45
CONTEXT_BYTES: Final = 527 << 20
LIBRARIES_BYTES: Final = (767 - 527) << 20

# By card, for names as `torch.cuda.get_device_name` gives them, longest match first: compute capability (major),
# multiprocessors, threads of one. A family stands for its largest card.
_CARDS: Final[dict[str, tuple[int, int, int]]] = {
    "B100": (10, 148, 2048),
    "B200": (10, 148, 2048),
    "B300": (10, 148, 2048),
    "GB10": (12, 48, 1536),
    "GB200": (10, 148, 2048),
    "GB300": (10, 148, 2048),
    "GH200": (9, 132, 2048),
    "H100": (9, 132, 2048),
    "H100 PCIE": (9, 114, 2048),
    "H200": (9, 132, 2048),
    "H20": (9, 78, 2048),
    "H800": (9, 132, 2048),
    "RTX 50": (12, 170, 1536),
    "RTX PRO 6000": (12, 188, 1536),
    "A100": (8, 108, 2048),
    "A800": (8, 108, 2048),
    "A10": (8, 72, 1536),
    "A10G": (8, 80, 1536),
    "A16": (8, 10, 1536),
    "A2": (8, 10, 1536),
    "A30": (8, 56, 2048),
    "A40": (8, 84, 1536),
    "L4": (8, 58, 1536),
    "L40": (8, 142, 1536),
    "L40S": (8, 142, 1536),
    "RTX A": (8, 84, 1536),
    "RTX 30": (8, 82, 1536),
    "RTX 40": (8, 128, 1536),
    "RTX 5000 ADA": (8, 100, 1536),
    "RTX 6000 ADA": (8, 142, 1536),
    "RTX 20": (7, 68, 1024),
    "RTX 6000": (7, 72, 1024),
    "RTX 8000": (7, 72, 1024),
    "QUADRO RTX": (7, 72, 1024),
    "T4": (7, 40, 1024),
    "V100": (7, 80, 2048),
    "TITAN V": (7, 80, 2048),
    "TITAN RTX": (7, 72, 1024),
    "GTX 16": (7, 24, 1024),
    "GTX 10": (6, 28, 2048),
    "P100": (6, 56, 2048),
    "P40": (6, 30, 2048),
}
_UNKNOWN: Final = _CARDS["H200"]  # the larger workspace
_HOPPER: Final = 9

# Operators whose CUDA kernels go through a cuBLAS or cuBLASLt handle, by the middle part of `aten.<name>.<overload>`.
# `linear` and `matmul` are seen whole only under inference mode.
CUBLAS_OPS: Final = frozenset({
    "_addmm_activation",
    "_int_mm",
    "_native_multi_head_attention",
    "_scaled_mm",
    "_transformer_encoder_layer_fwd",
    "addbmm",
    "addmm",
    "addmm_",
    "addmv",
    "addmv_",
    "baddbmm",
    "baddbmm_",
    "bmm",
    "dot",
    "linear",
    "linear_backward",
    "matmul",
    "mm",
    "mv",
    "vdot",
})  # fmt: skip
LT_OPS: Final = frozenset({"_addmm_activation", "_int_mm", "_scaled_mm", "addmm", "linear"})


@dataclass(frozen=True, slots=True)
class Workspace:
    """A workspace that a node takes and nothing gives back."""

    node: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Generation:
    """What of a card decides over workspaces and scratch; `is_known` is False where the name told nothing."""

    capability: int  # major
    multiprocessors: int
    threads_per_multiprocessor: int
    is_known: bool

    @property
    def cublas_workspace_bytes(self) -> int:
        """Bytes of one cuBLAS workspace (one for each thread that multiplies matrices, on one stream)."""
        return _WORKSPACE_HOPPER_BYTES if self.capability >= _HOPPER else _WORKSPACE_BEFORE_HOPPER_BYTES


@lru_cache(maxsize=256)
def generation_of(name: str) -> Generation:
    """Read the generation off a device name; an unknown card is taken for Hopper, the larger workspace, and flagged."""
    upper = name.upper()
    for known in sorted(_CARDS, key=len, reverse=True):
        # A whole word, except that families ("RTX 40", "RTX A") go on with digits.
        tail = "" if known.startswith(("RTX", "GTX", "QUADRO")) else r"(?![0-9])"
        if re.search(rf"(?<![A-Z0-9]){re.escape(known)}{tail}", upper):
            return Generation(*_CARDS[known], is_known=True)
    return Generation(*_UNKNOWN, is_known=False)


@lru_cache(maxsize=4096)
def op_name(op: str) -> str:
    """Return the operator without namespace and overload: `aten.mm.default` -> `mm`."""
    parts = op.split(".")
    return parts[1] if len(parts) > 1 else op


def op_mask(trace: Trace, ops: Sequence[str], names: AbstractSet[str]) -> NDArray[np.bool_]:
    """Mark the nodes [N] on the GPU whose operator is one of `names`, or a `torch.cond` with one in any branch."""
    is_named = np.fromiter((op_name(op) in names for op in ops), np.bool_, len(ops))
    mask = is_named[trace.op] & (trace.device == GPU) if len(trace) else np.zeros(0, np.bool_)
    for node, branches in trace.branches:
        mask[node] |= any(op_mask(branch, ops, names).any() for branch in branches)
    return mask


def workspaces_of(
    trace: Trace, ops: Sequence[str], generation: Generation, products: NDArray[np.bool_]
) -> list[Workspace]:
    """Return the workspaces of a step in the order they are taken: at most one of each kind for each of two threads.

    Forward, loss and optimizer run in the thread of the training loop; backward runs in autograd's own. `products` [N]
    marks the nodes that call cuBLAS.
    """
    in_backward = trace.phase == BACKWARD
    kinds = workspace_kinds(trace, ops, generation, products)
    found = [
        Workspace(int(nodes[0]), size_bytes)
        for in_thread in (~in_backward, in_backward)
        for mask, size_bytes in kinds
        if len(nodes := np.flatnonzero(mask & in_thread))
    ]
    return sorted(found, key=lambda workspace: workspace.node)


def product_nodes(trace: Trace, ops: Sequence[str]) -> NDArray[np.bool_]:
    """Return the nodes [N] that call cuBLAS by their names."""
    return op_mask(trace, ops, CUBLAS_OPS)


def workspace_kinds(
    trace: Trace, ops: Sequence[str], generation: Generation, products: NDArray[np.bool_]
) -> list[tuple[NDArray[np.bool_], int]]:
    """Return for each kind of workspace the nodes [N] that need one, and its bytes."""
    return [
        (products, generation.cublas_workspace_bytes),
        (products & op_mask(trace, ops, LT_OPS), LT_WORKSPACE_BYTES),
    ]
