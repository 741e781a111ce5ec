"""Where the milliseconds of an answer go, beside the least any reader of such a document pays: parsing its JSON."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import orjson
import pytest

from peakcast.featurizer.capture import capture_workload
from peakcast.featurizer.nodes import node_matrix
from peakcast.featurizer.prior import simulate
from peakcast.featurizer.run import DeviceSpec, RunSpec
from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.summary import summarize
from peakcast.models.predictor import Predictor

pytestmark = pytest.mark.bench

REPEATS = 15
PLANS = ("eager", "inductor")


def _median_ms(call: Callable[[], object]) -> float:
    call()
    taken_ms = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        taken_ms.append(1e3 * (time.perf_counter() - start))
    return median(taken_ms)


def test_time_of_an_answer(root: Path) -> None:
    """Each step from the wire to the decision is timed on GPT-2 small, eager and compiled."""
    start = time.perf_counter()
    spec = capture_workload(f"{root / 'examples' / 'gpt2_small.py'}:workload", plans=PLANS)
    capture_ms = 1e3 * (time.perf_counter() - start)
    wire = spec.to_json()
    run, device = RunSpec(optimizer="AdamW", autocast="bfloat16"), DeviceSpec()
    priors = {plan: simulate(spec, plan, run, device) for plan in PLANS}
    predictor = Predictor.load()
    rows = {
        "orjson.loads, the baseline": _median_ms(lambda: orjson.loads(wire)),
        "GraphSpec.from_json": _median_ms(lambda: GraphSpec.from_json(wire)),
    }
    for plan in PLANS:
        rows[f"node_matrix, {plan}"] = _median_ms(lambda plan=plan: node_matrix(spec, plan))
        rows[f"simulate, {plan}"] = _median_ms(lambda plan=plan: simulate(spec, plan, run, device).required_bytes)
        rows[f"summarize, {plan}"] = _median_ms(lambda plan=plan: summarize(spec, plan, priors[plan], run, device))
    rows["predict, both plans"] = _median_ms(lambda: predictor.predict(spec, run=run, device=device, plans=PLANS))
    nodes = ", ".join(f"{plan} {len(spec.traces[plan])}" for plan in PLANS)
    print(f"\nnodes: {nodes}; {len(wire) / 1024:.0f} KiB of JSON; captured once in {capture_ms / 1e3:.1f} s")
    for name, taken_ms in rows.items():
        print(f"{name:<28} {taken_ms:9.2f} ms  {taken_ms / rows['orjson.loads, the baseline']:7.1f} x")
    assert spec.graph_id == GraphSpec.from_json(wire).graph_id
