"""A corpus on disk of made-up steps a few nodes long: architectures, graphs and records, quick to simulate and fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson

from peakcast.featurizer.spec import GraphSpec
from peakcast.training import corpus as store

MIB = 1 << 20
# Of the frozen test split, for what the gate looks at.
FROZEN = ("AlexNet", "BartForConditionalGeneration", "DiT", "EDSR", "GCN", "Siren")
NAMES = tuple(f"Made{place:02d}" for place in range(10))
QUANTITIES = ("steady_allocated", "steady_reserved", "first_allocated", "first_reserved")
# A fit of seconds. What it fits is no good.
QUICK = {
    "inner_folds": 2,
    "rounds": 12,
    "spread_rounds": 6,
    "sequence": {"epochs": 2, "hidden": 6, "head": 6},
    "trees": {"min_data_in_leaf": 3},
}


def make_graph(size_bytes: int, ops: Sequence[str]) -> GraphSpec:
    """Return a step in which each op writes one tensor more from the parameter; the last is the output."""
    count = len(ops)
    trace: dict[str, Any] = {
        "phase": [0] * count,
        "op": list(range(count)),
        "rank": [2] * count,
        "numel": [size_bytes // 4] * count,
        "dtype": [0] * count,
        "device": [1] * count,
        "inputs": {"offsets": list(range(count + 1)), "ids": [0] * count},
        "outputs": {"offsets": list(range(count + 1)), "ids": list(range(1, count + 1))},
        "storages": {
            "bytes": [size_bytes] * (count + 1),
            "device": [1] * (count + 1),
            "role": [0, *[6] * (count - 1), 7],
            "born": [-1, *range(count)],
            "died": [-1, *[count - 1] * count],
        },
    }
    return GraphSpec.from_json(
        {
            "schema": 1,
            "ops": list(ops),
            "dtypes": ["float32"],
            "captured_with": {"torch": "2.13.0", "traced_on": "cuda"},
            "traces": {"eager": trace},
        }
    )


def make_ops(name: str) -> list[str]:
    """Return the ops of an architecture: no two have the same."""
    kinds = ("relu", "tanh", "exp", "neg", "abs", "sin", "cos", "sqrt")
    number = sum(name.encode())
    chosen = [kinds[number % 8], kinds[number // 8 % 8], f"op_{name.lower()}"]
    return [f"aten.{kind}.default" for kind in dict.fromkeys(chosen)]


def write_corpus(
    folder: Path,
    architectures: Sequence[str] = (*NAMES, *FROZEN),
    *,
    records: int = 4,
    source: str = "measured",
    factor: Callable[[str, int], float] = lambda _name, _row: 1.0,
    **more: Any,
) -> Path:
    """Write a corpus. Each record's peaks are what lives at the end, times `factor(architecture, row)`."""
    rows = []
    for name in architectures:
        ops = make_ops(name)
        for row in range(records):
            size_bytes = (row + 1) * 16 * MIB
            graph_id = store.write_graph(folder, make_graph(size_bytes, ops))
            peak_bytes = round((len(ops) + 1) * size_bytes * factor(name, row))
            rows.append(
                {
                    "key": f"{source}|{more.get('reporter', '')}|{name}|{row}",
                    "architecture": name,
                    "case": {"model": name.lower(), "batch": row},
                    "run": {"task": "inference"},
                    "device": {"name": "NVIDIA H200", "total_bytes": 150_754_820_096},
                    "plan": "eager",
                    "measured": {f"{quantity}_bytes": peak_bytes for quantity in QUANTITIES},
                    "out_of_memory": False,
                    "cache": "cold",
                    "source": source,
                    "measured_at": "2026-01-02T03:04:05Z",
                    "graph_id": graph_id,
                    **more,
                }
            )
    store.write(folder, rows)
    return folder


def write_settings(path: Path, **changed: Any) -> Path:
    """Write the quick settings as a file for `--settings`."""
    path.write_bytes(orjson.dumps({**QUICK, **changed}))
    return path
