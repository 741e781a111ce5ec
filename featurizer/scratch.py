"""Scratch that a kernel takes inside one operator, where its size follows from shapes and the card.

Convolutions convert layouts (`convolution_calls.py`); some operators make tensors of their own (`kernel_scratch.py`).
Reductions over leading dimensions, as for the gradient of a bias, leave partial sums of each block of threads in global
memory; in eager training that is often hundreds of MiB for a few KiB of result. Rules from torch's
`aten/src/ATen/native/cuda/Reduce.cuh` (setReduceConfig, global_memory_size).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from peakcast.featurizer.convolution_calls import convolution_scratch
from peakcast.featurizer.kernel_scratch import kernel_scratch, outsized_results
from peakcast.featurizer.lifetimes import NO_REUSE, Lifetimes
from peakcast.featurizer.trace import Csr, Int32, Trace
from peakcast.featurizer.vocabulary import DTYPE_BYTES, GPU, GRADIENT, TEMPORARY
from peakcast.featurizer.workspace import Generation, op_name

if TYPE_CHECKING:
    from peakcast.featurizer.spec import GraphSpec

_MAX_THREADS: Final = 512
_WARP: Final = 32
_VALUES_PER_THREAD: Final = (16, 256)  # fewest, most
_SUMS: Final = frozenset({"sum", "mean"})
_COPIES: Final = frozenset({"_to_copy"})
# FSDP packs the gradients of a block with it, to be reduced over ranks, and frees them.
_PACKS: Final = frozenset({"chunk_cat"})
# DDP copies them into its buckets, and frees them where the gradients are views of the buckets.
_FILLS: Final = frozenset({"copy_"})
_REDUCES: Final = frozenset({"allreduce_"})


@lru_cache(maxsize=4096)  # a model repeats its layers' sizes
def leading_sum_scratch_bytes(outputs: int, inputs_per_output: int, element_bytes: int, generation: Generation) -> int:
    """Return the partial sums of a reduction over all leading dimensions of a contiguous tensor.

    `outputs` is the size of the dimensions that stay, `element_bytes` that of an accumulator.
    """
    vector = next(width for width in (4, 2, 1) if outputs % width == 0)
    threads = _MAX_THREADS // vector
    across, down = min(_last_power2(outputs // vector), threads), min(_last_power2(inputs_per_output), threads)
    width = min(across, _WARP)
    height = min(down, threads // width)
    width = min(across, threads // height)
    fewest, most = _VALUES_PER_THREAD
    if inputs_per_output < min(height * fewest, most):
        return 0  # the block's rows take outputs of their own
    values = -(-inputs_per_output // height)
    grid = -(-(outputs // vector) // width)
    target = generation.multiprocessors * (generation.threads_per_multiprocessor // (width * height))
    if values < most or grid > target:
        return 0
    parts = max(min(-(-target // grid), -(-values // fewest)), -(-values // most))
    return element_bytes * outputs * parts * width * vector if parts > 1 else 0


def _last_power2(number: int) -> int:
    return 1 << (max(number, 1).bit_length() - 1)


def with_scratch(lifetimes: Lifetimes, trace: Trace, spec: GraphSpec, generation: Generation) -> Lifetimes:
    """Return the lifetimes with a buffer for each operator's scratch, alive during its node alone.

    A trace tells sizes, not the dimensions that were summed over. Where the result becomes a gradient it was over the
    leading ones: a parameter was broadcast along them. Compiled regions sum in kernels of their own, without scratch.
    """
    convolutions = convolution_scratch(trace, spec, generation)
    nodes, sizes = convolutions.nodes, convolutions.sizes
    inner_nodes, inner_sizes = kernel_scratch(trace, spec)
    nodes += inner_nodes
    sizes += inner_sizes
    ops, dtypes = spec.ops, spec.dtypes
    sums, largest_read = _gradient_sums(trace, ops), np.zeros(len(trace), np.int64)
    np.maximum.at(largest_read, trace.inputs.rows(), trace.storages.bytes[trace.inputs.ids])
    columns = sums, trace.numel[sums], trace.dtype[sums], largest_read[sums], _viewed(trace, sums)
    for node, outputs, dtype, read, viewed in zip(*(column.tolist() for column in columns), strict=True):
        element = DTYPE_BYTES.get(dtypes[dtype], 0)
        if not (outputs and element and read):
            continue
        summed = min(read // element, viewed or read)
        size_bytes = leading_sum_scratch_bytes(outputs, summed // outputs, max(element, 4), generation)
        if size_bytes:
            nodes.append(node)
            sizes.append(size_bytes)
    outsized = outsized_results(trace, ops)
    if outsized:
        sizes_of_all = lifetimes.bytes.copy()
        sizes_of_all[list(outsized)] = list(outsized.values())
        lifetimes = replace(lifetimes, bytes=sizes_of_all)
    if not nodes:
        return lifetimes
    first, count, at = len(lifetimes), len(nodes), np.array(nodes, np.int32)
    if lifetimes.time is not None:
        at = lifetimes.time[at]
    return replace(
        lifetimes,
        first_call=np.array(convolutions.first, np.int32) + first,
        second_call=np.array([*convolutions.later, *(first + place for place in convolutions.second)], np.int32),
        spare=np.array(convolutions.spare, np.int32) + first,
        bytes=np.append(lifetimes.bytes, sizes),
        role=np.append(lifetimes.role, np.full(count, TEMPORARY, np.uint8)),
        born=np.append(lifetimes.born, at),
        died=np.append(lifetimes.died, at),
        reuses=np.append(lifetimes.reuses, np.full(count, NO_REUSE, np.int32)),
    )


def _viewed(trace: Trace, sums: Int32) -> NDArray[np.int64]:
    """Return the elements of the view that each of the sums reads, where it was made right before; 0: it was not.

    The partial sums of a kernel that inductor generates for rows and columns lie side by side in one workspace, and
    each part of it is added up by a call of its own.
    """
    before = np.maximum(sums - 1, 0)
    is_view = (trace.inputs.sizes()[before] == 1) & (trace.outputs.sizes()[before] == 1) & (before < sums)
    is_view &= trace.inputs.sizes()[sums] > 0
    viewed = np.flatnonzero(is_view)
    view, read = before[viewed], _first(trace.inputs, sums[viewed])
    is_view[viewed] = (_first(trace.inputs, view) == read) & (_first(trace.outputs, view) == read)
    return np.where(is_view, trace.numel[before], 0).astype(np.int64)


def _gradient_sums(trace: Trace, ops: Sequence[str]) -> Int32:
    """Return the eager sums on the GPU whose result is a gradient, is cast into one, or goes where ranks reduce it."""
    eager = (trace.region < 0) & (trace.device == GPU)
    is_gradient = _becomes_gradient(trace, ops, eager)
    copies = _filled(trace.inputs, _filled(trace.outputs, np.flatnonzero(_named(trace, ops, _COPIES) & eager)))
    becomes = copies[is_gradient[_first(trace.outputs, copies)]]
    is_gradient[_first(trace.inputs, becomes)] = True
    sums = _filled(trace.outputs, np.flatnonzero(_named(trace, ops, _SUMS) & eager))
    found: Int32 = sums[is_gradient[_first(trace.outputs, sums)]].astype(np.int32)
    return found


def _becomes_gradient(trace: Trace, ops: Sequence[str], eager: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mark the storages [S] that are gradients, or are copied into what ranks reduce."""
    found: NDArray[np.bool_] = trace.storages.role == GRADIENT
    reduced = np.zeros_like(found)
    for node in np.flatnonzero(_named(trace, ops, _REDUCES)).tolist():
        reduced[trace.inputs.row(node)] = True
    fills = _filled(trace.outputs, np.flatnonzero(_named(trace, ops, _FILLS) & eager))
    fills = fills[reduced[_first(trace.outputs, fills)]]
    packs = np.flatnonzero(_named(trace, ops, _PACKS) & eager)
    for node in (*fills.tolist(), *packs.tolist()):
        found[trace.inputs.row(node)] = True
    return found


def _named(trace: Trace, ops: Sequence[str], names: frozenset[str]) -> NDArray[np.bool_]:
    is_named = np.fromiter((op_name(op) in names for op in ops), np.bool_, len(ops))
    mask: NDArray[np.bool_] = is_named[trace.op] if len(trace) else np.zeros(0, np.bool_)
    return mask


def _filled(csr: Csr, rows: NDArray[np.integer]) -> NDArray[np.integer]:
    """Return those of the rows that hold a storage."""
    filled: NDArray[np.integer] = rows[csr.offsets[rows] < csr.offsets[rows + 1]]
    return filled


def _first(csr: Csr, rows: NDArray[np.integer]) -> Int32:
    """Return the first storage of each of the rows, which are not empty."""
    first: Int32 = csr.ids[csr.offsets[rows]]
    return first
