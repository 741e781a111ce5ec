"""What the guard decided for one signature, and which plan comes after it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from peakcast.featurizer.run import DeviceSpec, RunSpec
from peakcast.featurizer.spec import GraphSpec
from peakcast.models.decision import plan_kind
from peakcast.models.prediction import PlanPrediction, Prediction

# "unknown": nobody could say, so the plan wanted runs. "smallest": nothing fits, so what needs least runs.
Action = Literal["compile", "fall_back", "smallest", "refuse", "unknown"]

# By how much memory plans of a kind usually take, most first: for what no prediction was made of.
_USUALLY = (
    "inductor:max-autotune",
    "inductor:reduce-overhead",
    "inductor",
    "inductor:budget",
    "hybrid",
    "eager",
    "eager:checkpoint",
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The plan that runs, and why.

    `required` maps plans to the upper bound of the bytes they require, as far as they were predicted; `assumptions`
    says what was not known of the step; `asked_s` and `captured_s` are what the decision took. `specs`, `device` and
    `run` are what was asked about.
    """

    plan: str
    action: Action
    reason: str
    graph_id: str | None = None
    required: Mapping[str, int] = field(default_factory=dict)
    room_bytes: int | None = None
    statics_bytes: int | None = None
    assumptions: tuple[str, ...] = ()
    captured_s: float = 0.0
    asked_s: float = 0.0
    predictions: tuple[Prediction, ...] = ()
    specs: tuple[GraphSpec, ...] = ()
    device: DeviceSpec | None = None
    run: RunSpec | None = None

    def spec(self, plan: str) -> GraphSpec | None:
        """Return the captured graph that has a trace of a plan."""
        return next((spec for spec in self.specs if plan in spec.traces), None)

    def prediction(self, plan: str | None = None) -> PlanPrediction | None:
        """Return what was predicted for a plan, by default the one that runs."""
        wanted = plan or self.plan
        return next((p for answer in self.predictions for p in answer.plans if p.plan == wanted), None)

    def falling_to(self, plan: str, reason: str) -> Verdict:
        """Return the verdict after falling back to another plan at run time."""
        return replace(self, plan=plan, action="fall_back", reason=reason)


def next_smaller(plan: str, plans: Sequence[str], required: Mapping[str, int]) -> str | None:
    """Return the plan to turn to when `plan` did not fit, or None where no other needs less.

    Of the plans predicted to require less it is the one that requires most; the others follow by their kind.
    """
    own_bytes = required.get(plan)
    if own_bytes is not None:
        less = [name for name in plans if required.get(name, own_bytes) < own_bytes]
        if less:
            return max(less, key=lambda name: required[name])
    unknown = [name for name in plans if name != plan and (own_bytes is None or name not in required)]
    later = [name for name in unknown if _careful(name) > _careful(plan)]
    return min(later, key=_careful, default=None)


def more_careful(first: str, second: str) -> str:
    """Return which of two plans usually takes less memory."""
    return max(first, second, key=_careful)


def _careful(plan: str) -> tuple[int, float]:
    budget = plan.partition("budget=")[2]
    return _USUALLY.index(plan_kind(plan)), -float(budget) if budget else 0.0
