"""Captures of one workload at several sizes, joined to one graph whose sizes are polynomials of a symbol."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Final

import numpy as np

from peakcast.featurizer.polynomials import Polynomial, Symbol
from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.trace import Int64, Trace

# Three sizes settle a parabola: every further one checks it, and for what is linear the third one does.
LEAST_SIZES: Final = 3


class UnlikeTracesError(ValueError):
    """The captures are not one graph at several sizes. The text names the plan, the node and its operator."""


def fitted(specs: Mapping[int, GraphSpec], name: str, symbol: Symbol) -> GraphSpec:
    """Return the capture at `symbol.hint` with a polynomial of degree at most 2 wherever a size varies.

    Args:
        specs: captures by the value of the symbol: at least three, the hint's among them.
        name: the symbol's.
        symbol: its hint and bounds.

    Raises:
        UnlikeTracesError: if the nodes, phases or lifetimes differ between sizes, or bytes or elements follow no
            polynomial with integer coefficients.
    """
    if len(specs) < LEAST_SIZES:
        raise ValueError(f"{len(specs)} sizes were captured; needed: at least {LEAST_SIZES}")
    base = specs[symbol.hint]
    for size, spec in specs.items():
        if spec.plans != base.plans:
            problem = f"the plans at {name} {size} are {spec.plans}, at {symbol.hint} {base.plans}"
            raise UnlikeTracesError(problem)
    traces = {}
    for plan in base.traces:
        parts = {size: _Part(spec, spec.traces[plan]) for size, spec in specs.items()}
        traces[plan] = _Fit(name, symbol.hint, plan).joined(parts)
    return replace(base, symbols={name: symbol}, traces=traces)


def degree(spec: GraphSpec) -> int:
    """Return the highest power in any polynomial of a graph."""
    return max((_degree(trace) for trace in spec.traces.values()), default=0)


def _degree(trace: Trace) -> int:
    own = [_power(row) for column in (trace.numel_poly, trace.storages.bytes_poly) for row in column]
    inner = [_degree(branch) for _, branches in trace.branches for branch in branches]
    return max([*own, *inner], default=0)


def _power(polynomial: Polynomial | None) -> int:
    return max((power for _, factors in polynomial or () for _, power in factors), default=0)


@dataclass(frozen=True, slots=True)
class _Part:
    """A trace, or a branch of one, and the graph whose tables its codes point into."""

    spec: GraphSpec
    trace: Trace

    def op(self, node: int) -> str:
        name: str = self.spec.ops[self.trace.op[node]]
        return name

    def columns(self) -> dict[str, Any]:
        """Return what must be the same at every size: by node, with names in place of codes."""
        trace, spec = self.trace, self.spec
        return {
            "phase": trace.phase.tolist(),
            "rank": trace.rank.tolist(),
            "dtype": [spec.dtypes[code] for code in trace.dtype],
            "device": trace.device.tolist(),
            "region": trace.region.tolist(),
            "attributes": [spec.attributes[code] if code >= 0 else "" for code in trace.attribute],
            "inputs": [trace.inputs.row(node).tolist() for node in range(len(trace))],
            "outputs": [trace.outputs.row(node).tolist() for node in range(len(trace))],
        }

    def storage_columns(self) -> dict[str, list[int]]:
        """Return the same by storage."""
        return {name: getattr(self.trace.storages, name).tolist() for name in ("born", "died", "device", "role")}


@dataclass(frozen=True, slots=True)
class _Fit:
    """Joins the traces of one plan."""

    name: str
    hint: int
    plan: str
    _known: dict[tuple[int, ...], Polynomial | None] = field(default_factory=dict)  # a graph repeats few sizes

    def joined(self, parts: Mapping[int, _Part]) -> Trace:
        base = parts[self.hint]
        for size, part in parts.items():
            if size != self.hint:
                self._check_same(base, part, size)
        trace, storages = base.trace, base.trace.storages
        numel_poly = self._column(
            {size: part.trace.numel for size, part in parts.items()}, lambda node: self._node(base, node), "elements"
        )
        bytes_poly = self._column(
            {size: part.trace.storages.bytes for size, part in parts.items()},
            lambda index: self._storage(base, index),
            "bytes",
        )
        branches = []
        for i, (node, inner) in enumerate(trace.branches):
            of_node = [{size: _branch(part, i, j) for size, part in parts.items()} for j in range(len(inner))]
            branches.append((node, tuple(map(self.joined, of_node))))
        storages = replace(storages, bytes_poly=bytes_poly)
        return replace(trace, numel_poly=numel_poly, storages=storages, branches=tuple(branches))

    def _check_same(self, base: _Part, other: _Part, size: int) -> None:
        """Refuse a trace that does something else than the base's."""
        here, there = f"{self.name} {self.hint}", f"{self.name} {size}"
        for node in range(max(len(base.trace), len(other.trace))):
            ops = [part.op(node) if node < len(part.trace) else "no more" for part in (base, other)]
            if ops[0] != ops[1]:
                raise UnlikeTracesError(f"{self.plan}: node {node} is {ops[0]} at {here}, but {ops[1]} at {there}")
        others = other.columns()
        for column, values in base.columns().items():
            if values != others[column]:
                node = next(node for node, value in enumerate(values) if value != others[column][node])
                problem = f"{self._node(base, node)} has other {column} at {there} than at {here}"
                raise UnlikeTracesError(problem)
        others = other.storage_columns()
        for column, values in base.storage_columns().items():
            if values != others[column]:
                pairs = enumerate(zip(values, others[column], strict=False))
                index = next((i for i, (one, two) in pairs if one != two), min(len(values), len(others[column])))
                what = self._storage(base, index) if index < len(values) else f"{self.plan}: storage {index}"
                raise UnlikeTracesError(f"{what} has other {column} at {there} than at {here}")
        shapes = [[(node, len(inner)) for node, inner in part.trace.branches] for part in (base, other)]
        if shapes[0] != shapes[1]:
            raise UnlikeTracesError(f"{self.plan}: other branches at {there} than at {here}")

    def _column(
        self, values: Mapping[int, Int64], told: Callable[[int], str], what: str
    ) -> tuple[Polynomial | None, ...]:
        sizes = sorted(values)
        table = np.stack([values[size] for size in sizes], axis=1).tolist()
        found = []
        for row, points in enumerate(map(tuple, table)):
            if points not in self._known:
                try:
                    self._known[points] = polynomial_through(sizes, points, self.name)
                except ValueError:
                    told_points = ", ".join(f"{value} at {size}" for size, value in zip(sizes, points, strict=True))
                    problem = f"{told(row)}: {what} are no polynomial of {self.name}: {told_points}"
                    raise UnlikeTracesError(problem) from None
            found.append(self._known[points])
        return tuple(found)

    def _node(self, part: _Part, node: int) -> str:
        return f"{self.plan}: node {node} ({part.op(node)})"

    def _storage(self, part: _Part, index: int) -> str:
        born = int(part.trace.storages.born[index])
        made = f"made by node {born} ({part.op(born)})" if born >= 0 else "there before the step"
        return f"{self.plan}: storage {index}, {made}"


