"""The process that runs one plan for `peakcast compare`: `python -m ...compare_worker REQUEST.json`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from peakcast.featurizer.capture.isolated import COMPILER_VARIABLES
from peakcast.featurizer.capture.target import load_target
from peakcast.featurizer.capture.worker import main


def run_plan(request: dict[str, Any]) -> bytes:
    """Measure one plan and its epochs; return a JSON object with `device` and the fields of a `Measurement`."""
    # The caller's environment is that of a capture, which caches nothing: here the cache is what is measured.
    for name in COMPILER_VARIABLES:
        os.environ.pop(name, None)
    import torch

    from peakcast.client.measure import measure

    factory = load_target(request["target"])
    # Not `cold`: the cache of this process is empty, and must be there afterwards to be weighed.
    found = measure(factory, request["plan"], cold=False)
    told = {
        "peaks_bytes": {} if found.out_of_memory else peaks(found.measured),
        "graph_cache_bytes": folder_bytes(*cache_folders()),
        "graph_pool_bytes": 0,
        "pinned_bytes": [],
        "step_seconds": found.step_seconds,
        "message": found.message,
    }
    if not found.out_of_memory:
        told |= run_epochs(factory, request["plan"], epochs=request["epochs"], steps=request["steps"])
    properties = torch.cuda.get_device_properties(0)
    device = {"name": properties.name, "total_bytes": properties.total_memory}
    return json.dumps({"device": device, "torch": str(torch.__version__), "measured": told}).encode()


def peaks(measured: dict[str, int]) -> dict[str, int]:
    """Return the peaks by their quantity."""
    from peakcast.client.comparing.comparison import PEAKS

    return {name: measured[f"{name}_bytes"] for name in PEAKS}


def run_epochs(factory: Callable[[], Any], plan: str, *, epochs: int, steps: int) -> dict[str, Any]:
    """Run the workload for some epochs; read pinned memory after each, and the pools of CUDA graphs at the end."""
    import torch

    from peakcast.featurizer.capture.plans import install

    with torch.device("cuda"):
        workload = factory()
    undo = install(workload.model, plan) if workload.model is not None else (lambda: None)
    pinned = []
    try:
        for _ in range(epochs):
            for _ in range(steps):
                workload.run()
            torch.cuda.synchronize()
            pinned.append(int(torch.cuda.host_memory_stats().get("allocated_bytes.current", 0)))
        pool_bytes = graph_pool_bytes(torch.cuda.memory_snapshot())
    finally:
        undo()
    return {"pinned_bytes": pinned, "graph_pool_bytes": pool_bytes}


def graph_pool_bytes(segments: list[dict[str, Any]]) -> int:
    """Return the bytes of a memory snapshot's segments that belong to private pools; (0, 0) is everybody's."""
    return sum(each["total_size"] for each in segments if tuple(each.get("segment_pool_id", (0, 0))) != (0, 0))


def cache_folders() -> list[Path]:
    """Return where the compilers of this process keep what they made."""
    names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    return [Path(os.environ[name]) for name in names if name in os.environ]


def folder_bytes(*folders: Path) -> int:
    """Return the bytes of all files below the folders."""
    return sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    exit_code = main(sys.argv[1], run_plan)
    sys.stdout.flush()
    os._exit(exit_code)
