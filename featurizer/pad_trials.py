"""What inductor takes while it compiles to find out whether padding a matrix product pays.

A product with a size that is no multiple of 16 bytes is timed as it is and padded, on random matrices, before anything
of the step runs (read in torch's `_inductor/fx_passes/pad_mm.py`). That what waits for memory is left out does not hold
under CUDA 13, which no longer tells the clock rates it judges by. Traces hold no shapes, but those of a product follow
from the numbers of elements of its three matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import Final

import numpy as np

from peakcast.featurizer.trace import Trace
from peakcast.featurizer.vocabulary import DTYPE_BYTES
from peakcast.featurizer.workspace import op_name

_PRODUCTS: Final = frozenset({"mm", "addmm"})
_PAD: Final = "constant_pad_nd"
ALIGNED_BYTES: Final = 16
_ITEM_BYTES: Final = (2, 4)


def padded_size(size: int, step: int) -> int:
    """Return the next multiple of `step`, as inductor pads to; a size of one stays."""
    return size if size == 1 else -(-size // step) * step


def padding_trial(trace: Trace, ops: Sequence[str], dtypes: Sequence[str]) -> tuple[int, ...]:
    """Return the bytes of the matrices of the largest trial of a step; none where nothing is tried."""
    trials = [_trial(trace, node, ops, dtypes) for node in unlike_products(trace, ops, _PRODUCTS)]
    return max(trials, key=sum, default=())


def unlike_products(trace: Trace, ops: Sequence[str], names: frozenset[str]) -> list[int]:
    """Return compiled products by name, one for all that have the same sizes: a model repeats its layers'."""
    is_product = np.array([op_name(op) in names for op in ops], np.bool_)
    is_compiled = trace.replayed | (trace.region >= 0)
    nodes = np.flatnonzero(is_product[trace.op] & is_compiled) if len(trace) else np.empty(0, np.int64)
    ends = trace.inputs.offsets[nodes + 1] - trace.replayed  # what the result is written to is read last there
    nodes, ends = nodes[ends - trace.inputs.offsets[nodes] >= 2], ends[ends - trace.inputs.offsets[nodes] >= 2]
    if not len(nodes):
        return []
    factors = trace.storages.bytes[trace.inputs.ids[np.stack((ends - 2, ends - 1))]]
    sizes = np.stack((*factors, trace.numel[nodes], trace.dtype[nodes].astype(np.int64)), axis=1)
    chosen: list[int] = nodes[np.unique(sizes, axis=0, return_index=True)[1]].tolist()
    return chosen


def _trial(trace: Trace, node: int, ops: Sequence[str], dtypes: Sequence[str]) -> tuple[int, ...]:
    """Return the bytes of both factors, of those that are padded once more, and of the padded result."""
    element = DTYPE_BYTES.get(dtypes[trace.dtype[node]], 0)
    factors = trace.inputs.row(node)[: -1 if trace.replayed else None][-2:].tolist()
    if element not in _ITEM_BYTES:
        return ()
    sizes = [_before_padding(trace, one, ops) for one in factors]
    shape = _shape(sizes[0] // element, sizes[1] // element, int(trace.numel[node]))
    padded = [int(trace.storages.bytes[one]) for one, size in zip(factors, sizes, strict=True)]
    if padded != sizes:  # the compiler chose to pad: the trace shows how
        result = int(trace.numel[node]) * element
        return (*sizes, *(after for after, size in zip(padded, sizes, strict=True) if after != size), result)
    if shape is None:
        return ()
    rows, inner, columns = shape
    step = ALIGNED_BYTES // element
    up = [padded_size(size, step) for size in shape]
    if up == [rows, inner, columns]:
        return ()
    copies = [up[0] * up[1] if up[:2] != [rows, inner] else 0, up[1] * up[2] if up[1:] != [inner, columns] else 0]
    return (*sizes, *(count * element for count in copies if count), up[0] * up[2] * element)


def _before_padding(trace: Trace, storage: int, ops: Sequence[str]) -> int:
    """Return the bytes of a factor before it was padded."""
    maker = int(trace.storages.born[storage])
    if maker >= 0 and op_name(ops[trace.op[maker]]) == _PAD and len(trace.inputs.row(maker)):
        return int(trace.storages.bytes[trace.inputs.row(maker)[0]])
    return int(trace.storages.bytes[storage])


def _shape(first: int, second: int, result: int) -> tuple[int, int, int] | None:
    """Return M, K, N of an [M, K] x [K, N] product from the elements of its matrices; None where they are no product's.

    A factor that is a part of a larger storage does not tell.
    """
    if not first or not second or not result or first * result % second:
        return None
    rows = isqrt(first * result // second)
    if rows == 0 or rows * rows * second != first * result or first % rows or result % rows:
        return None
    return rows, first // rows, result // rows
