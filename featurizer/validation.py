"""Checks on the columns of a trace: every array of the right length, every id inside what it points to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peakcast.featurizer.limits import Limits, SpecError, show
from peakcast.featurizer.polynomials import (
    MAX_FACTORS,
    MAX_POWER,
    MAX_SYMBOL_VALUE,
    Polynomial,
    Symbol,
    evaluate_column,
)
from peakcast.featurizer.trace import Csr, Storages, Trace
from peakcast.featurizer.vocabulary import PHASES, PLACEMENTS, ROLES

_Integers = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Tables:
    """The lengths of a document's tables."""

    ops: int
    dtypes: int
    lines: int
    attributes: int


@dataclass(slots=True)
class TraceChecker:
    """Checks the traces of one document and counts what the document holds in all."""

    limits: Limits
    tables: Tables
    symbols: Mapping[str, Symbol]
    nodes: int = field(default=0, init=False)
    storages: int = field(default=0, init=False)
    edges: int = field(default=0, init=False)
    terms: int = field(default=0, init=False)

    def check(self, trace: Trace, path: str, depth: int = 0) -> None:
        """Check a trace and its branches; SpecError says what is wrong first. Cost is linear in the columns."""
        n = len(trace)
        self.nodes += n
        self.storages += len(trace.storages)
        self.edges += len(trace.inputs.ids) + len(trace.outputs.ids)
        check_limit(self.nodes, self.limits.max_nodes, f"{path}.phase", "nodes in the document")
        check_limit(self.storages, self.limits.max_storages, f"{path}.storages", "storages in the document")
        check_limit(self.edges, self.limits.max_edges, f"{path}.inputs", "inputs and outputs in the document")

        check_range(trace.phase, 0, len(PHASES) - 1, f"{path}.phase", n)
        check_range(trace.op, 0, self.tables.ops - 1, f"{path}.op", n)
        check_range(trace.rank, 0, self.limits.max_rank, f"{path}.rank", n)
        check_range(trace.numel, 0, self.limits.max_numel, f"{path}.numel", n)
        check_range(trace.dtype, 0, self.tables.dtypes - 1, f"{path}.dtype", n)
        check_range(trace.device, 0, len(PLACEMENTS) - 1, f"{path}.device", n)
        check_range(trace.line, -1, self.tables.lines - 1, f"{path}.line", n)
        check_range(trace.attribute, -1, self.tables.attributes - 1, f"{path}.attribute", n)
        # A region without a node would be a graph of nothing, so there are at most as many as nodes.
        check_range(trace.region, -1, n - 1, f"{path}.region", n)
        if not -1 <= trace.compiled_again < n:
            problem = f"is {trace.compiled_again}; allowed: -1 to {n - 1}"
            raise SpecError("out_of_range", f"{path}.compiled_again", problem)
        if trace.replayed and (trace.region != -1).any():
            problem = "is true of a trace with compiled regions; allowed: one whose nodes are kernels, region all -1"
            raise SpecError("inconsistent", f"{path}.replayed", problem)
        self._check_storages(trace.storages, n, f"{path}.storages")
        _check_csr(trace.inputs, n, len(trace.storages), f"{path}.inputs")
        _check_csr(trace.outputs, n, len(trace.storages), f"{path}.outputs")
        numel_path = f"{path}.numel_poly"
        self._check_polynomials(trace.numel_poly, trace.numel, numel_path, self.limits.max_numel)

        previous = -1
        for i, (node, branches) in enumerate(trace.branches):
            at = f"{path}.branches[{i}]"
            if depth == self.limits.max_depth:
                problem = f"branches nest deeper than the allowed {self.limits.max_depth} levels"
                raise SpecError("limit_exceeded", at, problem)
            if not previous < node < n:
                problem = f"belongs to node {show(node)}; allowed: nodes 0 to {n - 1}, each once, in ascending order"
                raise SpecError("out_of_range", at, problem)
            if not branches:
                raise SpecError("wrong_length", at, "holds no branch; a node listed here has at least one")
            previous = node
            for j, branch in enumerate(branches):
                self.check(branch, f"{at}[1][{j}]", depth + 1)

    def _check_storages(self, storages: Storages, nodes: int, path: str) -> None:
        s = len(storages)
        check_range(storages.bytes, 0, self.limits.max_storage_bytes, f"{path}.bytes", s)
        check_range(storages.device, 0, len(PLACEMENTS) - 1, f"{path}.device", s)
        check_range(storages.role, 0, len(ROLES) - 1, f"{path}.role", s)
        check_range(storages.born, -1, nodes - 1, f"{path}.born", s)
        check_range(storages.died, -1, nodes - 1, f"{path}.died", s)
        early = (storages.died < storages.born) & (storages.died != -1)
        if early.any():
            i = int(early.argmax())
            problem = f"dies at node {storages.died[i]}, before it is born at node {storages.born[i]}"
            raise SpecError("inconsistent", f"{path}.died[{i}]", f"{problem}; allowed: born or later, or -1 (lives on)")
        self._check_polynomials(
            storages.bytes_poly, storages.bytes, f"{path}.bytes_poly", self.limits.max_storage_bytes
        )

    def _check_polynomials(
        self, column: tuple[Polynomial | None, ...], values: _Integers, path: str, limit: int
    ) -> None:
        if not column:
            return
        check_length(len(column), len(values), path)
        for row, polynomial in enumerate(column):
            for coefficient, factors in polynomial or ():
                self.terms += 1
                at = f"{path}[{row}]"
                check_limit(self.terms, self.limits.max_terms, at, "polynomial terms in the document")
                check_limit(len(factors), MAX_FACTORS, at, "factors in a term")
                if not -(1 << 63) < coefficient < 1 << 63:
                    raise SpecError("out_of_range", at, f"{show(coefficient)} is no coefficient; allowed: below 2^63")
                for symbol, power in factors:
                    if symbol not in self.symbols:
                        raise SpecError("invalid_name", at, f"symbol {show(symbol)} is not among $.symbols")
                    if not 1 <= power <= MAX_POWER:
                        problem = f"{show(power)} is no power; allowed: 1 to {MAX_POWER}"
                        raise SpecError("out_of_range", at, problem)
        constants = values.tolist()
        hints = {name: symbol.hint for name, symbol in self.symbols.items()}
        for row, value in enumerate(evaluate_column(column, constants, hints, limit=limit, path=path)):
            if value != constants[row]:
                problem = f"is {value} at the symbols' hints, but the column says {constants[row]}; they must agree"
                raise SpecError("inconsistent", f"{path}[{row}]", problem)


