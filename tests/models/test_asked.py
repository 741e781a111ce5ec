"""A run is filled in from the graph, refused where the graph rules it out, and doubted where the two differ."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from peakcast.featurizer.prior import simulate
from peakcast.featurizer.run import DeviceSpec, RunSpec
from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.vocabulary import BACKWARD, FORWARD, OPTIMIZER
from peakcast.models.asked import RunMismatchError, check_trace, contradictions, guessed, settled_run
from peakcast.models.example import make_example
from peakcast.service.examples import example_request

CAPTURED = {"task": "training", "optimizer": "AdamW", "implementation": "foreach", "autocast": "bfloat16"}


def make_spec(*, backward: bool = True, **captured: str) -> GraphSpec:
    """Return the example's graph with other facts; without `backward` every node is of the forward."""
    spec = GraphSpec.from_json(example_request()["graph"])
    traces = spec.traces
    if not backward:
        traces = {
            plan: dataclasses.replace(trace, phase=np.full(len(trace), FORWARD, np.uint8))
            for plan, trace in traces.items()
        }
    return dataclasses.replace(spec, traces=traces, captured_with=captured)


def test_what_is_left_out_is_as_captured() -> None:
    """Only the allocator is given: task, optimizer, implementation and autocast come from the graph."""
    run = settled_run(make_spec(**CAPTURED), RunSpec(allocator="expandable_segments:True"))
    assert run == RunSpec(**CAPTURED, allocator="expandable_segments:True")  # type: ignore[arg-type]
    assert settled_run(make_spec(**CAPTURED), None) == RunSpec(**CAPTURED)  # type: ignore[arg-type]


def test_what_is_given_stays_even_if_it_is_the_default() -> None:
    """An explicit None is an answer, not a gap."""
    assert settled_run(make_spec(**CAPTURED), RunSpec(autocast=None)).autocast is None


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"optimizer": "SGD"}, "optimizer SGD, the graph was captured with AdamW"),
        ({"implementation": "fused"}, "implementation fused, the graph was captured with foreach"),
        ({"autocast": "float16"}, "autocast float16, the graph was captured with bfloat16"),
        ({"autocast": None}, "autocast none, the graph was captured with bfloat16"),
        ({"accumulation": 4}, "accumulation 4, the graph was captured with 1"),
    ],
)
def test_a_contradiction_names_both_values(asked: dict[str, Any], said: str) -> None:
    """Each field that differs gives one doubt, and the example carries it."""
    spec = make_spec(**CAPTURED)
    run = settled_run(spec, RunSpec(**asked))
    assert contradictions(spec, spec.traces["eager"], run) == (f"the run says {said}",)
    device = DeviceSpec()
    example = make_example(spec, "eager", simulate(spec, "eager", run, device), run, device)
    assert example.facts.contradictions == (f"the run says {said}",)


def test_a_run_as_captured_contradicts_nothing() -> None:
    """Nor does one asked of a graph that says nothing."""
    spec = make_spec(**CAPTURED)
    assert contradictions(spec, spec.traces["eager"], settled_run(spec, None)) == ()
    bare = make_spec()
    assert contradictions(bare, bare.traces["eager"], RunSpec(optimizer="SGD", autocast="float16")) == ()


def test_a_step_that_goes_forward_and_back_twice_may_accumulate() -> None:
    """Two passes in the trace: that the run accumulates is no contradiction."""
    spec = make_spec(**CAPTURED)
    trace = spec.traces["eager"]
    quarter = len(trace) // 4
    phases = np.repeat(np.array([FORWARD, BACKWARD, FORWARD, BACKWARD, OPTIMIZER], np.uint8), quarter)[: len(trace)]
    trace = dataclasses.replace(trace, phase=phases)
    run = settled_run(spec, RunSpec(accumulation=2))
    assert contradictions(spec, trace, run) == ()


def test_training_of_an_inference_graph_is_refused() -> None:
    """No backward in the trace, and a run that trains with an optimizer."""
    spec = make_spec(backward=False, task="inference")
    with pytest.raises(RunMismatchError, match="no backward: it is of inference"):
        check_trace(spec, "eager", RunSpec(task="training", optimizer="AdamW"))
    check_trace(spec, "eager", settled_run(spec, None))


def test_inference_of_a_training_graph_is_refused() -> None:
    """A backward in the trace, and a run that has none; a step that capture itself called inference is believed."""
    with pytest.raises(RunMismatchError, match="has a backward: it is of training"):
        check_trace(make_spec(**CAPTURED), "eager", RunSpec(task="inference"))
    check_trace(make_spec(task="inference"), "eager", RunSpec(task="inference"))


def test_guessed_counts_are_read_from_untrusted_text() -> None:
    """Counts add up; what is no number is one guess, what is absent or zero none, and no size of text is too long."""
    captured = {"guessed_conditions": "2", "guessed_integers": " 1 ", "guessed_sizes": "many", "data_dependent": "9"}
    assert guessed(captured, "conditions", "integers") == 3
    assert guessed(captured, "sizes") == 1
    assert guessed({"guessed_sizes": "0"}, "sizes") == 0
    assert guessed({}, "sizes") == 0
    assert guessed({"guessed_sizes": "9" * 5000}, "sizes") == 10**9
    assert guessed({"guessed_sizes": "\u0663"}, "sizes") == 1
    assert guessed({"guessed_sizes": "-5"}, "sizes") == 1
