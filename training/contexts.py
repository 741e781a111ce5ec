"""The surroundings of each operator in a trace, counted: what `training.embed` learns the operators' vectors from.

A context is an aspect and its value there, e.g. ("after", "aten.mm"): who wrote what a node reads, who reads what it
writes, how large its outputs are beside its inputs, what it reads, where in the step it
stands. Casts and copies are looked through as views are: decomposed graphs put one beside everything.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Final

from peakcast.featurizer.op_embedding import stems
from peakcast.featurizer.spec import GraphSpec, walk
from peakcast.featurizer.trace import Trace
from peakcast.featurizer.vocabulary import DTYPE_BYTES, PHASES, ROLES

Context = tuple[str, str]  # aspect, value
Counts = dict[str, Counter[Context]]  # by operator

# An input or output is large from this part of the largest on: statistics, biases and scalars are not.
_LARGE: Final = 0.25
_COPIES: Final = frozenset({"aten._to_copy.default", "aten.clone.default", "prims.convert_element_type.default"})


def count_contexts(spec: GraphSpec) -> Counts:
    """Count in which surroundings each operator of a spec occurs, over all plans and branches."""
    counts: Counts = defaultdict(Counter)
    for outer in spec.traces.values():
        for trace in walk(outer):
            _Walk(spec, trace, counts).run()
    return counts


class _Walk:
    """What is known of each storage of a trace while its nodes go by."""

    def __init__(self, spec: GraphSpec, trace: Trace, counts: Counts) -> None:
        self.spec, self.trace, self.counts = spec, trace, counts
        self.names = [spec.ops[op] for op in trace.op.tolist()]
        self.coarse = {name: list(stems(name))[-1] for name in self.names}
        storages = trace.storages
        self.sizes_bytes, self.died = storages.bytes.tolist(), storages.died.tolist()
        self.roles = [ROLES[role] for role in storages.role.tolist()]
        # The storage it was copied from, and who filled that; None before the first write.
        self.root = list(range(len(storages)))
        self.writer: list[str | None] = [None] * len(storages)
        # The node that last wrote or viewed it, which tells its dtype; -1: none yet.
        self.seen = [-1] * len(storages)

    def run(self) -> None:
        for node, name in enumerate(self.names):
            reads = sorted(set(self.trace.inputs.row(node).tolist()))
            writes = sorted(set(self.trace.outputs.row(node).tolist()))
            fresh = sorted(set(writes) - set(reads))
            if fresh:
                kind = "makes new"
            elif writes:
                kind = "in place" if _writes_in_place(name) else "view"
            else:
                kind = "writes nothing"
            self._count("kind", kind, node)
            self._count_neighbours(node, reads, writes if kind != "view" else [])
            self._count_place(node, reads, writes)
            if reads and fresh:
                self._count_sizes(node, reads, fresh)
            for storage in writes:
                self.seen[storage] = node

    def _count(self, aspect: str, value: object, node: int) -> None:
        self.counts[self.names[node]][aspect, str(value)] += 1

    def _count_neighbours(self, node: int, reads: list[int], writes: list[int]) -> None:
        """Count who comes before and after, and note who now stands behind the storages written (no view's)."""
        name = self.names[node]
        for storage in reads:
            source = self.writer[storage]
            if source is None:
                self._count("reads", self.roles[self.root[storage]], node)
            else:
                self._count("after", self.coarse[source], node)
                self.counts[source]["before", self.coarse[name]] += 1
        self._count("origins", _each(self._origin(storage) for storage in reads), node)
        for storage in writes:
            self._count("makes", self.roles[storage], node)
        if name in _COPIES and len(reads) == 1:
            for storage in writes:
                self.root[storage], self.writer[storage] = self.root[reads[0]], self.writer[reads[0]]
        else:
            for storage in writes:
                self.root[storage], self.writer[storage] = storage, name

    def _origin(self, storage: int) -> str:
        return self.roles[self.root[storage]] if self.writer[storage] is None else "made"

    def _count_place(self, node: int, reads: list[int], writes: list[int]) -> None:
        trace = self.trace
        self._count("phase", PHASES[trace.phase[node]], node)
        self._count("rank", trace.rank[node], node)
        self._count("dtype", self._dtype(node), node)
        self._count("inputs", _few(len(reads)), node)
        self._count("outputs", _few(len(writes)), node)

    def _dtype(self, node: int) -> str:
        dtype: str = self.spec.dtypes[self.trace.dtype[node]]
        return dtype

    def _count_sizes(self, node: int, reads: list[int], fresh: list[int]) -> None:
        read_bytes = [self.sizes_bytes[storage] for storage in reads]
        made_bytes = [self.sizes_bytes[storage] for storage in fresh]
        largest = max(made_bytes)
        self._count("output", _beside(largest, max(read_bytes)), node)
        self._count("large inputs", _few(_large(read_bytes)), node)
        self._count("large outputs", f"{_few(_large(made_bytes))} of {_few(len(made_bytes))}", node)
        self._count("contraction", self._contraction(node, reads, largest), node)
        self._count("an input dies", any(self.died[storage] == node for storage in reads), node)

    def _contraction(self, node: int, reads: list[int], output_bytes: int) -> str:
        """Tell whether two inputs share a dimension that the output lacks: of [M, K] and [K, N], MK x KN / MN = K^2.

        In a batch of B products it is B x K^2, no square; a look-up has whole numbers among its inputs.
        """
        dtypes = {s: self._dtype(self.seen[s] if self.seen[s] >= 0 else node) for s in reads}
        if any("int" in dtype for dtype in dtypes.values()):
            return "whole numbers"
        numels = sorted(self.sizes_bytes[storage] // _itemsize(dtype) for storage, dtype in dtypes.items())[-2:]
        made = output_bytes // _itemsize(self._dtype(node))
        if len(numels) < 2 or not numels[0] or not made:
            return "one input"
        if numels == [made, made]:
            return "pointwise"
        shared, rest = divmod(numels[0] * numels[1], made)
        if math.isqrt(shared) ** 2 == shared and not rest and shared > 1:
            return "contracts"
        return "none" if rest else "broadcast" if made in numels else "contracts"


def _writes_in_place(name: str) -> bool:
    packet, _, overload = name.rpartition(".")
    return packet.endswith("_") or overload.startswith("out") or "foreach" in packet or "fused" in packet


def _itemsize(dtype: str) -> int:
    return DTYPE_BYTES.get(dtype, 4)


def _each(values: Iterable[str]) -> str:
    return " and ".join(sorted(set(values))) or "none"


def _few(count: int) -> str:
    return str(count) if count <= 4 else "many"


def _large(sizes_bytes: list[int]) -> int:
    return sum(size >= _LARGE * max(sizes_bytes) for size in sizes_bytes)


def _beside(size_bytes: int, largest_bytes: int) -> str:
    """Name the ratio of two sizes: equal, or the nearest power of two within a factor of 64."""
    if size_bytes == largest_bytes:
        return "equal"
    power = round(math.log2((size_bytes + 1) / (largest_bytes + 1)))
    return f"times 2^{max(-6, min(6, power))}"
