"""Capture the workloads of `reported_workloads.py` in this one process. Usage: capture_reported.py FOLDER."""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from pathlib import Path

from peakcast.featurizer.capture.worker import capture_here, prepare_host

COMPILED = ("matrix_vector", "pointwise", "gelus", "cache_write", "branches", "quantised")


def main(folder: Path) -> None:
    """Capture each workload eager, and compiled where a report is about that."""
    traced_on = prepare_host(allow_cpu=False, world_size=1)  # for DDP; the others do not notice
    import reported_workloads

    for name, factory in list(vars(reported_workloads).items()):
        if getattr(factory, "__annotations__", {}) != {"return": "Workload"} or name.startswith("_"):
            continue
        plans = ["eager", "inductor"] if name in COMPILED else ["eager"]
        gc.collect()
        gc.freeze()  # collections during a capture need not go through all that was there before it
        try:
            (folder / f"{name}.json").write_bytes(capture_here(factory, plans, traced_on).to_json())
        except Exception as error:  # noqa: BLE001  (a test says which one failed, and why)
            told = {"error": str(error), "kind": type(error).__name__, "traceback": traceback.format_exc()}
            (folder / f"{name}.error").write_text(json.dumps(told))


main(Path(sys.argv[1]))
os._exit(0)  # past the teardown of the fake device's threads, as the capturing process ends
