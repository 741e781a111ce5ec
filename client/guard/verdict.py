"""What the guard decided for one signature, and which plan comes after it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from peakcast.featurizer.run import DeviceSpec, RunSpec
from peakcast.featurizer.spec import GraphSpec
from peakcast.models.decision import plan_kind, speed_of
from peakcast.models.prediction import PlanPrediction, Prediction

# "unknown": nobody could say, so the plan wanted runs. "smallest": nothing is sure to fit, so what likely does runs.
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

    `required` maps plans to the upper bound of the bytes they require, `expected` to what they are expected to, as far
    as they were predicted; `failed` names those that did not fit in fact; `assumptions` says what was not known of the
    step; `asked_s` and `captured_s` are what the decision took, `waited_s` what the training waited for it, less where
    the compiler was at work meanwhile. `specs`, `device` and `run` are what was asked about.
    """

    plan: str
    action: Action
    reason: str
    graph_id: str | None = None
    required: Mapping[str, int] = field(default_factory=dict)
    expected: Mapping[str, int] = field(default_factory=dict)
    failed: frozenset[str] = frozenset()
    room_bytes: int | None = None
    statics_bytes: int | None = None
    assumptions: tuple[str, ...] = ()
    captured_s: float = 0.0
    asked_s: float = 0.0
    waited_s: float = 0.0
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

    def falling_to(self, plan: str, reason: str, *, failed: str | None = None) -> Verdict:
        """Return the verdict after falling back to another plan at run time, from one that `failed` to fit."""
        known = self.failed if failed is None else self.failed | {failed}
        return replace(self, plan=plan, action="fall_back", reason=reason, failed=known)

    def next_after(self, plan: str, plans: Sequence[str], *, any_left: bool) -> str | None:
        """Return the plan to turn to when `plan` did not fit, or None where none is left.

        Its bound was wrong by then, so what others are expected to require decides, not their bounds: the fastest of
        those expected to fit and to require less than each that failed, then those that should require less, whatever
        usually does among plans without a prediction and, with `any_left`, every other one, least first.
        """
        failed = self.failed | {plan}
        left = [name for name in plans if name not in failed]
        least_bytes = min((self.expected[name] for name in failed if name in self.expected), default=None)
        known = [name for name in left if name in self.expected]
        less = [name for name in known if least_bytes is None or self.expected[name] < least_bytes]
        if less:
            return likeliest(less, self.expected, self.room_bytes)
        unknown = [name for name in left if name not in self.expected]
        later = [name for name in unknown if _careful(name) > _careful(plan)]
        if later:
            return min(later, key=_careful)
        if not any_left:
            return None
        if known:
            return min(known, key=lambda name: self.expected[name])
        return max(unknown, key=_careful, default=None)

    def after_trouble(self, ladder: str) -> str:
        """Return the plan for a run that has gone down a ladder to `ladder`: none that failed, or likely would."""
        careful = more_careful(self.plan, ladder)
        if careful in self.failed:
            return self.plan
        if self.plan in self.expected and careful in self.expected:
            needs_more = self.expected[careful] > self.expected[self.plan]
            # After a plan has failed, what was free then says little.
            if needs_more and (self.failed or self.room_bytes is None or self.expected[careful] > self.room_bytes):
                return self.plan
        return careful


def likeliest(plans: Sequence[str], expected: Mapping[str, int], room_bytes: int | None) -> str:
    """Return the fastest of the plans that are expected to fit, or where none is, the one expected to require least."""
    fitting = [plan for plan in plans if room_bytes is not None and expected[plan] <= room_bytes]
    if fitting:
        return max(fitting, key=lambda plan: speed_of(plan, {}))
    return min(plans, key=lambda plan: expected[plan])


def more_careful(first: str, second: str) -> str:
    """Return which of two plans usually takes less memory."""
    return max(first, second, key=_careful)


def _careful(plan: str) -> tuple[int, float]:
    budget = plan.partition("budget=")[2]
    return _USUALLY.index(plan_kind(plan)), -float(budget) if budget else 0.0
