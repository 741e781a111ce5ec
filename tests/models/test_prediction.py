"""A prediction finds its plans by name and says which there are."""

from __future__ import annotations

import pytest

from peakcast.models.prediction import Decision, Expectation, Explanation, PlanPrediction, Prediction

ONE = Expectation(expected_bytes=1, upper_bytes=2)


@pytest.fixture
def prediction() -> Prediction:
    """Return a prediction of one plan."""
    plan = PlanPrediction(
        plan="eager",
        steady_allocated=ONE,
        steady_reserved=ONE,
        first_allocated=ONE,
        first_reserved=ONE,
        required=ONE,
        device=ONE,
        phase="backward",
        fits=True,
        confidence="in_distribution",
    )
    parts = {name: 0 for name in Explanation.model_fields if name != "top_tensors"}
    return Prediction(
        model_version="pair-0",
        graph_id="0" * 64,
        risk=0.01,
        plans=(plan,),
        decision=Decision(action="fall_back", plan="eager", reason="only one"),
        explanation=Explanation(**parts),
        elapsed_ms=1.0,
    )


def test_plan_by_name(prediction: Prediction) -> None:
    """The plan asked for comes back."""
    assert prediction.plan("eager").steady_allocated.upper_bytes == 2


def test_missing_plan_lists_those_there_are(prediction: Prediction) -> None:
    """A plan that was not predicted is a KeyError that names the others."""
    with pytest.raises(KeyError, match="there are: eager"):
        prediction.plan("inductor")


def test_survives_the_wire(prediction: Prediction) -> None:
    """What the service sends is what the client reads."""
    assert Prediction.model_validate_json(prediction.model_dump_json()) == prediction
