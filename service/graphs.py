"""Graphs kept by id with the last answers for each: bounded in bytes, least recently used out, no source lines."""

from __future__ import annotations

import sys
import threading
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

import numpy as np
from cachetools import LRUCache

from peakcast.featurizer.polynomials import Polynomial
from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.trace import Csr, Storages, Trace
from peakcast.models.prediction import Prediction

# A training loop asks about one graph on one card, with a few plan lists at most.
_ANSWERS_A_GRAPH = 16
# A prediction of seven plans takes about 6 KB; the held graph's own objects come on top.
# A term of a symbolic size: a tuple of the coefficient and a tuple of (symbol, power) pairs.
_TERM_BYTES = 200
_OVERHEAD_BYTES = 16 * 1024 + _ANSWERS_A_GRAPH * 8 * 1024


@dataclass(slots=True, eq=False)
class HeldGraph:
    """A parsed graph without its source lines, and the answers given for it."""

    spec: GraphSpec
    size_bytes: int
    answers: LRUCache[Hashable, Prediction] = field(default_factory=lambda: LRUCache(_ANSWERS_A_GRAPH))


class GraphCache:
    """Hold graphs by id up to `limit_bytes`. Safe to use from several threads."""

    def __init__(self, limit_bytes: int) -> None:
        self._lock = threading.Lock()
        self._graphs: LRUCache[str, HeldGraph] = LRUCache(limit_bytes, getsizeof=lambda held: held.size_bytes)

    def get(self, graph_id: str, captured_with: Mapping[str, str] | None = None) -> HeldGraph | None:
        """Return a held graph, or None.

        `captured_with` is no part of the id, yet predictions depend on it: where it is given and differs, the held
        graph is another one.
        """
        with self._lock:
            held = self._graphs.get(graph_id)
        if held is not None and captured_with is not None and dict(captured_with) != dict(held.spec.captured_with):
            return None
        return held

    def put(self, spec: GraphSpec) -> HeldGraph:
        """Hold a graph, in place of one with the same id captured otherwise; larger than the cache, it is not kept."""
        held = self.get(spec.graph_id, spec.captured_with)
        if held is not None:
            return held
        kept = spec.redacted()
        held = HeldGraph(kept, graph_bytes(kept) + _OVERHEAD_BYTES)
        with self._lock:
            if held.size_bytes <= self._graphs.maxsize:
                self._graphs[spec.graph_id] = held
        return held

    def answer(self, held: HeldGraph, key: Hashable) -> Prediction | None:
        """Return the answer given before for the same question, or None."""
        with self._lock:
            return held.answers.get(key)

    def keep_answer(self, held: HeldGraph, key: Hashable, prediction: Prediction) -> None:
        """Keep an answer beside its graph."""
        with self._lock:
            held.answers[key] = prediction

    @property
    def count(self) -> int:
        """Return how many graphs are held."""
        return len(self._graphs)

    @property
    def size_bytes(self) -> int:
        """Return how many bytes they take."""
        return int(self._graphs.currsize)


def graph_bytes(spec: GraphSpec) -> int:
    """Return the memory a graph takes: its columns, and its tables of names."""
    names = sum(sys.getsizeof(name) for name in (*spec.ops, *spec.dtypes, *spec.lines))
    return names + sum(_trace_bytes(trace) for trace in spec.traces.values())


def _trace_bytes(trace: Trace) -> int:
    tables = (trace, trace.inputs, trace.outputs, trace.storages)
    columns = sum(_columns_bytes(table) for table in tables)
    columns += _TERM_BYTES * sum(_terms(poly) for poly in (trace.numel_poly, trace.storages.bytes_poly))
    return columns + sum(_trace_bytes(branch) for _, branches in trace.branches for branch in branches)


def _columns_bytes(table: Trace | Csr | Storages) -> int:
    values = (getattr(table, name) for name in table.__dataclass_fields__)
    return sum(value.nbytes for value in values if isinstance(value, np.ndarray))


def _terms(column: tuple[Polynomial | None, ...]) -> int:
    return sum(1 + (len(poly) if poly is not None else 0) for poly in column)
