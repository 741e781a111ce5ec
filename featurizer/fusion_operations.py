"""How much an inlined value computes, as inductor counts it before it decides whether to write it.

`OpCounterCSE` in torch/_inductor/ops_handler.py counts each operation, each constant and each element read of a value's
code once, however often the code uses it; the same through another view is another. `fusion_kernel` holds the same for
numba.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from peakcast.featurizer.fusion_graph import CompiledGraph

# What a key stands for: its lowest bits.
_OPERATION, _READ, _CONSTANT = range(3)
_KIND_BITS: Final = 2
_MASK: Final = (1 << 60) - 1


class Operations:
    """What inlined values compute, going through the nodes of a graph. A key stands for one operation of a value."""

    def __init__(self, graph: CompiledGraph) -> None:
        self._graph = graph
        self._inlined: dict[int, AbstractSet[int]] = {}
        self._seen_by: dict[int, tuple[int, int]] = {}  # by storage whose latest view is of some elements: it, how many
        self._generated: set[int] = set()  # storages that generated kernels write
        self._joined: dict[int, int] = {}  # by part that is written right into a concatenation: its node

    def view(self, node: int, viewed: int) -> None:
        """Note a view. One that repeats elements changes nothing, nor does one of as many elements after another."""
        graph = self._graph
        if graph.broadcasts[node]:
            return
        if graph.moves[node] or graph.parts[node] > 1:
            self._seen_by[viewed] = node, graph.made_numel[node]
        elif viewed in self._seen_by and self._seen_by[viewed][1] != graph.made_numel[node]:
            del self._seen_by[viewed]

    def compute(self, node: int, inlined: Mapping[int, object]) -> set[int]:
        """Return the keys of what a pointwise node computes."""
        graph, keys = self._graph, set[int]()
        for storage in graph.inputs[node]:
            view = self._seen_by.get(storage, (-1, 0))[0]
            known = self._inlined.get(storage) if storage in inlined else None
            if known is None:
                place = -2 - self._joined[storage] if storage in self._joined else storage
                keys.add(_mixed(place, view) << _KIND_BITS | _READ)
            elif view < 0:
                keys |= known
            else:
                keys.update(key if key & 3 == _CONSTANT else _through(key, view) for key in known)
        if not self._joins(node, inlined):
            keys.update(_mixed(node, number) << _KIND_BITS | _OPERATION for number in range(graph.op_count[node]))
        # A trace does not tell constants: those of one operator are taken to be alike.
        keys.update(
            (graph.op[node] << 1 | number) << _KIND_BITS | _CONSTANT for number in range(graph.constant_count[node])
        )
        return keys

    def _joins(self, node: int, inlined: Mapping[int, object]) -> bool:
        """Note a concatenation all of whose parts are written: into its own memory, so it is read as one buffer.

        `should_lower_cat_input` of `cat` in torch/_inductor/lowering.py.
        """
        parts = self._graph.inputs[node]
        if not self._graph.is_joined[node] or any(part in inlined or part not in self._generated for part in parts):
            return False
        self._joined.update(dict.fromkeys(parts, node))
        return True

    def joined_count(self, reads: AbstractSet[int]) -> int:
        """Return how many of these buffers are read as one with another."""
        if not self._joined:
            return 0
        joined = [self._joined[read] for read in reads if read in self._joined]
        return len(joined) - len(set(joined))

    def inline(self, storages: Sequence[int], keys: AbstractSet[int]) -> None:
        """Note values that are computed where they are read."""
        self._inlined.update(dict.fromkeys(storages, keys))

    def generate(self, storages: Sequence[int]) -> None:
        """Note what a generated kernel writes."""
        self._generated.update(storages)


def read_count(keys: AbstractSet[int]) -> int:
    """Return how many of the keys are reads."""
    return sum(key & 3 == _READ for key in keys)


def _through(key: int, view: int) -> int:
    return _mixed(key >> _KIND_BITS, view) << _KIND_BITS | key & 3


def _mixed(one: int, other: int) -> int:
    """Return a number that stands for the two."""
    mixed = (one * 0x9E3779B1 + other * 0x85EBCA77 + 0x27D4EB2F) & _MASK
    return mixed ^ mixed >> 31
