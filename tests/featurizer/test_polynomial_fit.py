"""Traces at several sizes joined to one with polynomials, and what is refused, on hand-written traces."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from handmade import Sketch
from hypothesis import given
from hypothesis import strategies as st

from peakcast.featurizer.polynomial_fit import UnlikeTracesError, degree, fitted, polynomial_through
from peakcast.featurizer.polynomials import Symbol, evaluate
from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.vocabulary import INPUT, PARAMETER

BATCH = Symbol(hint=4, min=2, max=4096)
SIZES = (2, 4, 33)


def joined(make: Callable[[int], Sketch], sizes: tuple[int, ...] = SIZES) -> GraphSpec:
    """Fit the sketches of these sizes."""
    return fitted({size: make(size).spec() for size in sizes}, "batch", BATCH)


def layer(batch: int) -> Sketch:
    """Return a weight, an input, and a result that outlives the input."""
    sketch = Sketch()
    weight, x = sketch.start(1000, PARAMETER), sketch.start(8 * batch, INPUT)
    (out,) = sketch.node("aten.mm.default", 12 * batch + 5, reads=[weight, x], dies=[x])
    sketch.node("aten.relu.default", 3 * batch * batch, reads=[out])
    return sketch


@given(st.tuples(*[st.integers(0, 1000)] * 3), st.lists(st.integers(1, 10_000), min_size=3, max_size=6, unique=True))
def test_the_polynomial_behind_the_points_is_found(coefficients: tuple[int, int, int], sizes: list[int]) -> None:
    """Whatever its coefficients and the sizes, it comes back, and nothing for a constant."""
    square, linear, constant = coefficients
    values = [square * size * size + linear * size + constant for size in sizes]
    found = polynomial_through(sizes, values, "batch")
    if not square and not linear:
        assert found is None
        return
    assert found is not None
    at_77 = square * 77 * 77 + linear * 77 + constant
    assert evaluate(found, {"batch": 77}, limit=1 << 62, path="$") == at_77
    assert all(coefficient for coefficient, _ in found)


def test_a_falling_size_has_a_negative_coefficient() -> None:
    """100 - 2 b, exactly."""
    assert polynomial_through([2, 4, 33], [96, 92, 34], "b") == ((-2, (("b", 1),)), (100, ()))


@pytest.mark.parametrize(
    ("sizes", "values"),
    [
        ([2, 4, 33], [8, 8, 40]),  # rounded up to 8
        ([2, 3, 4], [1, 3, 6]),  # b (b - 1) / 2: right, but in halves
        ([2, 4, 33, 10], [4, 16, 1089, 101]),  # b^2, missed at 10
    ],
)
def test_what_is_no_polynomial_of_whole_numbers_is_refused(sizes: list[int], values: list[int]) -> None:
    """Halves, and points beside the curve."""
    with pytest.raises(ValueError, match=r"integers|misses"):
        polynomial_through(sizes, values, "b")


def test_each_size_gets_its_polynomial() -> None:
    """What does not vary gets none, and at another size all bytes are those counted by hand."""
    spec = joined(layer)
    linear = ((12, (("batch", 1),)), (5, ()))
    bytes_poly = spec.traces["eager"].storages.bytes_poly
    assert bytes_poly == (None, ((8, (("batch", 1),)),), linear, ((3, (("batch", 2),)),))
    assert spec.at({"batch": 10}).traces["eager"].storages.bytes.tolist() == [1000, 80, 125, 300]
    assert degree(spec) == 2
    assert GraphSpec.from_json(spec.to_json()) == spec


def test_a_graph_without_anything_that_varies_has_degree_0() -> None:
    """It has the symbol all the same."""
    spec = joined(lambda _: layer(4))
    assert degree(spec) == 0
    assert spec.symbols == {"batch": BATCH}


def other_op(batch: int) -> Sketch:
    """Another operator at 33."""
    sketch = layer(batch)
    sketch.node("aten.sin.default" if batch == 33 else "aten.cos.default", 1)
    return sketch


def more_nodes(batch: int) -> Sketch:
    """One more operator at 2."""
    sketch = layer(batch)
    if batch == 2:
        sketch.node("aten.sin.default", 1)
    return sketch


def other_death(batch: int) -> Sketch:
    """Let the result die at 33 only."""
    sketch = layer(batch)
    sketch.node("aten.sin.default", 1, dies=[2] if batch == 33 else [])
    return sketch


def other_phase(batch: int) -> Sketch:
    """Run in another phase at 2."""
    sketch = layer(batch)
    sketch.node("aten.sin.default", 1, phase=1 if batch == 2 else 2)
    return sketch


def other_reads(batch: int) -> Sketch:
    """Read another storage at 33."""
    sketch = layer(batch)
    sketch.node("aten.sin.default", 1, reads=[0 if batch == 33 else 1])
    return sketch


def more_storages(batch: int) -> Sketch:
    """There is one input more at 2."""
    sketch = layer(batch)
    if batch == 2:
        sketch.start(4, INPUT)
    return sketch


def staircase(batch: int) -> Sketch:
    """Bytes rounded up to 64."""
    sketch = layer(batch)
    sketch.node("aten.new_zeros.default", -(-batch // 64) * 64 + batch // 3)
    return sketch


def branched(batch: int, op: str = "aten.sin.default") -> Sketch:
    """Return a cond with one branch."""
    sketch, inner = layer(batch), Sketch()
    sketch.node("higher_order.cond", 1)
    sketch.ops.append(op)
    inner.ops = list(sketch.ops)
    inner.node(op, 7 * batch)
    sketch.branches.append((2, (inner.trace(sketch.ops),)))
    return sketch


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (other_op, "eager: node 2 is aten.cos.default at batch 4, but aten.sin.default at batch 33"),
        (more_nodes, "eager: node 2 is no more at batch 4, but aten.sin.default at batch 2"),
        (other_death, "storage 2, made by node 0 (aten.mm.default) has other died at batch 33 than at batch 4"),
        (other_phase, "node 2 (aten.sin.default) has other phase at batch 2 than at batch 4"),
        (other_reads, "node 2 (aten.sin.default) has other inputs at batch 33 than at batch 4"),
        (more_storages, "eager: storage 4 has other born at batch 2 than at batch 4"),
        (
            staircase,
            "made by node 2 (aten.new_zeros.default): bytes are no polynomial of batch: 64 at 2, 65 at 4, 75 at 33",
        ),
        (lambda b: branched(b, "aten.sin.default" if b < 9 else "aten.cos.default"), "aten.cos.default at batch 33"),
        (lambda b: branched(b) if b < 9 else other_op(b), "but aten.sin.default at batch 33"),
    ],
    ids=["op", "nodes", "death", "phase", "reads", "storages", "staircase", "branch", "no_branch"],
)
def test_what_differs_between_sizes_is_named(make: Callable[[int], Sketch], words: str) -> None:
    """The first thing that differs, with plan, node and operator, at which size."""
    with pytest.raises(UnlikeTracesError) as told:
        joined(make)
    assert words in str(told.value)


def test_a_branch_has_polynomials_of_its_own() -> None:
    """7 b bytes in the branch."""
    trace = joined(branched).at({"batch": 100}).traces["eager"]
    assert trace.branches[0][1][0].storages.bytes.tolist() == [700]


def test_two_sizes_are_too_few() -> None:
    """A line through two points proves nothing."""
    with pytest.raises(ValueError, match="2 sizes were captured; needed: at least 3"):
        joined(layer, (2, 4))


def test_other_plans_are_no_graph_of_the_same_step() -> None:
    """Each capture has the same plans."""
    specs = {size: layer(size).spec() for size in SIZES}
    with pytest.raises(UnlikeTracesError, match="the plans at batch 33"):
        fitted({**specs, 33: layer(33).spec("eager:checkpoint")}, "batch", BATCH)
