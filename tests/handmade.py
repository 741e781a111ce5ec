"""Small traces written down node by node: `from handmade import Sketch`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.trace import Csr, Storages, Trace
from peakcast.featurizer.vocabulary import FORWARD, GPU, TEMPORARY

MIB = 1 << 20


class Sketch:
    """Builds one trace. Storages live until `dies` names them; every node is on the GPU unless `device` says not."""

    def __init__(self) -> None:
        self.ops: list[str] = []
        self.nodes: list[tuple[int, int, int, list[int], list[int]]] = []  # op, phase, device, reads, writes
        self.storages: list[list[int]] = []  # bytes, device, role, born, died
        self.branches: list[tuple[int, tuple[Trace, ...]]] = []

    def start(self, size_bytes: int, role: int, device: int = GPU) -> int:
        """Add a storage that is there before the step."""
        self.storages.append([size_bytes, device, role, -1, -1])
        return len(self.storages) - 1

    def node(
        self,
        op: str,
        *new_bytes: int,
        phase: int = FORWARD,
        role: int = TEMPORARY,
        reads: Sequence[int] = (),
        writes: Sequence[int] = (),
        dies: Sequence[int] = (),
        device: int = GPU,
        branches: Sequence[Trace] = (),
    ) -> list[int]:
        """Add a node that allocates `new_bytes`, after which `dies` are freed; returns the new storages."""
        if op not in self.ops:
            self.ops.append(op)
        here = len(self.nodes)
        new = list(range(len(self.storages), len(self.storages) + len(new_bytes)))
        self.storages += [[size_bytes, device, role, here, -1] for size_bytes in new_bytes]
        self.nodes.append((self.ops.index(op), phase, device, list(reads), [*new, *writes]))
        for storage in dies:
            self.storages[storage][4] = here
        if branches:
            self.branches.append((here, tuple(branches)))
        return new

    def trace(self, ops: Sequence[str] | None = None) -> Trace:
        """Return the trace; its codes are those of `ops`, or of this sketch alone."""
        names = list(self.ops if ops is None else ops)
        count = len(self.nodes)
        column = [list(values) for values in zip(*self.storages, strict=True)] or [[]] * 5
        return Trace(
            phase=np.array([node[1] for node in self.nodes], np.uint8),
            op=np.array([names.index(self.ops[node[0]]) for node in self.nodes], np.int32),
            rank=np.full(count, 2, np.uint8),
            numel=np.ones(count, np.int64),
            dtype=np.zeros(count, np.uint8),
            device=np.array([node[2] for node in self.nodes], np.uint8),
            line=np.zeros(count, np.int32),
            region=np.full(count, -1, np.int32),
            inputs=_csr([node[3] for node in self.nodes]),
            outputs=_csr([node[4] for node in self.nodes]),
            storages=Storages(
                bytes=np.array(column[0], np.int64),
                device=np.array(column[1], np.uint8),
                role=np.array(column[2], np.uint8),
                born=np.array(column[3], np.int32),
                died=np.array(column[4], np.int32),
            ),
            branches=tuple(self.branches),
        )

    def spec(self, plan: str = "eager") -> GraphSpec:
        """Return a spec with this trace alone."""
        return GraphSpec(
            ops=tuple(self.ops),
            dtypes=("float32",),
            traces={plan: self.trace()},
            lines=("model.py:1",),
            captured_with={"torch": "2.13.0+cpu"},
        )


def _csr(rows: Sequence[Sequence[int]]) -> Csr:
    offsets = np.cumsum([0, *(len(row) for row in rows)]).astype(np.int32)
    return Csr(offsets=offsets, ids=np.array([storage for row in rows for storage in row], np.int32))
