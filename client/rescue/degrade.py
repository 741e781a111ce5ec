"""When to give up speed for safety, and when to try for it again: a state machine over finished and failed steps.

Three out-of-memory errors in a row, or a step that takes far too long, go one plan down. After a quiet period one plan
up is tried; if that fails, the next try waits twice as long. Time is an argument: there is no clock in here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

Phase = Literal["settled", "trying"]
Symbol = Literal["fine", "rescued", "failed", "spent", "slow", "quiet", "proven"]
Kind = Literal["keep", "degrade", "try", "confirm", "revert"]

# "fine": a step finished in time; "rescued": after running out of memory first, which was told before.
# "failed": one ran out of memory; "spent": for the last time allowed in a row.
# "slow": one took too long. "quiet": fine, and no trouble for so long that the plan above may be tried.
# "proven": fine, and for the last time that a trial needs.
TRANSITIONS: Final[dict[tuple[Phase, Symbol], tuple[Phase, Kind]]] = {
    ("settled", "fine"): ("settled", "keep"),
    ("settled", "rescued"): ("settled", "keep"),
    ("settled", "failed"): ("settled", "keep"),
    ("settled", "spent"): ("settled", "degrade"),
    ("settled", "slow"): ("settled", "degrade"),
    ("settled", "quiet"): ("trying", "try"),
    ("settled", "proven"): ("settled", "keep"),
    ("trying", "fine"): ("trying", "keep"),
    ("trying", "rescued"): ("trying", "keep"),
    ("trying", "failed"): ("settled", "revert"),  # a trial is lost at the first trouble
    ("trying", "spent"): ("settled", "revert"),
    ("trying", "slow"): ("settled", "revert"),
    ("trying", "quiet"): ("trying", "keep"),
    ("trying", "proven"): ("settled", "confirm"),
}


@dataclass(frozen=True, slots=True)
class StepFinished:
    """A step ended well.

    Args:
        step_s: seconds it took.
        compiling: it compiled something, or was the first: its time says nothing about the plan.
        rescued: it ran out of memory first and finished under another plan. It ends no row of such errors, and its
            time is that of two runs.
    """

    step_s: float
    compiling: bool = False
    rescued: bool = False


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """A step ran out of memory."""


Event = StepFinished | OutOfMemory


@dataclass(frozen=True, slots=True)
class Action:
    """What to do now: `plan` is the one to run under, whatever `kind` says about how it came to be."""

    kind: Kind
    plan: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DegradePolicy:
    """When to go down and up.

    Args:
        ladder: the plans, fastest first and safest last; "full" stands for the whole graph compiled as asked.
        out_of_memory_row: so many out-of-memory errors in a row go one down.
        slowest_step_s: a step longer than this goes one down, unless the plan there trades time for memory.
        quiet_s: so long without trouble before the plan above is tried; doubled by each trial that is lost.
        longest_quiet_s: the quiet period never grows beyond this.
        trial_steps: so many fine steps confirm a trial.

    Raises:
        ValueError: for a value out of its range.
    """

    ladder: tuple[str, ...] = ("full", "hybrid", "eager", "eager:checkpoint")
    out_of_memory_row: int = 3
    slowest_step_s: float = 15.0
    # Ten minutes: a job that dies of a trial each time loses less than 1 % to it.
    quiet_s: float = 600.0
    longest_quiet_s: float = 4 * 3600.0
    # Recompiles for the last, shorter batch of an epoch and the like come within the first dozens of steps.
    trial_steps: int = 50

    def __post_init__(self) -> None:
        if len(set(self.ladder)) != len(self.ladder) or not self.ladder:
            raise ValueError(f"ladder must name one or more plans, each once, got {self.ladder!r}")
        for name, least in (("out_of_memory_row", 1), ("trial_steps", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be {least} or more, got {getattr(self, name)}")
        if not self.slowest_step_s > 0:
            raise ValueError(f"slowest_step_s must be above 0, got {self.slowest_step_s:g}")
        if not 0 < self.quiet_s <= self.longest_quiet_s:
            problem = f"quiet_s must be above 0 and at most longest_quiet_s ({self.longest_quiet_s:g})"
            raise ValueError(f"{problem}, got {self.quiet_s:g}")


@dataclass(frozen=True, slots=True)
class _Position:
    """Where on the ladder, and what has been counted there."""

    level: int = 0
    phase: Phase = "settled"
    failed_in_row: int = 0
    fine_steps: int = 0
    trouble_s: float = 0.0
    quiet_s: float = 0.0


class Degradation:
    """Follow a run's steps and say which plan of the ladder to run under."""

    def __init__(self, policy: DegradePolicy | None = None, *, level: int = 0) -> None:
        self.policy = policy or DegradePolicy()
        if not 0 <= level < len(self.policy.ladder):
            raise ValueError(f"level must be from 0 to {len(self.policy.ladder) - 1}, got {level}")
        self._at = _Position(level=level, quiet_s=self.policy.quiet_s)

    @property
    def plan(self) -> str:
        """Return the plan to run under."""
        return self.policy.ladder[self._at.level]

    @property
    def trying(self) -> bool:
        """Say whether the plan is on trial."""
        return self._at.phase == "trying"

    def observe(self, event: Event, now_s: float) -> Action:
        """Take in how a step ended, at `now_s` on any clock that only goes forward, and say what to do."""
        symbol, reason = self._read(event, now_s)
        phase, kind = TRANSITIONS[self._at.phase, symbol]
        if kind == "degrade" and not self._may_go_down(symbol):
            kind, reason = "keep", f"{reason}, and no plan below {self.plan} would help"
        self._at = replace(self._counted(self._at, symbol, kind, now_s), phase=phase)
        return Action(kind, self.plan, reason)

    def _read(self, event: Event, now_s: float) -> tuple[Symbol, str]:
        policy, at = self.policy, self._at
        if isinstance(event, OutOfMemory):
            row = at.failed_in_row + 1
            spent = row >= policy.out_of_memory_row
            return "spent" if spent else "failed", f"{row} out-of-memory error{'s' * (row > 1)} in a row"
        if event.rescued:
            return "rescued", ""
        if not event.compiling and event.step_s > policy.slowest_step_s:
            return "slow", f"a step took {event.step_s:.1f} s, over {policy.slowest_step_s:g} s"
        if at.phase == "trying":
            proven = at.fine_steps + 1 >= policy.trial_steps
            return ("proven", f"{policy.trial_steps} steps under it went well") if proven else ("fine", "")
        if at.level > 0 and now_s - at.trouble_s >= at.quiet_s:
            return "quiet", f"no trouble for {at.quiet_s:g} s"
        return "fine", ""

    def _may_go_down(self, symbol: Symbol) -> bool:
        below = self.policy.ladder[self._at.level + 1 :]
        # Checkpointing saves memory by computing twice: no help against slow steps.
        return bool(below) and not (symbol == "slow" and below[0].endswith(":checkpoint"))

    def _counted(self, at: _Position, symbol: Symbol, kind: Kind, now_s: float) -> _Position:
        if symbol in {"failed", "spent"}:
            at = replace(at, failed_in_row=at.failed_in_row + 1, fine_steps=0, trouble_s=now_s)
        elif symbol == "slow":
            at = replace(at, failed_in_row=0, fine_steps=0, trouble_s=now_s)
        elif symbol != "rescued":
            at = replace(at, failed_in_row=0, fine_steps=at.fine_steps + 1)
        if kind == "degrade":
            return replace(at, level=at.level + 1, failed_in_row=0)
        if kind == "try":
            return replace(at, level=at.level - 1, fine_steps=0)
        if kind == "revert":
            quiet_s = min(2 * at.quiet_s, self.policy.longest_quiet_s)
            return replace(at, level=at.level + 1, failed_in_row=0, quiet_s=quiet_s)
        if kind == "confirm":
            # The plan above this one is tried after a quiet period of its own.
            return replace(at, quiet_s=self.policy.quiet_s, trouble_s=now_s)
        return at