def check_symbol(symbol: Symbol, path: str) -> None:
    """Check that 0 <= min <= hint <= max <= 2^32."""
    if not 0 <= symbol.min <= symbol.hint <= symbol.max <= MAX_SYMBOL_VALUE:
        shown = f"min {show(symbol.min)}, hint {show(symbol.hint)}, max {show(symbol.max)}"
        raise SpecError("out_of_range", path, f"{shown}; allowed: 0 <= min <= hint <= max <= {MAX_SYMBOL_VALUE}")


def check_limit(count: int, limit: int, path: str, what: str) -> None:
    """Raise SpecError when there are more of `what` than allowed."""
    if count > limit:
        raise SpecError("limit_exceeded", path, f"{count} {what}; allowed: {limit}")


def check_length(length: int, expected: int, path: str) -> None:
    """Raise SpecError when a column is not as long as its table."""
    if length != expected:
        raise SpecError("wrong_length", path, f"has {length} entries; allowed: {expected}, as the columns beside it")


def check_range(column: _Integers, low: int, high: int, path: str, length: int) -> None:
    """Raise SpecError at the first entry outside low..high, both inclusive, or when the length is not `length`."""
    check_length(len(column), length, path)
    if length == 0 or (column.min() >= low and column.max() <= high):
        return
    i = int(((column < low) | (column > high)).argmax())
    allowed = f"{low} to {high}" if low <= high else "nothing, as what it points to is empty"
    raise SpecError("out_of_range", f"{path}[{i}]", f"is {column[i]}; allowed: {allowed}")


def _check_csr(csr: Csr, nodes: int, storages: int, path: str) -> None:
    check_range(csr.offsets, 0, len(csr.ids), f"{path}.offsets", nodes + 1)
    if csr.offsets[0] != 0 or csr.offsets[-1] != len(csr.ids):
        problem = f"run from {csr.offsets[0]} to {csr.offsets[-1]}; allowed: from 0 to the {len(csr.ids)} ids"
        raise SpecError("out_of_range", f"{path}.offsets", problem)
    falling = np.diff(csr.offsets) < 0
    if falling.any():
        i = int(falling.argmax()) + 1
        problem = f"is {csr.offsets[i]} after {csr.offsets[i - 1]}; allowed: the same or more"
        raise SpecError("out_of_range", f"{path}.offsets[{i}]", problem)
    check_range(csr.ids, 0, storages - 1, f"{path}.ids", len(csr.ids))
