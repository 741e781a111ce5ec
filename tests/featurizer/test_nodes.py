"""Each node becomes twelve numbers: rank, two sizes, the operator's eight, and where it runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from strategies import graph_specs

from peakcast.featurizer.nodes import FEATURES, node_matrix, output_bytes, unknown_ops
from peakcast.featurizer.op_embedding import OpEmbedding
from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.trace import Csr, Storages, Trace

MM = np.array([0.5, -0.5, 0.5, -0.5, 0, 0, 0, 0], np.float32)
GELU = np.array([0, 0, 0, 0, 0, 0, 0, 1], np.float32)
EMBEDDING = OpEmbedding(("aten.mm.default", "aten.gelu.default"), np.stack([MM, GELU]), {"graphs": 1})


def trace(ops: list[int], outputs: list[list[int]], sizes: list[int], **columns: Any) -> Trace:
    """Return a trace whose nodes return the given storages."""
    n, s = len(ops), len(sizes)
    offsets = np.cumsum([0, *map(len, outputs)])
    ids = [storage for row in outputs for storage in row]
    plain: dict[str, Any] = {
        "phase": np.zeros(n, np.uint8),
        "op": np.array(ops, np.int32),
        "rank": np.full(n, 2, np.uint8),
        "numel": np.zeros(n, np.int64),
        "dtype": np.zeros(n, np.uint8),
        "device": np.ones(n, np.uint8),
        "line": np.full(n, -1, np.int32),
        "region": np.full(n, -1, np.int32),
        "inputs": Csr(np.zeros(n + 1, np.int32), np.zeros(0, np.int32)),
        "outputs": Csr(offsets.astype(np.int32), np.array(ids, np.int32)),
        "storages": Storages(
            bytes=np.array(sizes, np.int64),
            device=np.ones(s, np.uint8),
            role=np.full(s, 6, np.uint8),
            born=np.full(s, -1, np.int32),
            died=np.full(s, -1, np.int32),
        ),
    }
    return Trace(**(plain | columns))


def test_twelve_numbers_in_their_order() -> None:
    """A matrix product of 1023 elements in 4095 bytes on a GPU, then a CPU node without output."""
    columns = {"rank": np.array([3, 0], np.uint8), "numel": np.array([1023, 0], np.int64)}
    two = trace([0, 1], [[0], []], [4095], device=np.array([1, 0], np.uint8), **columns)
    spec = GraphSpec(ops=("aten.mm.default", "aten.gelu.default"), dtypes=("float32",), traces={"eager": two})
    matrix = node_matrix(spec, "eager", EMBEDDING)
    assert matrix.dtype == np.float32
    assert matrix.tolist() == [[3, 10, 12, *MM.tolist(), 1], [0, 0, 0, *GELU.tolist(), 0]]
    assert len(FEATURES) == matrix.shape[1] == 12


def test_bytes_of_all_outputs_once_each() -> None:
    """Two outputs add up; two views of one storage count its bytes once."""
    assert output_bytes(trace([0, 0, 0], [[0, 1], [2, 2, 2], []], [100, 28, 7])).tolist() == [128, 7, 0]
    assert output_bytes(trace([0, 0], [[0, 0], []], [100])).tolist() == [100, 0]
    assert output_bytes(trace([], [], [])).tolist() == []


@pytest.mark.parametrize(
    ("name", "vector"),
    [
        ("aten.mm.default", MM),
        ("aten.mm.out", MM),
        ("aten.gelu_.default", GELU),
        ("aten.gelu_backward.grad_input", GELU),
        ("aten._gelu_backward.default", GELU),
        ("aten.bmm.default", np.zeros(8)),
        ("mylib.mm.default", np.zeros(8)),
        ("mm", np.zeros(8)),
    ],
)
def test_relatives_stand_in_by_name(name: str, vector: Any) -> None:
    """An operator never seen takes the vector of its stem; without a relative it has zeros and is named unknown."""
    spec = GraphSpec(ops=(name,), dtypes=("float32",), traces={"eager": trace([0], [[]], [])})
    assert node_matrix(spec, "eager", EMBEDDING)[0, 3:11].tolist() == vector.tolist()
    assert unknown_ops(spec, "eager", EMBEDDING) == (() if vector.any() else (name,))


def test_unknown_ops_are_those_used() -> None:
    """Names that the plan does not use are not reported; those inside a branch are."""
    inner = trace([2], [[]], [])
    outer = trace([0], [[]], [], branches=((0, (inner,)),))
    names = ("aten.mm.default", "lib.unused.default", "lib.inner.default")
    spec = GraphSpec(ops=names, dtypes=("f",), traces={"eager": outer, "inductor": trace([0], [[]], [])})
    assert unknown_ops(spec, "eager", EMBEDDING) == ("lib.inner.default",)
    assert unknown_ops(spec, "inductor", EMBEDDING) == ()


@given(graph_specs())
def test_matrix_agrees_with_a_loop_over_nodes(spec: GraphSpec) -> None:
    """For any graph each row is what a loop computes from that node's columns alone."""
    for plan, one in spec.traces.items():
        matrix = node_matrix(spec, plan, EMBEDDING)
        assert matrix.shape == (len(one), 12)
        assert np.isfinite(matrix).all()
        for i in range(len(one)):
            total = sum(int(one.storages.bytes[s]) for s in set(one.outputs.row(i).tolist()))
            expected = [one.rank[i], np.log2(1.0 + int(one.numel[i])), np.log2(1.0 + total)]
            np.testing.assert_allclose(matrix[i, :3], expected, rtol=1e-6)
            np.testing.assert_array_equal(matrix[i, 3:11], EMBEDDING.vectors_of([spec.ops[one.op[i]]])[0])
            assert matrix[i, 11] == one.device[i]
