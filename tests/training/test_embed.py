"""Operators used alike get near vectors, the same on every run."""

from __future__ import annotations

import lzma
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peakcast.featurizer.op_embedding import OpEmbedding
from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.trace import Csr, Storages, Trace
from peakcast.training.contexts import count_contexts
from peakcast.training.embed import learn

OPS = (
    "aten.mm.default",
    "aten.addmm.default",
    "aten.relu.default",
    "aten.gelu.default",
    "aten.sum.default",
    "aten.mean.default",
    "aten.view.default",
    "aten.add_.Tensor",
    "aten.exp.default",
    "aten._to_copy.default",
)
MM, ADDMM, RELU, GELU, SUM, MEAN, VIEW, ADD_, EXP, CAST = range(len(OPS))


def spec_of(nodes: list[tuple[int, list[int], list[int]]], sizes_bytes: Sequence[int] = ()) -> GraphSpec:
    """Return the spec of nodes (op, reads, writes); storages that no node writes are parameters."""
    n = len(nodes)
    count = 1 + max(storage for _, reads, writes in nodes for storage in [*reads, *writes])
    written = {storage for _, _, writes in nodes for storage in writes}
    born = [next((i for i, (_, _, w) in enumerate(nodes) if s in w), -1) for s in range(count)]

    def csr(column: int) -> Csr:
        rows: list[Any] = [node[column] for node in nodes]
        offsets = np.cumsum([0, *map(len, rows)]).astype(np.int32)
        return Csr(offsets, np.array([storage for row in rows for storage in row], np.int32))

    trace = Trace(
        phase=np.zeros(n, np.uint8),
        op=np.array([op for op, _, _ in nodes], np.int32),
        rank=np.full(n, 2, np.uint8),
        numel=np.full(n, 16, np.int64),
        dtype=np.zeros(n, np.uint8),
        device=np.ones(n, np.uint8),
        line=np.full(n, -1, np.int32),
        region=np.full(n, -1, np.int32),
        inputs=csr(1),
        outputs=csr(2),
        storages=Storages(
            bytes=np.array(sizes_bytes or [64] * count, np.int64),
            device=np.ones(count, np.uint8),
            role=np.array([6 if s in written else 0 for s in range(count)], np.uint8),
            born=np.array(born, np.int32),
            died=np.full(count, -1, np.int32),
        ),
    )
    return GraphSpec(ops=OPS, dtypes=("float32",), traces={"eager": trace})


def graphs() -> list[GraphSpec]:
    """Chains of product, activation, reduction, in which the two of each kind take each other's place."""
    return [
        spec_of([(product, [0, 1], [2]), (activation, [2], [3]), (EXP, [3], [4]), (reduction, [4], [5])])
        for product in (MM, ADDMM)
        for activation in (RELU, GELU)
        for reduction in (SUM, MEAN)
    ]


def with_views() -> list[GraphSpec]:
    """Return those chains, and a product that is viewed and added to."""
    return [*graphs(), spec_of([(MM, [0, 1], [2]), (VIEW, [2], [2]), (ADD_, [2, 0], [2])])]


def test_contexts_look_through_views_and_follow_in_place_writes() -> None:
    """A reader of a view comes after what filled the storage; after an in-place write, after that."""
    spec = spec_of([(MM, [0, 1], [2]), (VIEW, [2], [2]), (RELU, [2], [3]), (ADD_, [3, 0], [3]), (SUM, [3], [4])])
    counts = count_contexts(spec)
    product, relu = counts["aten.mm.default"], counts["aten.relu.default"]
    assert product["reads", "parameter"] == 2
    assert product["before", "aten.view"] == product["before", "aten.relu"] == 1
    assert relu["after", "aten.mm"] == 1
    assert relu["kind", "makes new"] == 1
    assert counts["aten.view.default"]["kind", "view"] == 1
    assert counts["aten.add_.Tensor"]["kind", "in place"] == 1
    assert counts["aten.sum.default"] == {
        ("after", "aten.add"): 1,
        ("origins", "made"): 1,
        ("makes", "temporary"): 1,
        ("phase", "forward"): 1,
        ("rank", "2"): 1,
        ("dtype", "float32"): 1,
        ("inputs", "1"): 1,
        ("outputs", "1"): 1,
        ("kind", "makes new"): 1,
        ("output", "equal"): 1,
        ("large inputs", "1"): 1,
        ("large outputs", "1 of 1"): 1,
        ("contraction", "one input"): 1,
        ("an input dies", "False"): 1,
    }


