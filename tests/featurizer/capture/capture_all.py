"""Capture the workloads of `workloads.py` and `gpu_code.py` in this one process, as the worker does, each to a file.

Usage: capture_all.py FOLDER. Loading torch and the fake device takes seconds: all workloads share them.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from peakcast.featurizer.capture.worker import capture_here, prepare_host
from peakcast.featurizer.spec import GraphSpec

PLANS = {
    "tied": ["eager", "inductor"],
    "in_place": ["eager", "inductor"],
    "flattened": ["inductor"],
    "stubborn": ["eager", "inductor"],
    "choice": ["eager", "inductor"],
    "choice_trained": ["eager", "inductor"],
    "lstm": ["eager", "inductor"],
    "stack": ["eager", "inductor", "inductor:budget=0", "hybrid", "eager:checkpoint"],
    "broken_stack": ["inductor"],
    "settling": ["inductor"],
    "keeping": ["eager", "inductor"],
    "pasted": ["inductor"],
    "watchful": ["eager", "hybrid"],
    "only_step": ["inductor"],
}


def main(folder: Path) -> None:
    """Capture each workload under its plans."""
    traced_on = prepare_host(allow_cpu=False)
    sys.path.insert(0, str(Path(__file__).parent))
    import gpu_code
    import workloads

    factories = {
        name: factory
        for name, factory in [*vars(workloads).items(), *vars(gpu_code).items()]
        if callable(factory) and getattr(factory, "__annotations__", {}) == {"return": "Workload"} and name[0] != "_"
    }
    for name, factory in factories.items():
        plans = PLANS.get(name, ["eager"])
        _write(folder, name, lambda factory=factory, plans=plans: capture_here(factory, plans, traced_on))
    _capture_symbolic(folder, traced_on)


def _capture_symbolic(folder: Path, traced_on: str) -> None:
    """Capture with the batch as a symbol, and the transformer by itself at a batch of 7."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from symbolic_workloads import SYMBOLIC, gpt

    from peakcast.featurizer.capture.sizes import BatchRange
    from peakcast.featurizer.capture.symbolic import capture_at_sizes

    for name, (factory, text, plans) in SYMBOLIC.items():

        def capture(made: Callable[[], Any], plans: list[str] = plans) -> GraphSpec:
            return capture_here(made, plans, traced_on)

        batches = BatchRange.parse(text)
        _write(
            folder,
            f"symbolic_{name}",
            lambda capture=capture, factory=factory, batches=batches: capture_at_sizes(capture, factory, batches),
        )
    _write(folder, "gpt_at_7", lambda: capture_here(lambda: gpt(batch=7), ["eager", "inductor"], traced_on))


def _write(folder: Path, name: str, capture: Callable[[], GraphSpec]) -> None:
    gc.collect()
    gc.freeze()  # collections during a capture need not go through all that was there before it
    try:
        (folder / f"{name}.json").write_bytes(capture().to_json())
    except Exception as error:  # noqa: BLE001  (some are meant to fail)
        told = {"error": str(error), "kind": type(error).__name__, "traceback": traceback.format_exc()}
        (folder / f"{name}.error").write_text(json.dumps(told))


main(Path(sys.argv[1]))
os._exit(0)  # as the worker ends: past the teardown of the fake device's threads