def _branch(part: _Part, row: int, index: int) -> _Part:
    return _Part(part.spec, part.trace.branches[row][1][index])


def polynomial_through(sizes: Sequence[int], values: Sequence[int], name: str) -> Polynomial | None:
    """Return the polynomial of degree at most 2 through all points; None where the value is the same everywhere.

    Newton's divided differences over the first three points, in exact fractions.

    Raises:
        ValueError: if a coefficient is no integer, or a further point lies beside it.
    """
    if len(set(values)) == 1:
        return None
    (a, b, c), (at_a, at_b, at_c) = sizes[:3], values[:3]
    slope = Fraction(at_b - at_a, b - a)
    square = (Fraction(at_c - at_b, c - b) - slope) / (c - a)
    linear = slope - square * (a + b)
    constant = at_a - linear * a - square * a * a
    coefficients = (square, linear, constant)
    if any(coefficient.denominator != 1 for coefficient in coefficients):
        raise ValueError(f"the coefficients {', '.join(map(str, coefficients))} are not all integers")
    for size, value in zip(sizes[3:], values[3:], strict=True):
        if square * size * size + linear * size + constant != value:
            raise ValueError(f"the polynomial misses {value} at {size}")
    terms = zip(coefficients, (((name, 2),), ((name, 1),), ()), strict=True)
    return tuple((int(coefficient), factors) for coefficient, factors in terms if coefficient)
