"""Beside torch's own MemTracker, which runs the step on fake tensors: the same model, in the same run."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bench.timing import Row, p50_ms

from peakcast.featurizer.capture import capture_workload
from peakcast.models import compiled
from peakcast.models.predictor import Predictor

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]

# In a process of its own: the fake device of a capture must not be there. Two steps, as MemTracker's own documentation
# has it: the first makes the optimizer's state.
_TRACKED = """
import json, runpy, sys, time
from peakcast.featurizer.capture.torchvision_ops import define_missing_operators
define_missing_operators()
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
make = runpy.run_path(sys.argv[1])["workload"]
with FakeTensorMode():
    workload = make()
    model, optimizer = workload.model, workload.optimizer
    tracker = MemTracker()
    tracker.track_external(model, optimizer)
    tracking, tracking_cpu = time.perf_counter(), time.process_time()
    with tracker:
        for step in range(2):
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(**workload.inputs).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 0:
                tracker.reset_mod_stats()
    ended, ended_cpu = time.perf_counter(), time.process_time()
peak = tracker.get_tracker_snapshot("peak")
total = max(sum(v for k, v in kinds.items() if str(k).endswith("TOTAL") or k == "Total") for kinds in peak.values())
taken = {"tracking_ms": 1e3 * (ended - tracking), "cpu_ms": 1e3 * (ended_cpu - tracking_cpu)}
print(json.dumps({**taken, "peak_bytes": total}))
"""


def test_beside_mem_tracker(root: Path, rows: list[Row]) -> None:
    """A prediction alone, and one with its capture, beside two tracked steps of GPT-2 small."""
    example = root / "examples" / "gpt2_small.py"
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _TRACKED, str(example)], capture_output=True, text=True, check=False
    )
    process_ms = 1e3 * (time.perf_counter() - start)
    assert done.returncode == 0, done.stderr[-2000:]
    tracked = json.loads(done.stdout.splitlines()[-1])
    start = time.perf_counter()
    spec = capture_workload(f"{example}:workload", plans=("eager",))
    capture_ms = 1e3 * (time.perf_counter() - start)
    compiled.load()
    predictor = Predictor.load()
    alone_ms = p50_ms(lambda: predictor.predict(spec))
    compiled.unload()
    expected = predictor.predict(spec).plan("eager").steady_allocated.expected_bytes
    rows.append(
        Row("GPT-2 small, eager: MemTracker, two steps", tracked["tracking_ms"], "ms", cpu_ms=tracked["cpu_ms"])
    )
    beside = (tracked["cpu_ms"], "MemTracker's two steps")
    rows.append(Row("GPT-2 small, eager: prediction alone", alone_ms, "ms", *beside, cpu_ms=alone_ms.cpu_ms))
    ended = (process_ms, "MemTracker's process")
    rows.append(Row("GPT-2 small, eager: capture in a process, and prediction", capture_ms + alone_ms, "ms", *ended))
    # MemTracker counts the tensors of the step as the CPU runs it: of the same order, not the same.
    assert 0.3 < tracked["peak_bytes"] / expected < 3.0
