"""Plan names parse to what they mean, and an unknown one is answered with the names allowed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakcast.featurizer.plans import ALLOWED_PLANS, Plan, parse_plan


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("eager", Plan("eager")),
        ("eager:checkpoint", Plan("eager", mode="checkpoint")),
        ("inductor", Plan("inductor")),
        ("inductor:budget=0.5", Plan("inductor", budget=0.5)),
        ("inductor:budget=0", Plan("inductor", budget=0.0)),
        ("inductor:budget=1", Plan("inductor", budget=1.0)),
        ("inductor:budget=0.00001", Plan("inductor", budget=0.00001)),
        ("inductor:reduce-overhead", Plan("inductor", mode="reduce-overhead")),
        ("inductor:max-autotune", Plan("inductor", mode="max-autotune")),
        ("hybrid", Plan("hybrid")),
    ],
)
def test_names_and_plans_are_one_to_one(name: str, plan: Plan) -> None:
    """Each canonical name gives its plan, and the plan gives the name back."""
    assert parse_plan(name) == plan
    assert plan.name == name


def test_spellings_of_a_budget_are_one_plan() -> None:
    """0.50 and 0.5 are the same budget, under one name."""
    assert parse_plan("inductor:budget=0.50").name == "inductor:budget=0.5"
    assert parse_plan("inductor:budget=1.0").name == "inductor:budget=1"


@given(st.integers(0, 10**6))
def test_every_budget_has_a_name(millionths: int) -> None:
    """Every budget of six decimals survives its name."""
    plan = Plan("inductor", budget=millionths / 10**6)
    assert parse_plan(plan.name) == plan


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Eager",
        "eager:",
        "eager\n",
        "eager:budget=0.5",
        "hybrid:checkpoint",
        "inductor:budget=",
        "inductor:budget=1.5",
        "inductor:budget=-0.5",
        "inductor:budget=nan",
        "inductor:budget=0.1234567",
        "inductor:budget=\u0660.\u0665",
    ],
)
def test_unknown_names_are_refused(name: str) -> None:
    """The error holds the name and every plan allowed."""
    with pytest.raises(ValueError, match="unknown plan") as caught:
        parse_plan(name)
    assert ascii(name) in str(caught.value)
    assert all(allowed in str(caught.value) for allowed in ALLOWED_PLANS)


def test_what_a_plan_implies() -> None:
    """Only eager plans skip the compiler; only two modes bring CUDA graphs."""
    plans = [parse_plan(name.replace("<0..1>", "0.5")) for name in ALLOWED_PLANS]
    assert [p.name for p in plans if not p.compiled] == ["eager", "eager:checkpoint"]
    assert [p.name for p in plans if p.cuda_graphs] == ["inductor:reduce-overhead", "inductor:max-autotune"]
