"""Hypothesis strategies for valid graphs: `from strategies import graph_specs, programs`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from handmade import Sketch
from hypothesis import strategies as st
from numpy.typing import NDArray

from peakcast.featurizer.polynomials import Polynomial
from peakcast.featurizer.spec import GraphSpec, Symbol
from peakcast.featurizer.trace import Csr, Storages, Trace
from peakcast.featurizer.vocabulary import BACKWARD, DTYPE_BYTES, FORWARD, INPUT, PHASES, PLACEMENTS, ROLES

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
ATTRIBUTES = (
    "kernel=3x3,stride=1x1,dilation=1x1,groups=1,transposed=0,channels=64x128,image=56x56,layout=nchw,copied=1",
    "kernel=3,groups=4,channels=8x16,layout=nhwc",
    "kernel=3x3,stride=1x1,dilation=1x1,groups=1,transposed=0,channels=16x16,image=8x8,layout=nhwc,copied=0",
    "kernel=1x1,groups=0,channels=-1x1,layout=nchw",
    "~",
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
    attributes = draw(st.lists(st.sampled_from(ATTRIBUTES), max_size=3, unique=True))
    hints = {name: symbol.hint for name, symbol in symbols.items()}
    tables = _Tables(len(ops), len(dtypes), len(lines), len(attributes), hints)
    plans = draw(_subset(PLANS, most=2))
    return GraphSpec(
        ops=ops,
        dtypes=dtypes,
        traces={plan: draw(_traces(tables, max_nodes, max_storages, depth=0)) for plan in plans},
        symbols=symbols,
        captured_with=draw(st.dictionaries(st.sampled_from(["torch", "traced_on"]), st.text("abc.123", max_size=8))),
        lines=tuple(lines),
        attributes=tuple(attributes),
    )


@st.composite
def symbol_ranges(draw: st.DrawFn) -> Symbol:
    """Draw a symbol between 1 and 64."""
    low, hint, high = sorted(draw(st.tuples(*[st.integers(1, 64)] * 3)))
    return Symbol(hint=hint, min=low, max=high)


@dataclass(frozen=True, slots=True)
class _Tables:
    ops: int
    dtypes: int
    lines: int
    attributes: int
    hints: dict[str, int]


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
        attribute=draw(_columns(n, -1, tables.attributes - 1, np.int32)),
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


# What a program is made of: several of each kind that the fusion rules tell apart.
COMPUTING_OPS = (
    "aten.exp.default",
    "aten.add.Tensor",
    "aten.clone.default",
    "aten.sum.default",
    "aten.var_mean.correction",
    "aten.cat.default",
    "aten.index_put.default",
    "aten.convolution.default",
    "aten.avg_pool2d.default",
    "aten.mm.default",
    "mylib.scan.default",
)
VIEW_OPS = ("aten.view.default", "aten.permute.default")
REGIONS = (0, 1, -1)


@st.composite
def programs(draw: st.DrawFn, *, max_nodes: int = 30) -> tuple[tuple[str, ...], Trace]:
    """Draw a step as one runs: nothing is read before it is made or after it is freed. Returns ops and trace.

    Forward, then backward; stretches of nodes run eagerly or in one of two compiled regions.
    """
    sketch = Sketch()
    count = draw(st.integers(1, max_nodes))
    forward = draw(st.integers(0, count))
    sizes = st.sampled_from([1 << 20, 512])
    known = [sketch.start(draw(sizes), INPUT)]
    last_use: dict[int, int] = {}  # of what the program makes; the input stays
    for node in range(count):
        phase = FORWARD if node < forward else BACKWARD
        # Recent values are read more often than old ones.
        reads = draw(st.lists(st.sampled_from(known[-6:]), max_size=4, unique=True))
        made: list[int] = []
        if len(reads) == 1 and draw(st.integers(0, 3)) == 0:
            sketch.node(draw(st.sampled_from(VIEW_OPS)), phase=phase, reads=reads, writes=reads)
        else:
            made_bytes = [draw(sizes) for _ in range(draw(st.sampled_from([1, 1, 1, 2, 0])))]
            in_place = reads[:1] if not made_bytes else ()
            op = draw(st.sampled_from(COMPUTING_OPS))
            made = sketch.node(op, *made_bytes, phase=phase, reads=reads, writes=in_place)
        known += made
        last_use |= {storage: node for storage in [*reads, *made] if storage != known[0]}
    for storage, node in last_use.items():
        if draw(st.integers(0, 3)):  # a quarter outlives the step
            sketch.storages[storage][4] = node
    trace = sketch.trace()
    first = 0
    while first < count:
        end = min(first + draw(st.integers(4, 30)), count)
        trace.region[first:end] = draw(st.sampled_from(REGIONS))
        first = end
    return tuple(sketch.ops), trace


def _subset(values: Sequence[str], most: int = 8) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(st.sampled_from(values), min_size=1, max_size=most, unique=True).map(tuple)
