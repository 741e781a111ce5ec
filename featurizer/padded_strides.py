"""The layout that inductor gives to batches of matrices which it computes itself: long strides in whole 128 bytes.

A stride of more than 1,024 elements is rounded up (`_pad_strides` in torch/_inductor/ir.py). What a library writes lies
dense, so that neither takes the place of the other: attention over 197 tokens holds scores and probabilities at once.

A trace tells no sizes. Those of batched matrices follow from the products they are in, where something is reduced along
their rows, as softmax does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from peakcast.featurizer.op_kinds import OpKind, compiled_nodes, op_kind, stem
from peakcast.featurizer.pad_trials import ALIGNED_BYTES, padded_size, unlike_products
from peakcast.featurizer.trace import Int64, Trace
from peakcast.featurizer.vocabulary import DTYPE_BYTES

_ALIGNMENT_BYTES: Final = 128
_LONGEST_DENSE_STRIDE: Final = 1024
_PRODUCTS: Final = frozenset({"baddbmm", "baddbmm_", "bmm"})
_REDUCED_BY_ROWS: Final = frozenset({"amax", "prepare_softmax_online"})
# What reads them would copy a padded tensor, through all but reductions (`mark_nodes_dislike_padding` in graph.py).
_NEED_DENSE: Final = frozenset({"_scaled_mm", "_scaled_mm_v2", "convolution", "convolution_backward"})
_STOP: Final = frozenset(
    {"amax", "amin", "any", "argmax", "argmin", "max", "mean", "min", "prod", "scatter_reduce", "sum", "var_mean"}
)
# Real graphs have a few kinds of attention, and of products; a hostile one could have as many as nodes.
_MOST_REDUCTIONS: Final = 32
_MOST_PRODUCTS: Final = 1024

Matrices = tuple[int, int, int]  # how many, rows, columns


def with_padded_strides(trace: Trace, ops: Sequence[str], dtypes: Sequence[str]) -> Trace:
    """Return the trace with the bytes of what inductor lays out in padded strides, as far as sizes are known."""
    products = unlike_products(trace, ops, _PRODUCTS)
    if not 0 < len(products) <= _MOST_PRODUCTS:
        return trace
    stems = [stem(op) for op in ops]
    numel = _numel(trace, dtypes)
    shapes = _shapes(trace, products, _rows(trace, stems, numel), dtypes)
    if not shapes:
        return trace
    size_bytes = trace.storages.bytes.copy()
    for storage, node in _laid_out(trace, ops, stems):
        item_bytes = DTYPE_BYTES.get(dtypes[trace.dtype[node]], 0)
        shape = shapes.get(int(numel[storage]))
        if shape is not None and numel[storage] * item_bytes == size_bytes[storage]:
            size_bytes[storage] = item_bytes * _padded_elements(shape, _ALIGNMENT_BYTES // item_bytes)
    return replace(trace, storages=replace(trace.storages, bytes=size_bytes))


def _numel(trace: Trace, dtypes: Sequence[str]) -> Int64:
    """Return the elements of each storage, of the type that its maker returns [S]; 0 where it was there before."""
    born = trace.storages.born.astype(np.int64)
    item_bytes = np.array([DTYPE_BYTES.get(name, 1) for name in dtypes], np.int64)
    return np.where(born >= 0, trace.storages.bytes // item_bytes[trace.dtype[np.maximum(born, 0)]], 0)


def _rows(trace: Trace, stems: Sequence[str], numel: Int64) -> set[tuple[int, int]]:
    """Return how long rows are that something is reduced along, and how many of them there are."""
    found: set[tuple[int, int]] = set()
    for node in compiled_nodes(trace, stems, _REDUCED_BY_ROWS):
        rows = int(trace.numel[node])
        for storage in trace.inputs.row(node).tolist():
            if rows > 1 and numel[storage] > rows and numel[storage] % rows == 0:
                found.add((int(numel[storage]) // rows, rows))
        if len(found) > _MOST_REDUCTIONS:
            return set()
    return found


def _shapes(
    trace: Trace, products: Sequence[int], reduced: set[tuple[int, int]], dtypes: Sequence[str]
) -> dict[int, Matrices]:
    """Return the sizes of batches of matrices by how many elements they have; none where they are not the same."""
    found: dict[int, set[Matrices]] = {}
    for node in products:
        item_bytes = DTYPE_BYTES.get(dtypes[trace.dtype[node]], ALIGNED_BYTES)
        vector = max(1, ALIGNED_BYTES // item_bytes)
        factors = trace.inputs.row(node)[-2:].tolist()
        first, second = (int(trace.storages.bytes[storage]) // item_bytes for storage in factors)
        result = int(trace.numel[node])
        for columns, rows in reduced:
            for read, other, written in ((first, second, result), (result, second, first)):
                shape = _solved(read, other, written, columns, rows, vector)
                if shape is not None:
                    found.setdefault(read, set()).add(shape)
                    found.setdefault(columns * rows, set()).add((shape[0], rows // shape[0], columns))
    return {elements: next(iter(shapes)) for elements, shapes in found.items() if len(shapes) == 1}


def _solved(read: int, other: int, written: int, columns: int, rows: int, vector: int) -> Matrices | None:
    """Solve a product of batches for the sizes of one of its three: it, or it without padding, has these rows.

    With B matrices of m x k times k x n there are B m k, B k n and B m n elements; k or n is known, and B m.
    """
    for length in {columns, padded_size(columns, vector)}:
        if not read or not length or read % length:
            continue
        all_rows = read // length  # B m
        third, rest = divmod(written, all_rows)  # the size that the product does not share with the reduction
        if rest or not third or other % (third * length):
            continue
        batch = other // (third * length)
        if not batch or all_rows % batch or rows % batch:
            continue
        if all_rows // batch in {rows // batch, padded_size(rows // batch, vector)}:
            return batch, all_rows // batch, length
    return None


def _laid_out(trace: Trace, ops: Sequence[str], stems: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the storages whose layout inductor is free to choose, each with the node that makes it."""
    is_library = np.array([op_kind(op) is OpKind.EXTERN for op in ops], np.bool_)[trace.op]
    needs_dense = np.array([name in _NEED_DENSE for name in stems], np.bool_)[trace.op].tolist()
    stops = np.array([name in _STOP for name in stems], np.bool_)[trace.op].tolist()
    born = trace.storages.born.tolist()
    leaves = _leaves(trace)
    parts = trace.compiled_parts().tolist()
    is_dense: set[int] = set()  # storages, as the graph at hand sees them
    for node in range(len(trace) - 1, -1, -1):
        if parts[node] < 0:
            continue
        if node + 1 < len(trace) and parts[node + 1] != parts[node]:
            is_dense = set()
        made = trace.outputs.row(node).tolist()
        if needs_dense[node] or (not stops[node] and not is_dense.isdisjoint(made)):
            is_dense.update(trace.inputs.row(node).tolist())
        for storage in made:
            is_free = stops[node] or storage not in is_dense
            if born[storage] == node and not is_library[node] and is_free and not leaves[storage]:
                yield storage, node


def _leaves(trace: Trace) -> list[bool]:
    """Tell of each storage whether its user sees it: it outlives the step, or what is outside its region touches it."""
    leaves = trace.storages.died < 0
    made_in = np.where(trace.storages.born >= 0, trace.region[np.maximum(trace.storages.born, 0)], -1)
    for touched in (trace.inputs, trace.outputs):
        leaves[touched.ids[trace.region[touched.rows()] != made_in[touched.ids]]] = True
    seen: list[bool] = leaves.tolist()
    return seen


def _padded_elements(shape: Matrices, alignment: int) -> int:
    """Return how many elements lie between the first and the last of a batch of matrices, both counted."""
    batch, rows, columns = shape
    row_stride = _padded_stride(columns, alignment)
    matrix_stride = _padded_stride(rows * row_stride, alignment)
    return (batch - 1) * matrix_stride + (rows - 1) * row_stride + columns


def _padded_stride(stride: int, alignment: int) -> int:
    return -(-stride // alignment) * alignment if stride > _LONGEST_DENSE_STRIDE else stride
