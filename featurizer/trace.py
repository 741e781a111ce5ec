"""One traced step under one plan, as columns: N nodes in execution order over S storages."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from peakcast.featurizer.polynomials import Polynomial
from peakcast.featurizer.vocabulary import BACKWARD

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
UInt8 = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Csr:
    """A ragged list of storage ids: row i holds `ids[offsets[i]:offsets[i + 1]]`."""

    offsets: Int32  # [N + 1]
    ids: Int32

    def row(self, index: int) -> Int32:
        """Return the ids of one row."""
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    def sizes(self) -> Int32:
        """Return how many ids each row holds."""
        return self.offsets[1:] - self.offsets[:-1]

    def rows(self) -> NDArray[np.int64]:
        """Return the row that each id stands in."""
        return np.repeat(np.arange(len(self.offsets) - 1), self.sizes())

    def distinct(self, storages: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return each pair of a row and an id once, in ascending order; ids are below `storages`."""
        count = max(storages, 1)
        pairs = np.sort(self.rows() * count + self.ids)
        is_first = np.ones(len(pairs), np.bool_)
        np.not_equal(pairs[1:], pairs[:-1], out=is_first[1:])
        row, storage = np.divmod(pairs[is_first], count)
        return row, storage


@dataclass(frozen=True, slots=True, eq=False)
class Storages:
    """The untyped storages of a step. Views share one storage, so do tied weights."""

    bytes: Int64  # [S]
    device: UInt8  # [S] index into PLACEMENTS
    role: UInt8  # [S] index into ROLES
    born: Int32  # [S] node that allocates it; -1: alive before the first node
    died: Int32  # [S] node after which it is freed (before the next one starts); -1: outlives the step
    # [S] or empty: `bytes` as a function of the graph's symbols; None: does not vary.
    bytes_poly: tuple[Polynomial | None, ...] = ()

    def __len__(self) -> int:
        return len(self.bytes)


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """One steady step (the second one run), node by node in execution order.

    A node of a compiled region is an ATen node of the graph handed to the compiler, not a kernel:
    `region` says which compiled graph it belongs to, and `featurizer.fusion` decides what the
    compiler makes of it. Births and deaths inside a region are those of the unfused graph.

    In a replayed trace (`featurizer.capture.replay`) the compiler has decided: its nodes are the kernels of the code
    it generated, in no region, and births and deaths are exact.
    """

    phase: UInt8  # [N] index into PHASES
    op: Int32  # [N] index into GraphSpec.ops
    rank: UInt8  # [N] of the first output
    numel: Int64  # [N] of the first output
    dtype: UInt8  # [N] index into GraphSpec.dtypes, of the first output
    device: UInt8  # [N] index into PLACEMENTS, of the first output
    line: Int32  # [N] index into GraphSpec.lines; -1 unknown
    region: Int32  # [N] compiled graph; -1: runs eagerly. Forward and backward of one graph share the number.
    inputs: Csr  # storages read (a view reads its base)
    outputs: Csr  # storages written or returned; a view's output is its base
    storages: Storages
    # Nested branches of torch.cond: (node, one trace per branch). Storage ids are each branch's own; a storage of
    # the branch with born == -1 is an operand that already lives outside.
    branches: tuple[tuple[int, tuple[Trace, ...]], ...] = field(default=())
    # [N] or empty: `numel` as a function of the graph's symbols; None: does not vary.
    numel_poly: tuple[Polynomial | None, ...] = ()
    # [N] index into GraphSpec.attributes; -1 none. Left out: none has any.
    attribute: Int32 = field(default_factory=lambda: np.empty(0, np.int32))
    replayed: bool = False
    compiled_again: int = -1  # the first node of what the second step compiles anew; -1: nothing

    def __post_init__(self) -> None:
        if not len(self.attribute) and len(self.phase):
            object.__setattr__(self, "attribute", np.full(len(self.phase), -1, np.int32))

    def __len__(self) -> int:
        return len(self.phase)

    def compiled_parts(self) -> Int64:
        """Return the compiled part of each node [N]: even for a graph's forward, odd for its backward; -1 for none."""
        return np.where(self.region < 0, -1, 2 * self.region.astype(np.int64) + (self.phase == BACKWARD))
