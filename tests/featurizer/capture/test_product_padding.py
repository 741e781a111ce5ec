"""Which products inductor pads: what its benchmark found on an H200 under torch 2.11 is what is estimated."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import fx
from torch._inductor.fx_passes import pad_mm
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

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
    return Product(first, second, item_bytes, alignment=16 // item_bytes, bias_rows=int(bias))


# As the benchmark decided on the card. 30,522, 50,257, 40,478 and 32,005 are vocabularies.
MEASURED = [
    # The logits of a language model, and the gradient of what made them: the weight is copied, or the logits are free.
    (_product(8192, 768, 30522, "bfloat16", transposed="b", planned="a", bias=True), True),
    (_product(8192, 768, 50257, "float32", transposed="b", planned="a"), True),
    (_product(8192, 30522, 768, "float32", planned="a"), True),
    (_product(4096, 50257, 768, "bfloat16", planned="b"), True),
    (
        _product(1024, 768, 30522, "bfloat16", transposed="b", planned="a"),
        False,
    ),  # too few tokens for the weight's copy
    # The gradient of the weight reads the logits transposed. Rows of two bytes' alignment are slow enough to copy that.
    (_product(50257, 12288, 768, "bfloat16", transposed="a", planned="b"), True),
    (_product(30522, 8192, 768, "bfloat16", transposed="a", planned="b"), False),
    (_product(40478, 4096, 768, "bfloat16", transposed="a", planned="b"), False),
    (_product(30522, 8192, 768, "float32", transposed="a", planned="b"), False),
    (_product(32005, 8192, 512, "float32", transposed="a", planned="b"), False),
    # A classifier of ten classes, and attention over 197 and 577 patches.
    (_product(64, 768, 10, "bfloat16", transposed="b", planned="a", bias=True), False),
    (replace(_product(197, 64, 197, "bfloat16", transposed="b", planned="a"), batch=768), True),
    (replace(_product(577, 64, 577, "bfloat16", transposed="b"), batch=96), True),
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


def test_most_of_what_was_timed_comes_out_as_it_did() -> None:
    """Of all 590 products that the numbers were fitted to, 561 do, where padding all of them would be right for 255."""
    lines = [json.loads(line) for line in (Path(__file__).with_name("padded_products.jsonl")).read_text().splitlines()]
    pads, right, wrong_and_sure = 0, 0, 0
    for line in lines:
        product = Product(
            Operand(*line["first"], is_planned=line["planned"][0]),
            Operand(*line["second"], is_planned=line["planned"][1]),
            line["item_bytes"],
            alignment=16 // line["item_bytes"],
            batch=line["batch"],
            bias_rows=int(line["bias"]),
        )
        as_it_is, padded = line["us"]
        was_padded = as_it_is > 1.1 * padded
        pads += was_padded
        is_right = is_padded(product) is was_padded
        right += is_right
        wrong_and_sure += not is_right and not is_near_tie(product)
    assert (len(lines), pads, right, wrong_and_sure) == (590, 255, 561, 3)


def test_where_nothing_can_be_padded_nothing_is_won() -> None:
    """Aligned sizes, sizes of one and sizes that are symbols stay as they are."""
    assert padding_gain(_product(4096, 768, 3072, "bfloat16")) == 0.0
    assert padding_gain(_product(1, 768, 1, "bfloat16")) == 0.0
    odd = _product(8191, 768, 30522, "bfloat16", transposed="b", planned="a")
    assert padding_gain(odd) > 1.0
    assert padding_gain(replace(odd, symbols=(True, True, True))) == 0.0
    assert 0.0 < padding_gain(replace(odd, symbols=(False, False, True))) < padding_gain(odd)


def test_an_expanded_gradient_is_copied_and_not_taken_for_misaligned() -> None:
    """A sum's gradient has rows of stride 0: cuBLAS reads a copy, whose rows are those of 4,096 columns."""
    expanded = Product(Operand(8191, 4096, 0, 1), Operand(4096, 1024, 1024, 1), item_bytes=2, alignment=8)
    assert expanded.first.leading == 4096
    assert not is_padded(expanded)


def test_one_column_of_results_is_not_misaligned() -> None:
    """A value head of 1,000,001 rows has results of two bytes each, one after another."""
    assert not is_padded(_product(1_000_001, 768, 1, "bfloat16", transposed="b", planned="a", bias=True))


def test_what_is_added_is_copied_too() -> None:
    """A residual as large as the result costs more than padding wins, a bias does not."""
    product = _product(8192, 128, 4094, "bfloat16")
    assert is_padded(replace(product, bias_rows=1))
    assert not is_padded(replace(product, bias_rows=8192))


