"""The decision takes the fastest plan whose required bytes fit, and says why in words and numbers."""

from __future__ import annotations

import pytest

from peakcast.featurizer.run import DeviceSpec
from peakcast.models.decision import available_bytes, decide, speed_of
from peakcast.models.prediction import Expectation, PlanPrediction

GIB = 1 << 30


def make_plan(plan: str, expected_gib: float, upper_gib: float, **changed: object) -> PlanPrediction:
    """Return a plan whose every quantity is the same."""
    expectation = Expectation(expected_bytes=int(expected_gib * GIB), upper_bytes=int(upper_gib * GIB))
    names = ("steady_allocated", "steady_reserved", "first_allocated", "first_reserved", "required", "device")
    values = dict.fromkeys(names, expectation)
    defaults = {"phase": "backward", "fits": True, "confidence": "in_distribution"}
    return PlanPrediction(plan=plan, **values, **{**defaults, **changed})  # type: ignore[arg-type]


def test_fastest_fitting_plan_is_compiled() -> None:
    """Of two plans that fit, the compiled one is chosen, whatever order they were asked in."""
    decision = decide([make_plan("eager", 7, 7.5), make_plan("inductor", 4, 4.5)], room_bytes=8 * GIB, risk=0.01)
    assert (decision.action, decision.plan) == ("compile", "inductor")
    assert "4.50 GiB" in decision.reason
    assert "8.00 GiB" in decision.reason


def test_upper_bound_decides_not_the_expectation() -> None:
    """A plan whose expectation fits and whose bound does not is passed over, and named in the reason."""
    decision = decide([make_plan("inductor", 4, 6), make_plan("eager", 4.5, 4.9)], room_bytes=5 * GIB, risk=0.05)
    assert (decision.action, decision.plan) == ("fall_back", "eager")
    assert "inductor (at most 6.00 GiB)" in decision.reason


def test_refuses_where_nothing_fits() -> None:
    """Without room no plan is named, and the reason lists every plan's need."""
    plans = [make_plan("inductor", 4, 6), make_plan("eager", 4.5, 4.9)]
    decision = decide(plans, room_bytes=GIB, risk=0.01)
    assert (decision.action, decision.plan) == ("refuse", None)
    assert "6.00 GiB" in decision.reason
    assert "4.90 GiB" in decision.reason


def test_exact_fit_fits() -> None:
    """A bound equal to the room fits; one byte more does not."""
    plan = make_plan("inductor", 1, 2)
    assert decide([plan], room_bytes=2 * GIB, risk=0.01).action == "compile"
    assert decide([plan], room_bytes=2 * GIB - 1, risk=0.01).action == "refuse"


def test_measured_speeds_override_the_default_order() -> None:
    """Where the artefact measured that hybrid is slower than eager, eager goes first."""
    plans = [make_plan("hybrid", 1, 1), make_plan("eager", 1, 1)]
    assert decide(plans, room_bytes=2 * GIB, risk=0.01).plan == "hybrid"
    assert decide(plans, room_bytes=2 * GIB, risk=0.01, speeds={"hybrid": 0.9, "eager": 1.0}).plan == "eager"


def test_larger_budget_is_faster() -> None:
    """Budgets are ordered by how much they recompute."""
    assert speed_of("inductor:budget=0.8", {}) > speed_of("inductor:budget=0.2", {})
    assert speed_of("inductor", {}) > speed_of("inductor:budget=0.8", {})


def test_doubts_are_in_the_reason() -> None:
    """An answer outside what was measured says so where it decides."""
    plan = make_plan("eager", 1, 2, confidence="unknown", doubts=("op never measured: my.op",))
    assert "unknown: op never measured: my.op" in decide([plan], room_bytes=3 * GIB, risk=0.01).reason


def test_room_is_what_others_leave() -> None:
    """Other processes, this process's own tensors and the context are taken off the card's total."""
    device = DeviceSpec(total_bytes=80 * GIB, used_by_others_bytes=10 * GIB, already_allocated_bytes=3 * GIB)
    assert available_bytes(device, GIB) == 66 * GIB


def test_no_plans_is_a_refusal() -> None:
    """With nothing to choose from nothing is chosen."""
    assert decide([], room_bytes=GIB, risk=0.01).action == "refuse"


@pytest.mark.parametrize("name", ["eager", "inductor"])
def test_unknown_plan_kind_is_tried_last(name: str) -> None:
    """A plan of which no speed is known comes after those that are known."""
    assert speed_of("novel", {}) < speed_of(name, {})


def test_an_operator_of_unknown_memory_is_never_said_to_fit() -> None:
    """With all the room there is, plans that run such an operator are refused, and it is named."""
    opaque = {"eager": ("mylib.attend.default",), "inductor": ("mylib.attend.default",)}
    plans = [make_plan("eager", 1, 2), make_plan("inductor", 1, 2)]
    decision = decide(plans, room_bytes=900 * GIB, risk=0.01, opaque=opaque)
    assert (decision.action, decision.plan) == ("refuse", None)
    assert "an operator of unknown memory: mylib.attend.default (eager, inductor)" in decision.reason


def test_a_plan_without_the_unknown_operator_is_still_taken() -> None:
    """Only the compiled plan calls it: eager is the answer, and the reason says what was not judged."""
    plans = [make_plan("eager", 1, 2), make_plan("inductor", 1, 1)]
    opaque = {"eager": (), "inductor": ("mylib.attend.default",)}
    decision = decide(plans, room_bytes=3 * GIB, risk=0.01, opaque=opaque)
    assert (decision.action, decision.plan) == ("fall_back", "eager")
    assert "not judged: an operator of unknown memory: mylib.attend.default (inductor)" in decision.reason
    refused = decide(plans, room_bytes=GIB, risk=0.01, opaque=opaque)
    assert "the smallest, eager" in refused.reason
    assert "not judged" in refused.reason
