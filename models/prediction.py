"""What a prediction answers: the reply of `POST /predict`, and the same object in-process. Bytes everywhere."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Confidence = Literal["in_distribution", "extrapolating", "unknown"]
Action = Literal["compile", "fall_back", "refuse"]


class _Reply(BaseModel):
    # `model_version` is the wire's own name for the artefact, not one of pydantic's methods.
    model_config = ConfigDict(frozen=True, protected_namespaces=())


class Expectation(_Reply):
    """One quantity: what is expected (the median), and what is exceeded no more often than the risk asked for."""

    expected_bytes: int
    upper_bytes: int


class PlanPrediction(_Reply):
    """One plan: what the allocator will hold, what the card must give, where the peak lies and whether it fits."""

    plan: str
    steady_allocated: Expectation
    steady_reserved: Expectation
    first_allocated: Expectation
    first_reserved: Expectation
    required: Expectation
    device: Expectation
    phase: str
    fits: bool
    confidence: Confidence
    # Why the confidence is not `in_distribution`, in words; empty where it is.
    doubts: tuple[str, ...] = ()


class Decision(_Reply):
    """What to do: compile under `plan`, fall back to the eager `plan`, or refuse (no plan fits)."""

    action: Action
    plan: str | None
    reason: str
    largest_batch: int | None = None


class TensorShare(_Reply):
    """One tensor that lives at the peak.

    `node` is -1 and `op` empty where it was there before the step; `line` is None where it is unknown or left out.
    """

    node: int
    op: str
    bytes: int
    line: str | None = None
    role: str = ""


class Explanation(_Reply):
    """Where the first plan's peak comes from, before anything is learned. The parts add up to the prior."""

    prior_bytes: int
    parameters_bytes: int
    inputs_bytes: int
    gradients_bytes: int
    optimizer_state_bytes: int
    saved_activations_bytes: int
    temporaries_bytes: int
    outputs_bytes: int
    workspace_bytes: int
    rounding_bytes: int
    top_tensors: tuple[TensorShare, ...] = ()


class Prediction(_Reply):
    """The answer for one graph: every plan asked for, the decision among them, and the parts of the peak."""

    model_version: str
    graph_id: str
    risk: float = Field(gt=0, lt=1)
    plans: tuple[PlanPrediction, ...]
    decision: Decision
    explanation: Explanation
    elapsed_ms: float

    def plan(self, name: str) -> PlanPrediction:
        """Return the prediction of one plan.

        Raises:
            KeyError: if that plan was not asked for; the message lists those there are.
        """
        for candidate in self.plans:
            if candidate.plan == name:
                return candidate
        raise KeyError(f"no prediction for plan {name!r}; there are: {', '.join(p.plan for p in self.plans)}")