def test_a_tie_is_told() -> None:
    """A gradient whose copy about eats the gain could go either way; logits with an odd vocabulary could not."""
    assert is_near_tie(_product(30522, 8192, 768, "float32", transposed="a", planned="b"))
    assert not is_near_tie(_product(8192, 768, 50257, "bfloat16", transposed="b", planned="a"))


@pytest.fixture
def _hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put torch's own functions back afterwards."""
    for name in ("should_pad_bench_key", "get_cached_should_pad", "is_mm_compute_bound"):
        monkeypatch.setattr(pad_mm, name, getattr(pad_mm, name))


class Asked:
    """Takes inductor's questions, and makes the matches it asks with."""

    def __init__(self) -> None:
        self.products: list[Product] = []
        self._graph = fx.Graph()

    def answer(self, product: Product) -> bool:
        """Pad everything."""
        self.products.append(product)
        return True

    def ask(self, op: object, first: torch.Tensor, second: torch.Tensor, added: torch.Tensor | None = None) -> Product:
        """Ask as inductor does: the first operand is made by a kernel, the second given to the graph."""
        given, weight = self._node(first), self._node(second)
        made = self._graph.call_function(torch.ops.aten.relu.default, (given,))
        made.meta["val"] = first
        match = type("Match", (), {"kwargs": {"mat1": made, "mat2": weight}})()
        assert pad_mm.get_cached_should_pad(pad_mm.should_pad_bench_key(match, first, second, op, added)) is True
        return self.products[-1]

    def _node(self, value: torch.Tensor) -> fx.Node:
        node = self._graph.placeholder(f"given{len(self._graph.nodes)}")
        node.meta["val"] = value
        return node


@pytest.fixture
def asked(_hooks: None) -> Asked:
    """Give what inductor asks, with our answers in place of its benchmark."""
    made = Asked()
    assert decide_without_timing(made.answer)
    return made


def test_inductors_question_is_understood(asked: Asked) -> None:
    """Sizes, strides, item size, what can be written padded and what is added are read off inductor's own match."""
    half = {"dtype": torch.bfloat16}
    with FakeTensorMode():
        found = asked.ask(torch.ops.aten.mm, torch.empty(96, 64, **half), torch.empty(10, 64, **half).t())
        first, second = Operand(96, 64, 64, 1, is_planned=True), Operand(64, 10, 1, 64)
        assert found == Product(first, second, item_bytes=2, alignment=8)
        a, b = torch.empty(96, 64, **half), torch.empty(64, 10, **half)
        assert asked.ask(torch.ops.aten.addmm, a, b, torch.empty(10, **half)).bias_rows == 1
        assert asked.ask(torch.ops.aten.addmm, a, b, torch.empty(96, 10, **half)).bias_rows == 96
        found = asked.ask(torch.ops.aten.bmm, torch.empty(12, 197, 64, **half), torch.empty(12, 64, 197, **half))
        assert (found.batch, found.first.rows, found.second.columns) == (12, 197, 197)
    assert pad_mm.is_mm_compute_bound(1, 1, 1, torch.bfloat16)


def test_a_symbol_counts_with_the_size_it_was_traced_at(asked: Asked) -> None:
    """And is not padded."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    rows = mode.from_tensor(torch.empty(97, 64, dtype=torch.bfloat16), static_shapes=False)
    with mode:
        found = asked.ask(torch.ops.aten.mm, rows, torch.empty(64, 10, dtype=torch.bfloat16))
    assert (found.first.rows, found.second.columns) == (97, 10)
    assert found.symbols[0]
    assert not found.symbols[2]


WAYS_TO_TF32 = (
    "torch.set_float32_matmul_precision('high')",
    "torch.backends.cuda.matmul.allow_tf32 = True",
    "torch.backends.cuda.matmul.fp32_precision = 'tf32'",
    "torch.backends.fp32_precision = 'tf32'",
)
EACH_IN_A_CHILD = """
import os, sys
import torch
from peakcast.featurizer.capture.product_padding import rounds_to_tf32
for way in ("pass", *sys.argv[1:]):
    child = os.fork()
    if not child:
        exec(way)
        os._exit(rounds_to_tf32())
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_tf32_is_known_however_it_was_asked_for() -> None:
    """Of torch's two ways to ask, reading the one raises once the other was taken."""
    command = [sys.executable, "-W", "ignore", "-c", EACH_IN_A_CHILD, *WAYS_TO_TF32]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert told == ["0", "1", "1", "1", "1"]