def test_contexts_look_through_casts() -> None:
    """A reader of a cast comes after what was cast; a cast parameter is a parameter still."""
    spec = spec_of([(CAST, [0], [1]), (MM, [1, 2], [3]), (CAST, [3], [4]), (RELU, [4], [5])])
    counts = count_contexts(spec)
    assert counts["aten.mm.default"]["reads", "parameter"] == 2
    assert counts["aten.relu.default"]["after", "aten.mm"] == 1
    assert counts["aten.mm.default"]["before", "aten.relu"] == 1


@pytest.mark.parametrize(
    ("sizes_bytes", "expected"),
    [
        # Of float32: [4, 3] x [3, 5] is [4, 5], so 12 x 15 / 20 = 9 = 3^2.
        ((48, 60, 80), "contracts"),
        # Twice [4, 3] x [3, 5] is twice [4, 5]: 24 x 30 / 40 = 18.
        ((96, 120, 160), "contracts"),
        ((80, 80, 80), "pointwise"),
        # A bias of five beside [4, 5].
        ((80, 20, 80), "broadcast"),
        # Five and seven beside each other are twelve: 35 / 12.
        ((20, 28, 48), "none"),
    ],
)
def test_a_matrix_product_shows_in_its_sizes(sizes_bytes: tuple[int, int, int], expected: str) -> None:
    """The dimension that two inputs share and the output lacks is found from three sizes."""
    spec = spec_of([(MM, [0, 1], [2])], sizes_bytes=sizes_bytes)
    assert count_contexts(spec)["aten.mm.default"]["contraction", expected] == 1


def test_each_architecture_has_one_say() -> None:
    """The same graph a second time changes nothing; graphs that share an architecture weigh less than each alone."""
    first, *others = specs = with_views()
    alone = learn(specs).vectors
    np.testing.assert_array_equal(learn([first, first, *others]).vectors, alone)
    family = dict.fromkeys([spec.graph_id for spec in specs[:4]], "A")
    assert np.abs(learn(specs, family).vectors - alone).max() > 1e-3


def test_operators_used_alike_are_near() -> None:
    """What can stand in the same place of a graph is nearest to each other."""
    embedding = learn(with_views())
    for a, b in ((RELU, GELU), (SUM, MEAN)):
        assert embedding.nearest(OPS[a], 1)[0][0] == OPS[b]
        assert embedding.nearest(OPS[b], 1)[0][0] == OPS[a]
    assert embedding.nearest(OPS[ADDMM], 1)[0][0] == OPS[MM]
    np.testing.assert_allclose(np.linalg.norm(embedding.vectors, axis=1), 1, rtol=1e-5)


def test_too_few_operators_are_refused() -> None:
    """Eight dimensions cannot be learned from four operators."""
    with pytest.raises(ValueError, match="1 graphs hold 4 operators; at least 8 are needed"):
        learn(graphs()[:1])


def test_command_writes_the_same_file_each_time(tmp_path: Path, root: Path) -> None:
    """The command reads a corpus and writes a file that the featurizer loads, byte for byte the same again."""
    (tmp_path / "graphs").mkdir()
    specs = with_views()
    for spec in specs:
        (tmp_path / "graphs" / f"{spec.graph_id}.json.xz").write_bytes(lzma.compress(spec.to_json()))
    files = [tmp_path / "one.json", tmp_path / "two.json"]
    for file in files:
        command = [sys.executable, "-m", "peakcast.training.embed", str(tmp_path), str(file)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root)
        assert "9 operators from 9 graphs" in done.stdout
    assert files[0].read_bytes() == files[1].read_bytes()
    loaded = OpEmbedding.from_json(files[0].read_bytes())
    assert loaded.ops == tuple(sorted(OPS[:CAST]))
    assert loaded.learned_from["graphs"] == 9
    np.testing.assert_allclose(loaded.vectors, learn(specs).vectors, atol=1e-3)
