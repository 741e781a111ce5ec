"""Recordings of the tape -> the columns of a trace, with tables of operators, dtypes and lines shared by all plans."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from peakcast.featurizer.capture.tape import OUTSIDE, Recording, TapeStorage
from peakcast.featurizer.trace import Csr, Storages, Trace
from peakcast.featurizer.vocabulary import BACKWARD, BUFFER, CPU, GPU, OPTIMIZER_STATE, OUTPUT, SAVED, TEMPORARY

# A scalar of the optimizer is its step counter, which stays on the CPU.
_COUNTER_BYTES = 8


class Table:
    """Numbers strings in the order of their first appearance."""

    def __init__(self) -> None:
        self._index: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        """Return the number of a string."""
        return self._index.setdefault(text, len(self._index))

    def names(self) -> tuple[str, ...]:
        """Return the strings by number."""
        return tuple(self._index)


class Tables:
    """The tables of one document."""

    def __init__(self) -> None:
        self.ops, self.dtypes, self.lines, self.attributes = Table(), Table(), Table(), Table()


def build_trace(recording: Recording, tables: Tables, *, stands_for_gpu: str = "cuda", replayed: bool = False) -> Trace:
    """Turn one recorded step into a trace.

    Device names other than cpu and meta count as the GPU, and so does `stands_for_gpu`, the device traced on. The
    kernels of a `replayed` step are in no region: there is nothing left to fuse.
    """
    nodes, storages = recording.nodes, recording.storages
    phases = [node.phase for node in nodes]
    return Trace(
        phase=np.array(phases, np.uint8),
        op=_column([tables.ops(node.op) for node in nodes]),
        rank=np.array([len(node.shape) for node in nodes], np.uint8),
        numel=np.array([math.prod(node.shape) for node in nodes], np.int64),
        dtype=np.array([tables.dtypes(node.dtype or "none") for node in nodes], np.uint8),
        device=np.array([_placement(node.device, stands_for_gpu) for node in nodes], np.uint8),
        line=_column([tables.lines(node.line) if node.line else -1 for node in nodes]),
        region=_column([OUTSIDE if replayed else node.region for node in nodes]),
        attribute=_column([tables.attributes(node.attribute) if node.attribute else -1 for node in nodes]),
        inputs=_csr([node.inputs for node in nodes]),
        outputs=_csr([node.outputs for node in nodes]),
        storages=Storages(
            bytes=np.array([storage.nbytes for storage in storages], np.int64),
            device=np.array([_storage_placement(storage, stands_for_gpu) for storage in storages], np.uint8),
            role=np.array([_role(storage, phases) for storage in storages], np.uint8),
            born=_column([storage.born for storage in storages]),
            died=_column([storage.died for storage in storages]),
        ),
        branches=tuple(
            (index, tuple(build_trace(branch, tables, stands_for_gpu=stands_for_gpu) for branch in node.branches))
            for index, node in enumerate(nodes)
            if node.branches
        ),
        replayed=replayed,
        compiled_again=_first_changed(recording) if recording.compiled_again else -1,
    )


def _first_changed(recording: Recording) -> int:
    """Return the first compiled node that reads what an earlier step made and kept; -1 if none does.

    What is compiled again without that is most often the same graph, whose kernels are remembered.
    """
    kept = {index for index, storage in enumerate(recording.storages) if storage.role is None and storage.born < 0}
    reads = (at for at, node in enumerate(recording.nodes) if node.region != OUTSIDE and kept & set(node.inputs))
    return next(reads, -1)


def _placement(device: str, stands_for_gpu: str) -> int:
    return CPU if device in ("cpu", "meta") and device != stands_for_gpu else GPU


def _storage_placement(storage: TapeStorage, stands_for_gpu: str) -> int:
    if storage.device == "cpu" and storage.role == OPTIMIZER_STATE and storage.nbytes <= _COUNTER_BYTES:
        return CPU
    return _placement(storage.device, stands_for_gpu)


def _role(storage: TapeStorage, phases: Sequence[int]) -> int:
    """Name what a storage is for: as marked, else by when it lives."""
    if storage.role is not None:
        return storage.role
    if storage.died < 0:
        return OUTPUT if storage.born >= 0 else BUFFER  # what earlier steps made and keep: caches, running values
    is_saved = storage.born >= 0 and phases[storage.born] < BACKWARD <= phases[storage.died]
    return SAVED if is_saved else TEMPORARY


def _column(values: Sequence[int]) -> Any:
    return np.array(values, np.int32)


def _csr(rows: Sequence[Sequence[int]]) -> Csr:
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    return Csr(offsets, np.array([index for row in rows for index in row], np.int32))
