"""The predictor answers any valid graph under any plan: ordered, bounded, explained, and decided."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from samples import make_dataset
from strategies import graph_specs

from peakcast.featurizer.run import DeviceSpec, RunSpec
from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.vocabulary import BACKWARD
from peakcast.models.coverage import unfused_bytes
from peakcast.models.predictor import Predictor, ordered
from peakcast.training.fit import fit_pair
from peakcast.training.fit_settings import FitSettings, SequenceSettings

PLANS = ("eager", "eager:checkpoint", "inductor", "inductor:budget=0.25", "inductor:max-autotune", "hybrid")


@pytest.fixture(scope="module")
def pair() -> Predictor:
    """Return a pair fitted on made-up records: how well is not the question here."""
    quick = FitSettings(inner_folds=2, rounds=20, spread_rounds=5, sequence=SequenceSettings(epochs=1, hidden=4))
    return fit_pair(make_dataset(architectures=6, records=6), quick)


@pytest.mark.parametrize(
    ("plan", "is_warm", "required_gib"), [("eager", True, 5.0), ("inductor", True, 4.0), ("inductor", False, 5.0)]
)
def test_what_tuning_takes_counts_for_bounds_alone(plan: str, required_gib: float, *, is_warm: bool) -> None:
    """A cold first step of 5 GiB under a compiler does not raise what a warm process is expected to require, 4 GiB."""
    example = replace(make_dataset(architectures=1, records=1).examples[0], plan=plan)
    gib = 2.0**30
    steady_allocated, steady_reserved, first_allocated, first_reserved, required = 3.0, 6.0, 5.0, 6.0, 4.0
    given_PQ = np.array([[steady_allocated, steady_reserved, first_allocated, first_reserved, required]]) * gib
    result = ordered(given_PQ, [example], is_warm=is_warm)[0] / gib
    assert result.tolist() == [steady_allocated, steady_reserved, first_allocated, first_reserved, required_gib]


@given(
    spec=graph_specs(),
    plans=st.lists(st.sampled_from(PLANS), min_size=1, max_size=3, unique=True),
    task=st.sampled_from(["training", "inference"]),
    risk=st.sampled_from([0.3, 0.05, 0.01, 1e-6]),
)
def test_any_graph_is_answered(pair: Predictor, spec: GraphSpec, plans: list[str], task: str, risk: float) -> None:
    """Every plan asked for is there; bounds are above expectations, reserved above allocated, device above both."""
    run = RunSpec.model_validate({"task": task})
    traces = spec.traces.values()
    # A graph that captured nothing, or a training step asked about as inference, is refused (test_asked.py).
    assume(all(len(trace) and (task == "training" or not (trace.phase == BACKWARD).any()) for trace in traces))
    answer = pair.predict(spec, run=run, device=DeviceSpec(total_bytes=80 << 30), plans=plans, risk=risk)
    assert [plan.plan for plan in answer.plans] == plans
    assert answer.graph_id == spec.graph_id
    for plan in answer.plans:
        pairs = [getattr(plan, name) for name in type(plan).model_fields if name.endswith(("ed", "device"))]
        assert all(0 <= pair.expected_bytes <= pair.upper_bytes for pair in pairs)
        for step in ("steady", "first"):
            allocated, reserved = getattr(plan, f"{step}_allocated"), getattr(plan, f"{step}_reserved")
            assert allocated.expected_bytes <= reserved.expected_bytes <= plan.device.expected_bytes
            assert allocated.upper_bytes <= plan.required.upper_bytes <= plan.device.upper_bytes
        assert plan.confidence == "in_distribution" or plan.doubts
    parts = answer.explanation.model_dump(exclude={"prior_bytes", "top_tensors"})
    assert sum(parts.values()) == answer.explanation.prior_bytes


@given(spec=graph_specs())
def test_foreign_op_is_unknown(pair: Predictor, spec: GraphSpec) -> None:
    """A trace with an op not of PyTorch is `unknown`, and its bound no smaller than the step without fusion."""
    assume(all(len(trace) for trace in spec.traces.values()))
    for plan in pair.predict(spec, risk=0.05).plans:
        trace = spec.traces[plan.plan]
        if any(spec.ops[op].startswith("mylib.") for op in trace.op.tolist()):
            assert plan.confidence == "unknown"
            assert plan.required.upper_bytes >= 2 * unfused_bytes(trace)
            assert not plan.fits


@given(spec=graph_specs(max_nodes=2))
def test_no_plan_is_refused(pair: Predictor, spec: GraphSpec) -> None:
    """An empty list of plans is an error, not an empty answer; so is a plan that does not exist."""
    with pytest.raises(ValueError, match="no plan to predict"):
        pair.predict(spec, plans=[])
    with pytest.raises(ValueError, match="unknown plan"):
        pair.predict(spec, plans=["turbo"])
