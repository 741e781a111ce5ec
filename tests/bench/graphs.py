"""The graphs that are timed: captured ones of about 1,400 nodes, GPT-2 small with two plans, and longer ones."""

from __future__ import annotations

import lzma
from dataclasses import replace
from pathlib import Path

import numpy as np

from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.trace import Csr, Storages, Trace

# Eager training steps of 1,382 to 1,414 nodes, of seven architectures.
GRAPHS = (
    "77bdcb3a4f12",
    "c2a3df095a79",
    "f1a6b46eb6d5",
    "ae39628ed6bb",
    "e9f34c36e8ee",
    "27afba8dd133",
    "69748b68bd74",
)


def corpus_document(root: Path, prefix: str) -> bytes:
    """Return the JSON of a corpus graph by the first digits of its id."""
    (path,) = (root / "training" / "corpus" / "graphs").glob(f"{prefix}*.json.xz")
    return lzma.decompress(path.read_bytes())


def gpt2_document(root: Path) -> bytes:
    """Return the JSON of GPT-2 small in training, eager and compiled."""
    return lzma.decompress((root / "tests" / "data" / "gpt2_small.json.xz").read_bytes())


def repeated(spec: GraphSpec, times: int) -> GraphSpec:
    """Return a graph whose one plan is the given one's, run `times` times over one after the other."""
    ((plan, trace),) = spec.traces.items()
    return replace(spec, traces={plan: _repeated(trace, times)}, limits=spec._limits)


def _repeated(trace: Trace, times: int) -> Trace:
    count, storages = len(trace), trace.storages

    def nodes(column: np.ndarray) -> np.ndarray:
        return np.concatenate([np.where(column >= 0, column + i * count, -1) for i in range(times)]).astype(np.int32)

    def csr(rows: Csr) -> Csr:
        ids = np.concatenate([rows.ids + i * len(storages) for i in range(times)]).astype(np.int32)
        sizes = np.tile(np.diff(rows.offsets), times)
        return Csr(offsets=np.concatenate(([0], np.cumsum(sizes))).astype(np.int32), ids=ids)

    return Trace(
        **{name: np.tile(getattr(trace, name), times) for name in ("phase", "op", "rank", "numel", "dtype", "device")},
        line=np.tile(trace.line, times),
        region=np.tile(trace.region, times),
        attribute=np.tile(trace.attribute, times),
        inputs=csr(trace.inputs),
        outputs=csr(trace.outputs),
        storages=Storages(
            bytes=np.tile(storages.bytes, times),
            device=np.tile(storages.device, times),
            role=np.tile(storages.role, times),
            born=nodes(storages.born),
            died=nodes(storages.died),
        ),
    )
