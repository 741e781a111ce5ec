"""Tensors that torch's own CUDA operators make and drop inside one call, where no trace shows them.

Each rule names the function of ATen that makes them. The compiler takes these operators apart, but for those that it
calls as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from peakcast.featurizer.trace import Trace
from peakcast.featurizer.vocabulary import DTYPE_BYTES, GPU
from peakcast.featurizer.workspace import MOST_SCRATCH_BYTES, op_name

if TYPE_CHECKING:
    from peakcast.featurizer.spec import GraphSpec

_LOW_PRECISION: Final = frozenset({"float16", "bfloat16"})
_COPIED: Final = {"copied=1": 1, "copied=2": 2}


class _Node:
    """One node, as the rules ask about it."""

    def __init__(self, trace: Trace, spec: GraphSpec, node: int) -> None:
        self._trace, self._spec, self._node = trace, spec, node
        self.numel = int(trace.numel[node])
        self.dtype = spec.dtypes[trace.dtype[node]]
        self.attribute = spec.attributes[trace.attribute[node]] if trace.attribute[node] >= 0 else ""

    @cached_property
    def reads(self) -> list[int]:
        """The bytes of what it reads."""
        sizes: list[int] = self._trace.storages.bytes[self._trace.inputs.row(self._node)].tolist()
        return sizes

    @cached_property
    def writes(self) -> list[int]:
        """The bytes of what it returns."""
        sizes: list[int] = self._trace.storages.bytes[self._trace.outputs.row(self._node)].tolist()
        return sizes

    def read_dtype(self) -> str | None:
        """Return the type of the first tensor read, where its maker is seen and made nothing else."""
        row = self._trace.inputs.row(self._node)
        maker = int(self._trace.storages.born[row[0]]) if len(row) else -1
        if maker < 0 or len(self._trace.outputs.row(maker)) != 1:
            return None
        dtype: str = self._spec.dtypes[self._trace.dtype[maker]]
        return dtype


def _reduced_loss(node: _Node) -> int:
    """Return the losses of all elements, before their mean: `mse_loss_out` (Loss.cpp), and the like."""
    return max(node.reads, default=0) if node.numel == 1 else 0


# Losses that allocate their result for all elements and then call it a scalar: `TORCH_META_FUNC(mse_loss)` (Loss.cpp),
# `binary_cross_entropy_cuda` (Loss.cu). The memory stays with the scalar.
_OUTSIZED: Final = frozenset({"binary_cross_entropy", "mse_loss", "smooth_l1_loss"})


def _contiguous_copies(node: _Node) -> int:
    """Return the copies of what lies in another order, as many as the attribute says: each as large as the result."""
    copied = _COPIED.get(node.attribute, 0)
    return copied * node.numel * DTYPE_BYTES.get(node.read_dtype() or node.dtype, 0)


def _softmax_backward(node: _Node) -> int:
    """Return the product of gradient and result: `softmax_backward_cuda_out` (SoftMax.cu)."""
    return max(node.reads[:2], default=0) + _contiguous_copies(node)


def _logsumexp(node: _Node) -> int:
    """Return the shifted exponentials: `logsumexp_out_impl` (ReduceOps.cpp)."""
    return max(node.reads, default=0)


def _cast_before_reduction(node: _Node) -> int:
    """Return the input in the result's type: `make_reduction` (ReduceOpsUtils.h), `impl_func_cum_ops` (ReduceOps.cpp).

    Sums of flags and small integers come out as int64. Half precision is summed into float32 without a copy.
    """
    read = node.read_dtype()
    if read is None or read == node.dtype or (read in _LOW_PRECISION and node.dtype == "float32"):
        return 0
    element, result = DTYPE_BYTES.get(read, 0), DTYPE_BYTES.get(node.dtype, 0)
    return node.reads[0] // element * result if element else 0


def _scatter_mean(node: _Node) -> int:
    """Return ones like the source, counts like the result, and where those are 0: `scatter_reduce_two`.

    The rest (`amax` and so on) takes none; an attribute that does not say what is reduced is taken for the mean.
    """
    if "reduce=" in node.attribute and "reduce=mean" not in node.attribute:
        return 0
    if not node.reads:
        return 0
    # The result may be a part of its storage: half of a concatenation, say.
    return node.reads[-1] + node.numel * DTYPE_BYTES.get(node.dtype, 0) + node.numel


_RULES: Final[dict[str, Callable[[_Node], int]]] = {
    "_log_softmax": _contiguous_copies,
    "_log_softmax_backward_data": _contiguous_copies,
    "_softmax": _contiguous_copies,
    "_softmax_backward_data": _softmax_backward,
    "cumprod": _cast_before_reduction,
    "cumsum": _cast_before_reduction,
    "huber_loss": _reduced_loss,
    "logsumexp": _logsumexp,
    "mse_loss": _reduced_loss,
    "native_layer_norm": _contiguous_copies,
    "native_layer_norm_backward": _contiguous_copies,
    "prod": _cast_before_reduction,
    "scatter_reduce": _scatter_mean,
    "smooth_l1_loss": _reduced_loss,
    "sum": _cast_before_reduction,
}

# What a compiled region calls ATen for.
_NOT_TAKEN_APART: Final = frozenset({"scatter_reduce"})


def kernel_scratch(trace: Trace, spec: GraphSpec) -> tuple[list[int], list[int]]:
    """Return the nodes on the GPU that take scratch of their own, and the bytes of each."""
    names = [op_name(op).removesuffix("_") for op in spec.ops]
    rules = [_RULES.get(name) for name in names]
    nodes: list[int] = []
    sizes: list[int] = []
    if not len(trace):
        return nodes, sizes
    has_rule = np.array([rule is not None for rule in rules], np.bool_)[trace.op]
    runs_whole = np.array([name in _NOT_TAKEN_APART for name in names], np.bool_)[trace.op] | (trace.region < 0)
    # Most sums are of what they return: seen at once for all of them, the rule need not be asked.
    casts = np.array([rule is _cast_before_reduction for rule in rules], np.bool_)[trace.op] & _keeps_type(trace)
    # What copies only what lies in another order has an attribute where it does.
    copies = np.array([rule is _contiguous_copies for rule in rules], np.bool_)[trace.op] & (trace.attribute < 0)
    for node in np.flatnonzero(has_rule & runs_whole & (trace.device == GPU) & ~casts & ~copies).tolist():
        rule = rules[trace.op[node]]
        size_bytes = rule(_Node(trace, spec, node)) if rule is not None else 0
        if size_bytes:
            nodes.append(node)
            sizes.append(min(size_bytes, MOST_SCRATCH_BYTES))
    return nodes, sizes


def _keeps_type(trace: Trace) -> NDArray[np.bool_]:
    """Tell which nodes read first what was made in the type that they return, or by a maker out of sight."""
    inputs, outputs = trace.inputs, trace.outputs
    keeps = np.zeros(len(trace), np.bool_)
    reads = np.flatnonzero(inputs.sizes())
    maker = trace.storages.born[inputs.ids[inputs.offsets[reads]]]
    keeps[reads] = (maker < 0) | (outputs.sizes()[maker] != 1) | (trace.dtype[maker] == trace.dtype[reads])
    return keeps


def outsized_results(trace: Trace, ops: Sequence[str]) -> dict[int, int]:
    """Return the storages of eager losses that keep more memory than their one element, and how many bytes."""
    is_loss = np.array([op_name(op) in _OUTSIZED for op in ops], np.bool_)
    if not len(trace):
        return {}
    nodes = np.flatnonzero(is_loss[trace.op] & (trace.region < 0) & (trace.device == GPU) & (trace.numel == 1))
    found = {}
    for node in nodes.tolist():
        read, written = trace.storages.bytes[trace.inputs.row(node)], trace.outputs.row(node)
        if len(read) and len(written):
            found[int(written[0])] = int(read.max())
    return found
