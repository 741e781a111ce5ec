"""From columns to the JSON object of the wire format, numpy arrays left as they are for orjson."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from peakcast.featurizer.trace import Csr, Trace

if TYPE_CHECKING:
    from peakcast.featurizer.spec import GraphSpec

SCHEMA: Final = 1


def document_of(spec: GraphSpec, *, anonymous: bool = False) -> dict[str, Any]:
    """Return the document with numpy arrays as columns; what is empty or all -1 is left out."""
    symbols = {name: {"hint": s.hint, "min": s.min, "max": s.max} for name, s in spec.symbols.items()}
    document: dict[str, Any] = {"schema": SCHEMA, "ops": spec.ops, "dtypes": spec.dtypes}
    if symbols:
        document["symbols"] = symbols
    if not anonymous:
        document["captured_with"] = dict(spec.captured_with)
        document["lines"] = spec.lines
    if spec.attributes:
        document["attributes"] = spec.attributes
    document["traces"] = {plan: _trace_document(t, anonymous=anonymous) for plan, t in spec.traces.items()}
    return document


def _trace_document(trace: Trace, *, anonymous: bool) -> dict[str, Any]:
    storages = trace.storages
    document: dict[str, Any] = {
        "phase": _column(trace.phase, np.uint8),
        "op": _column(trace.op, np.int32),
        "rank": _column(trace.rank, np.uint8),
        "numel": _column(trace.numel, np.int64),
        "dtype": _column(trace.dtype, np.uint8),
        "device": _column(trace.device, np.uint8),
        "inputs": _csr_document(trace.inputs),
        "outputs": _csr_document(trace.outputs),
        "storages": {
            "bytes": _column(storages.bytes, np.int64),
            "device": _column(storages.device, np.uint8),
            "role": _column(storages.role, np.uint8),
            "born": _column(storages.born, np.int32),
            "died": _column(storages.died, np.int32),
        },
    }
    if not anonymous and (trace.line != -1).any():
        document["line"] = _column(trace.line, np.int32)
    if (trace.region != -1).any():
        document["region"] = _column(trace.region, np.int32)
    if (trace.attribute != -1).any():
        document["attribute"] = _column(trace.attribute, np.int32)
    if any(row is not None for row in trace.numel_poly):
        document["numel_poly"] = trace.numel_poly
    if any(row is not None for row in storages.bytes_poly):
        document["storages"]["bytes_poly"] = storages.bytes_poly
    if trace.replayed:
        document["replayed"] = True
    if trace.compiled_again >= 0:
        document["compiled_again"] = trace.compiled_again
    if trace.branches:
        document["branches"] = [
            [int(node), [_trace_document(branch, anonymous=anonymous) for branch in branches]]
            for node, branches in trace.branches
        ]
    return document


def _csr_document(csr: Csr) -> dict[str, Any]:
    return {"offsets": _column(csr.offsets, np.int32), "ids": _column(csr.ids, np.int32)}


def _column(values: np.ndarray[Any, Any], dtype: type[np.generic]) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(values, dtype)  # orjson writes no strided arrays
