"""The first 297 measurements, made by a script of their own, as records of the corpus."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from peakcast.training.jobs import Job
from peakcast.training.zoo import Case, entry

# What torch reports for the card they were measured on.
_TOTAL_BYTES: Final = {"NVIDIA H200": 150_754_820_096}

_FIELDS: Final = {
    "static_bytes": "static_bytes",
    "parameter_bytes": "parameter_bytes",
    "buffer_bytes": "buffer_bytes",
    "first_allocated_bytes": "first_peak_allocated_bytes",
    "first_reserved_bytes": "first_peak_reserved_bytes",
    "steady_allocated_bytes": "steady_peak_allocated_bytes",
    "steady_reserved_bytes": "steady_peak_reserved_bytes",
    "after_step_allocated_bytes": "after_step_allocated_bytes",
}


def read_seed(path: Path) -> Iterator[dict[str, Any]]:
    """Give the records of a seed file. Raises ValueError on a line that is none, KeyError on a model we lack."""
    for line in path.read_text().splitlines():
        if line.strip():
            yield from_seed(json.loads(line))


def from_seed(row: Mapping[str, Any]) -> dict[str, Any]:
    """Turn one row into a record."""
    case = Case(
        model=row["model"],
        batch=row["batch"],
        autocast="bfloat16" if row["autocast_bf16"] else "none",
        task=row["task"],
        optimizer=row["optimizer"],
    )
    is_compiled = not str(row["plan"]).startswith("eager")
    compile_seconds = max(0.0, row["first_step_seconds"] - row["steady_step_seconds"]) if is_compiled else 0.0
    return {
        "key": Job(case, row["plan"]).key,
        "architecture": entry(case.model).architecture,
        "case": case.to_dict(),
        "run": case.run(),
        "device": {"name": row["device"], "total_bytes": _TOTAL_BYTES[row["device"]]},
        "plan": row["plan"],
        "measured": {ours: row[theirs] for ours, theirs in _FIELDS.items()},
        "out_of_memory": False,
        # One process a shard, each configuration once: nothing that could have been in a cache.
        "cache": "cold",
        "compile_seconds": round(compile_seconds, 3),
        "first_step_seconds": row["first_step_seconds"],
        "step_seconds": row["steady_step_seconds"],
        "versions": {name: row[name] for name in ("torch", "transformers", "timm", "torchvision") if name in row},
        "source": "seed",
        "graph_id": None,
    }
