"""Replay the workloads of `replay_workloads.py` in this one process. Usage: replay_all.py FOLDER."""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path

from peakcast.featurizer.capture.replay.session import Session
from peakcast.featurizer.capture.worker import capture_here

BOTH = ["inductor", "hybrid"]
PLANS = {
    "two_layers": ["eager", "inductor"],
    "attention": ["inductor"],
    "odd_product": ["inductor"],
    "odd_float_product": ["inductor"],
    "stack": ["inductor", "inductor:budget=0", "hybrid"],
    "broken_lowering": ["inductor"],
    "small_class": ["inductor"],
}


def main(folder: Path) -> None:
    """Replay each workload; write its graphs, and why a plan was not replayed."""
    session = Session()
    sys.path.insert(0, str(Path(__file__).parent))
    import replay_workloads

    for name, plans in PLANS.items():
        gc.collect()
        gc.freeze()  # collections during a replay need not go through all that was there before it
        found = session.replay(getattr(replay_workloads, name), plans)
        (folder / f"{name}.json").write_bytes(found.spec.to_json())
        if found.otherwise is not None:
            (folder / f"{name}.otherwise.json").write_bytes(found.otherwise.to_json())
        told = {"failed": dict(found.failed), "undecided": found.undecided}
        (folder / f"{name}.told.json").write_text(json.dumps(told))
        session.forget()
    both = session.replay(replay_workloads.stack, BOTH, with_graph=True)
    assert both.graph is not None
    session.forget()
    captured = capture_here(replay_workloads.stack, BOTH, both.spec.captured_with["traced_on"])
    for name, spec in (("both", both.spec), ("graph", both.graph), ("captured", captured)):
        (folder / f"{name}.json").write_bytes(spec.to_json())


main(Path(sys.argv[1]))
os._exit(0)  # past the teardown of the fake device's threads
