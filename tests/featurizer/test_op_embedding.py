"""The shipped operator vectors make sense: what does alike work is near."""

from __future__ import annotations

import numpy as np
import orjson
import pytest

from peakcast.featurizer.op_embedding import SHIPPED, OpEmbedding, shipped_embedding, stems

MATRIX_PRODUCTS = {"aten.mm.default", "aten.addmm.default", "aten.bmm.default", "aten.baddbmm.default"}
ACTIVATIONS = {"relu", "gelu", "silu", "elu", "leaky_relu", "tanh", "sigmoid", "hardswish", "hardsigmoid"}
NORMS = {"native_layer_norm", "native_batch_norm", "cudnn_batch_norm", "native_group_norm", "_fused_rms_norm"}
VIEWS = {
    *("view", "_unsafe_view", "t", "transpose", "permute", "slice", "select", "expand", "split", "alias", "squeeze"),
    "as_strided",
}


def packets(name: str, count: int) -> list[str]:
    """Return the nearest operators of the shipped data without namespace and overload."""
    return [near.split(".")[1] for near, _ in shipped_embedding().nearest(name, count)]


@pytest.mark.parametrize("name", ["aten.mm.default", "aten.addmm.default", "aten.bmm.default"])
def test_matrix_products_are_near_each_other(name: str) -> None:
    """Of the two nearest of mm, addmm and bmm, both are matrix products."""
    assert {near for near, _ in shipped_embedding().nearest(name, 2)} <= MATRIX_PRODUCTS


def test_activations_are_near_each_other() -> None:
    """Relu and gelu are among each other's nearest, and what surrounds them are activations."""
    assert "gelu" in packets("aten.relu.default", 3)
    assert "relu" in packets("aten.gelu.default", 3)
    assert set(packets("aten.relu.default", 2)) | set(packets("aten.gelu.default", 2)) <= ACTIVATIONS


@pytest.mark.parametrize("name", sorted(NORMS))
def test_norms_are_near_each_other(name: str) -> None:
    """The three nearest of each normalisation are normalisations, over features, channels, batch or groups."""
    assert set(packets(f"aten.{name}.default", 3)) <= NORMS - {name}


@pytest.mark.parametrize("name", ["aten.view.default", "aten.transpose.int", "aten.permute.default"])
def test_views_are_near_each_other(name: str) -> None:
    """What surrounds a view makes no new storage either."""
    assert set(packets(name, 3)) <= VIEWS


def test_unlike_operators_are_apart() -> None:
    """A matrix product is nearer to any other than to a view, an activation, a norm or the optimizer."""
    find = shipped_embedding().find
    products = ("aten.mm.default", "aten.addmm.default", "aten.bmm.default")
    others = ("aten.view.default", "aten.relu.default", "aten.native_layer_norm.default", "aten._foreach_add_.Scalar")
    for name in products:
        farthest_own = min(float(find(name) @ find(other)) for other in products)
        assert farthest_own > max(float(find(name) @ find(other)) for other in others)


def test_shipped_file_is_small_and_says_where_it_is_from() -> None:
    """Under 200 KB, unit vectors of eight numbers, with the number of graphs and the hash of their ids."""
    text = SHIPPED.read_bytes()
    assert len(text) < 200_000
    embedding = shipped_embedding()
    assert embedding.to_json() == text
    assert embedding.vectors.shape == (len(embedding.ops), 8)
    np.testing.assert_allclose(np.linalg.norm(embedding.vectors, axis=1), 1, atol=1e-3)
    assert embedding.learned_from["graphs"] >= 20
    assert len(bytes.fromhex(embedding.learned_from["graph_ids_sha256"])) == 32


def test_a_relative_by_name_stands_in() -> None:
    """An overload never seen has the vector of the one seen; the letters of an unknown operator mean nothing."""
    embedding = shipped_embedding()
    np.testing.assert_array_equal(embedding.vectors_of(["aten.mm.out"]), embedding.vectors_of(["aten.mm.default"]))
    assert embedding.find("nolib.nothing.default") is None
    assert not embedding.vectors_of(["nolib.nothing.default"]).any()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aten.mm.default", ["aten.mm"]),
        ("aten.relu_.default", ["aten.relu_", "aten.relu"]),
        ("aten._softmax.out", ["aten._softmax", "aten.softmax"]),
        (
            "aten._softmax_backward.default",
            ["aten._softmax_backward", "aten.softmax_backward", "aten.softmax"],
        ),
        ("higher_order.cond", ["higher_order.cond"]),
    ],
)
def test_stems(name: str, expected: list[str]) -> None:
    """A name loses its overload first, then the in-place mark and the underscore in front, then `_backward`."""
    assert list(stems(name)) == expected


def test_vectors_of_another_length_are_refused() -> None:
    """A file with seven numbers an operator is no embedding."""
    text = orjson.dumps({"learned_from": {}, "vectors": {"aten.mm.default": [0.0] * 7}})
    with pytest.raises(ValueError, match="must have 8 dimensions"):
        OpEmbedding.from_json(text)
