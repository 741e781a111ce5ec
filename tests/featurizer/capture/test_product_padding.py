"""Which products inductor pads: what its benchmark found on an H200 under torch 2.11 is what is estimated."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import fx
from torch._inductor.fx_passes import pad_mm
from torch._subclasses.fake_tensor import FakeTensorMode

from peakcast.featurizer.capture.product_padding import (
    Operand,
    Product,
    decide_without_timing,
    is_near_tie,
    is_padded,
    padding_gain,
)


def _product(
    m: int, k: int, n: int, dtype: str, *, transposed: str = "", planned: str = "", bias: bool = False
) -> Product:
    """Give a product of an m x k and a k x n matrix; `transposed` and `planned` name operands, a and b."""
    first = Operand(m, k, 1, m, "a" in planned) if "a" in transposed else Operand(m, k, k, 1, "a" in planned)
    second = Operand(k, n, 1, k, "b" in planned) if "b" in transposed else Operand(k, n, n, 1, "b" in planned)
    item_bytes = 4 if dtype == "float32" else 2
    return Product(first, second, item_bytes, alignment=16 // item_bytes, has_bias=bias)


# As the benchmark decided on the card. 30,522, 50,257, 40,478 and 32,005 are vocabularies.
MEASURED = [
    # The logits of a language model, and the gradient of what made them: the weight is copied, or the logits are free.
    (_product(8192, 768, 30522, "bfloat16", transposed="b", planned="a", bias=True), True),
    (_product(8192, 768, 50257, "float32", transposed="b", planned="a"), True),
    (_product(8192, 30522, 768, "float32", planned="a"), True),
    (_product(4096, 50257, 768, "bfloat16", planned="b"), True),
    (_product(1024, 768, 50257, "float32", transposed="b", planned="a"), False),  # too few tokens for the weight's copy
    # The gradient of the weight reads the logits transposed. Rows of two bytes' alignment are slow enough to copy that.
    (_product(50257, 12288, 768, "bfloat16", transposed="a", planned="b"), True),
    (_product(30522, 8192, 768, "bfloat16", transposed="a", planned="b"), False),
    (_product(40478, 4096, 768, "bfloat16", transposed="a", planned="b"), False),
    (_product(30522, 2048, 768, "float32", transposed="a", planned="b"), True),
    (_product(30522, 8192, 768, "float32", transposed="a", planned="b"), False),
    (_product(32005, 8192, 512, "float32", transposed="a", planned="b"), False),
    # A classifier of ten classes, and attention over 197 patches.
    (_product(64, 768, 10, "bfloat16", transposed="b", planned="a", bias=True), False),
    (replace(_product(197, 64, 197, "bfloat16", transposed="b", planned="a"), batch=768), False),
]


@pytest.mark.parametrize(("product", "padded"), MEASURED)
def test_the_estimate_decides_as_the_card_did(product: Product, padded: bool) -> None:
    """Each of these was timed by inductor itself."""
    assert is_padded(product) is padded


def test_without_tensor_cores_nothing_is_won() -> None:
    """float32 that may not be rounded to TF32 is as slow in any shape, and so is float64."""
    product = _product(8192, 768, 30522, "float32", transposed="b", planned="a")
    assert is_padded(product)
    assert not is_padded(replace(product, on_tensor_cores=False))
    assert not is_padded(replace(product, item_bytes=8))


def test_what_is_aligned_is_left_alone() -> None:
    """Copies of nothing and no faster: the factor that inductor asks for is not reached."""
    assert padding_gain(_product(4096, 768, 3072, "bfloat16")) == pytest.approx(1 / 1.1)


def test_a_tie_is_told() -> None:
    """A gradient whose copy about eats the gain could go either way; logits with an odd vocabulary could not."""
    assert is_near_tie(_product(30522, 8192, 768, "float32", transposed="a", planned="b"))
    assert not is_near_tie(_product(8192, 768, 50257, "bfloat16", transposed="b", planned="a"))


@pytest.fixture
def _hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put torch's own functions back afterwards."""
    for name in ("should_pad_bench_key", "get_cached_should_pad", "is_mm_compute_bound"):
        monkeypatch.setattr(pad_mm, name, getattr(pad_mm, name))


@pytest.mark.usefixtures("_hooks")
def test_inductors_question_is_understood() -> None:
    """Sizes, strides, item size and what can be written padded are read off inductor's own match."""
    asked: list[Product] = []

    def answer(product: Product) -> bool:
        asked.append(product)
        return True

    assert decide_without_timing(answer)
    graph = fx.Graph()
    with FakeTensorMode():
        a, b = torch.empty(96, 64, dtype=torch.bfloat16), torch.empty(10, 64, dtype=torch.bfloat16)
        given = graph.placeholder("a")
        given.meta["val"] = a
        made = graph.call_function(torch.ops.aten.relu.default, (given,))
        made.meta["val"] = a
        weight = graph.placeholder("b")
        weight.meta["val"] = b
        turned = graph.call_function(torch.ops.aten.permute.default, (weight, [1, 0]))
        turned.meta["val"] = b.t()
        match = type("Match", (), {"kwargs": {"mat1": made, "mat2": turned}})()
        key = pad_mm.should_pad_bench_key(match, a, b.t(), torch.ops.aten.mm)
        assert pad_mm.get_cached_should_pad(key) is True
    expected = Product(Operand(96, 64, 64, 1, is_planned=True), Operand(64, 10, 1, 64), item_bytes=2, alignment=8)
    assert asked == [expected]
    assert pad_mm.is_mm_compute_bound(1, 1, 1, torch.bfloat16)
