"""What the guard may do, at which risk, and how long it may take over it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from peakcast.featurizer.plans import parse_plan
from peakcast.featurizer.run import LARGEST_RISK, LEAST_RISK

# The plan wanted first. Each budget is predicted by itself: less budget is not always less memory.
DEFAULT_PLANS = (
    "inductor",
    "inductor:budget=0.7",
    "inductor:budget=0.4",
    "hybrid",
    "eager",
    "eager:checkpoint",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Bounds on what a guard does.

    Args:
        plans: the plan wanted, then those it may fall back to, in any order: the predictor knows which is fastest.
            Plans that the model has no repeated blocks for are left out.
        risk: how often the true peak may exceed the upper bound that has to fit.
        ask_time: the most that a question to a server may take; past it the plan wanted runs.
        capture_time: the most that one capture may take; past it the plan wanted runs.
        agree_time: how long ranks of a distributed training wait for each other before the first compile.
        nothing_fits: run the plan that needs least, with a warning, or raise `NothingFitsError`.
        questions: the most signatures that are captured and asked about; later ones run the last plan.
        out_of_memory_limit: this many out-of-memory errors in a row degrade the full graph to `hybrid`.
        slow_step: so does a step over this long, compiles not counted.
        quiet_period: after this long without trouble the plan wanted is tried again.
        second_look: check inductor's own buffer plan before it compiles kernels, where this torch allows it.
        compile_meanwhile: start the compile of the plan wanted while the first question is answered. Nothing compiled
            runs before the answer, and one that decides otherwise ends the compile.
        report: send measured peaks to the server.
        warm_capture: keep a process ready that has imported torch, so that a capture starts at once.

    Raises:
        ValueError: for a plan, risk, limit or time that cannot be.
    """

    plans: tuple[str, ...] = DEFAULT_PLANS
    risk: float = 0.01
    ask_time: timedelta = timedelta(milliseconds=500)
    capture_time: timedelta = timedelta(minutes=10)
    agree_time: timedelta = timedelta(minutes=2)
    nothing_fits: Literal["run_smallest", "refuse"] = "run_smallest"
    questions: int = 64
    out_of_memory_limit: int = 3
    slow_step: timedelta = timedelta(seconds=15)
    quiet_period: timedelta = timedelta(minutes=10)
    second_look: bool = True
    compile_meanwhile: bool = True
    report: bool = True
    warm_capture: bool = True

    def __post_init__(self) -> None:
        given: object = self.plans
        if isinstance(given, str) or not self.plans:
            raise ValueError(f"plans must be at least one name, such as ('inductor', 'eager'), got {given!r}")
        canonical = tuple(dict.fromkeys(parse_plan(plan).name for plan in self.plans))
        object.__setattr__(self, "plans", canonical)
        if not LEAST_RISK <= self.risk <= LARGEST_RISK:
            raise ValueError(f"risk must be from {LEAST_RISK:g} to {LARGEST_RISK:g}, got {self.risk!r}")
        if self.nothing_fits not in ("run_smallest", "refuse"):
            raise ValueError(f"nothing_fits must be 'run_smallest' or 'refuse', got {self.nothing_fits!r}")
        for name in ("questions", "out_of_memory_limit"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)!r}")
        for name in ("ask_time", "capture_time", "agree_time", "slow_step", "quiet_period"):
            if getattr(self, name) <= timedelta(0):
                raise ValueError(f"{name} must be longer than nothing, got {getattr(self, name)!r}")
