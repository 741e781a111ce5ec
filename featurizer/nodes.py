"""The node vectors: twelve numbers for each node, in execution order.

Shapes: N nodes, F = 12 features, U operators in the document's table, E output entries.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from peakcast.featurizer.op_embedding import DIMENSIONS, OpEmbedding, shipped_embedding
from peakcast.featurizer.spec import GraphSpec, walk
from peakcast.featurizer.trace import Trace

FEATURES: Final = (
    "rank",
    "log2_numel",
    "log2_output_bytes",
    *(f"op_{i}" for i in range(DIMENSIONS)),
    "placement",
)


def node_matrix(spec: GraphSpec, plan: str, embedding: OpEmbedding | None = None) -> NDArray[np.float32]:
    """Return [N, 12]: rank, log2(1 + numel), log2(1 + bytes of all outputs), the operator's eight numbers, placement.

    Rank, numel and placement (0 CPU, 1 GPU, 2 TPU) are the first output's. A storage that a node returns several
    times, as views do, counts once. Nodes of `cond` branches are not among the N. An operator without a vector has
    zeros; `unknown_ops` names them. Raises KeyError for a plan without a trace.
    """
    trace = spec.traces[plan]
    vectors_UD = (embedding or shipped_embedding()).vectors_of(spec.ops)
    matrix_NF = np.empty((len(trace), len(FEATURES)), np.float32)
    matrix_NF[:, 0] = trace.rank
    matrix_NF[:, 1] = np.log2(1.0 + trace.numel)
    matrix_NF[:, 2] = np.log2(1.0 + output_bytes(trace))
    matrix_NF[:, 3 : 3 + DIMENSIONS] = vectors_UD[trace.op]
    matrix_NF[:, 11] = trace.device
    return matrix_NF


def output_bytes(trace: Trace) -> NDArray[np.float64]:
    """Return [N]: the bytes of the distinct storages that each node writes or returns."""
    if (trace.outputs.sizes() > 1).any():  # a node with several outputs may name a storage twice
        node_E, storage_E = trace.outputs.distinct(len(trace.storages))
    else:
        node_E, storage_E = trace.outputs.rows(), trace.outputs.ids.astype(np.int64)
    weights_E = trace.storages.bytes[storage_E].astype(np.float64)
    return np.bincount(node_E, weights=weights_E, minlength=len(trace)).astype(np.float64, copy=False)


def unknown_ops(spec: GraphSpec, plan: str, embedding: OpEmbedding | None = None) -> tuple[str, ...]:
    """Return the operators of a plan, branches included, of which neither they nor a relative by name has a vector."""
    known = embedding or shipped_embedding()
    used = sorted({int(op) for trace in walk(spec.traces[plan]) for op in np.unique(trace.op)})
    return tuple(spec.ops[op] for op in used if known.find(spec.ops[op]) is None)
