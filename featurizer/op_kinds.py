"""What inductor makes of each ATen operator: inline it, give its result a buffer, or call a library."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path

import numpy as np

from peakcast.featurizer.trace import Trace
from peakcast.featurizer.workspace import op_name


class OpKind(IntEnum):
    """How an operator is lowered. An operator that is not known is EXTERN: everything it touches is materialised."""

    EXTERN = 0  # a library or fallback kernel: inputs and outputs are buffers
    POINTWISE = 1  # inlined into its readers where that pays
    REDUCTION = 2  # a kernel of its own; what it reads is inlined
    SCATTER = 3  # writes into a copy of its first input, in place where that dies; what it reads is inlined
    WINDOW = 4  # computed like a pointwise, but each input element is read many times: inputs are buffers
    CONCAT = 5  # a buffer; its inputs are computed right into it


def stem(op: str) -> str:
    """Return the operator's name without namespace, overload and in-place mark: aten.add_.Tensor -> add."""
    name = op_name(op)
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


@functools.cache
def _table() -> dict[str, OpKind]:
    data = json.loads(Path(__file__).with_name("op_kinds.json").read_text())
    return {name: OpKind[kind.upper()] for kind, names in data.items() for name in names}


def op_kind(op: str) -> OpKind:
    """Return the kind of an operator by its full name."""
    return _table().get(stem(op), OpKind.EXTERN)


def is_known(op: str) -> bool:
    """Tell whether the table holds the operator."""
    return stem(op) in _table()


def compiled_nodes(trace: Trace, stems: Sequence[str], names: frozenset[str]) -> list[int]:
    """Return the nodes of compiled regions by name; `stems` are the names of the operators in the document's table."""
    is_named = np.array([name in names for name in stems], np.bool_)
    nodes: list[int] = np.flatnonzero(is_named[trace.op] & (trace.region >= 0)).tolist()
    return nodes
