"""Hypothesis strategies for valid graphs: `from strategies import graph_specs`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from peakcast.featurizer.polynomials import Polynomial
from peakcast.featurizer.spec import GraphSpec, Symbol
from peakcast.featurizer.trace import Csr, Storages, Trace
from peakcast.featurizer.vocabulary import DTYPE_BYTES, PHASES, PLACEMENTS, ROLES

OPS = (
    "aten.mm.default",
    "aten.addmm.default",
    "aten.relu_.default",
    "aten.gelu_backward.default",
    "aten.view.default",
    "aten.convolution.default",
    "higher_order.cond",
    "mylib.scan.out",
)
PLANS = ("eager", "inductor", "inductor:budget=0.5", "hybrid", "eager:checkpoint")
DTYPES = tuple(DTYPE_BYTES)


@st.composite
def graph_specs(draw: st.DrawFn, *, max_nodes: int = 12, max_storages: int = 8, symbolic: bool = True) -> GraphSpec:
    """Draw a valid spec of a few small traces, often with branches, lines, regions and symbolic sizes."""
    ops = draw(_subset(OPS))
    dtypes = draw(_subset(DTYPES))
    lines = draw(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=3))
    symbols = draw(st.dictionaries(st.sampled_from(["batch", "length"]), symbol_ranges(), max_size=2 * symbolic))
    tables = _Tables(len(ops), len(dtypes), len(lines), {name: symbol.hint for name, symbol in symbols.items()})
    plans = draw(_subset(PLANS, most=2))
    return GraphSpec(
        ops=ops,
        dtypes=dtypes,
        traces={plan: draw(_traces(tables, max_nodes, max_storages, depth=0)) for plan in plans},
        symbols=symbols,
        captured_with=draw(st.dictionaries(st.sampled_from(["torch", "traced_on"]), st.text("abc.123", max_size=8))),
        lines=tuple(lines),
    )


@st.composite
def symbol_ranges(draw: st.DrawFn) -> Symbol:
    """Draw a symbol between 1 and 64."""
    low, hint, high = sorted(draw(st.tuples(*[st.integers(1, 64)] * 3)))
    return Symbol(hint=hint, min=low, max=high)


class _Tables:
    def __init__(self, ops: int, dtypes: int, lines: int, hints: dict[str, int]) -> None:
        self.ops, self.dtypes, self.lines, self.hints = ops, dtypes, lines, hints


@st.composite
def _traces(draw: st.DrawFn, tables: _Tables, max_nodes: int, max_storages: int, depth: int) -> Trace:
    n = draw(st.integers(0, max_nodes))
    s = draw(st.integers(0, max_storages))
    numel, numel_poly = draw(_sizes(n, tables.hints))
    branches: list[tuple[int, tuple[Trace, ...]]] = []
    if n and depth < 2:
        nodes = draw(st.lists(st.integers(0, n - 1), max_size=2, unique=True))
        small = _traces(tables, 3, 3, depth + 1)
        branches = [(node, tuple(draw(st.lists(small, min_size=1, max_size=2)))) for node in sorted(nodes)]
    return Trace(
        phase=draw(_columns(n, 0, len(PHASES) - 1, np.uint8)),
        op=draw(_columns(n, 0, tables.ops - 1, np.int32)),
        rank=draw(_columns(n, 0, 8, np.uint8)),
        numel=numel,
        dtype=draw(_columns(n, 0, tables.dtypes - 1, np.uint8)),
        device=draw(_columns(n, 0, len(PLACEMENTS) - 1, np.uint8)),
        line=draw(_columns(n, -1, tables.lines - 1, np.int32)),
        region=draw(_columns(n, -1, min(n - 1, 2), np.int32)),
        inputs=draw(_csr(n, s)),
        outputs=draw(_csr(n, s)),
        storages=draw(_storages(n, s, tables.hints)),
        branches=tuple(branches),
        numel_poly=numel_poly,
    )


@st.composite
def _storages(draw: st.DrawFn, n: int, s: int, hints: dict[str, int]) -> Storages:
    sizes, polynomials = draw(_sizes(s, hints))
    born = draw(_columns(s, -1, n - 1, np.int32))
    died = np.array([draw(st.one_of(st.just(-1), st.integers(int(b), n - 1))) for b in born], np.int32)
    return Storages(
        bytes=sizes,
        device=draw(_columns(s, 0, len(PLACEMENTS) - 1, np.uint8)),
        role=draw(_columns(s, 0, len(ROLES) - 1, np.uint8)),
        born=born,
        died=died,
        bytes_poly=polynomials,
    )


@st.composite
def _sizes(
    draw: st.DrawFn, length: int, hints: dict[str, int]
) -> tuple[NDArray[np.int64], tuple[Polynomial | None, ...]]:
    """Draw a column of sizes, at times with polynomials that agree with it at the hints."""
    column = draw(_columns(length, 0, 1 << 40, np.int64))
    if not hints or not length or not draw(st.booleans()):
        return column, ()
    polynomials: list[Polynomial | None] = []
    for row in range(length):
        name = draw(st.sampled_from([None, *hints]))
        if name is None:
            polynomials.append(None)
            continue
        factor, power, constant = draw(st.tuples(st.integers(0, 9999), st.integers(1, 3), st.integers(0, 9999)))
        polynomials.append(((factor, ((name, power),)), (constant, ())))
        column[row] = factor * hints[name] ** power + constant
    return column, tuple(polynomials) if any(p is not None for p in polynomials) else ()


@st.composite
def _csr(draw: st.DrawFn, rows: int, storages: int) -> Csr:
    counts = [draw(st.integers(0, 3)) if storages else 0 for _ in range(rows)]
    ids = draw(_columns(sum(counts), 0, storages - 1, np.int32))
    return Csr(offsets=np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int32), ids=ids)


@st.composite
def _columns(draw: st.DrawFn, length: int, low: int, high: int, dtype: Any) -> NDArray[Any]:
    values = draw(st.lists(st.integers(low, high), min_size=length, max_size=length)) if length else []
    return np.array(values, dtype)


def _subset(values: Sequence[str], most: int = 8) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(st.sampled_from(values), min_size=1, max_size=most, unique=True).map(tuple)
