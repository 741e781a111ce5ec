"""Which plan to run: the fastest whose required bytes fit at the chosen risk. Pure: numbers in, decision out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from peakcast.featurizer.run import DeviceSpec
from peakcast.models.prediction import Decision, PlanPrediction

# Fastest first, used for plans whose speed the artefact did not measure. From the compiler's own ladder: autotuned
# kernels with CUDA graphs, CUDA graphs, plain, recomputation (a budget trades time for memory), regional, eager, and
# eager with every block's forward run twice.
DEFAULT_SPEED: Mapping[str, float] = {
    "inductor:max-autotune": 1.6,
    "inductor:reduce-overhead": 1.55,
    "inductor": 1.5,
    "inductor:budget": 1.4,
    "hybrid": 1.3,
    "eager": 1.0,
    "eager:checkpoint": 0.75,
}

_GIB = 1 << 30
_SHOWN_OPS = 5


def plan_kind(plan: str) -> str:
    """Return the plan without its numbers: `inductor:budget=0.5` -> `inductor:budget`."""
    return plan.split("=", maxsplit=1)[0]


def is_compiled(plan: str) -> bool:
    """Tell whether running the plan compiles anything."""
    return not plan.startswith("eager")


def speed_of(plan: str, speeds: Mapping[str, float]) -> float:
    """Return how fast a plan runs relative to eager: measured medians first, then `DEFAULT_SPEED`, else 0."""
    kind = plan_kind(plan)
    speed = speeds.get(kind, DEFAULT_SPEED.get(kind, 0.0))
    # Within the budgets a larger one recomputes less: keep them in that order whatever their common median is.
    budget = plan.partition("budget=")[2]
    return speed + (1e-3 * float(budget) if budget else 0.0)


def available_bytes(device: DeviceSpec, context_bytes: int) -> int:
    """Return what the step may take on this card: total, less other processes, this process and its context."""
    return device.total_bytes - device.used_by_others_bytes - device.already_allocated_bytes - context_bytes


def decide(
    plans: Sequence[PlanPrediction],
    *,
    room_bytes: int,
    risk: float,
    speeds: Mapping[str, float] | None = None,
    opaque: Mapping[str, Sequence[str]] | None = None,
) -> Decision:
    """Choose the fastest plan whose `required.upper_bytes` is within `room_bytes`.

    `opaque` names by plan the operators whose memory nobody knows: such a plan is never said to fit.
    Action is `compile` where that plan compiles, `fall_back` where it is an eager one, `refuse` where none fits.
    """
    if not plans:
        return Decision(action="refuse", plan=None, reason="no plan was asked for")
    unknown = {plan: ops for plan, ops in (opaque or {}).items() if ops}
    ordered = sorted(plans, key=lambda p: -speed_of(p.plan, speeds or {}))
    passed_over: list[str] = []
    for candidate in ordered:
        upper_bytes = candidate.required.upper_bytes
        if candidate.plan in unknown:
            continue
        if upper_bytes <= room_bytes:
            expected = _gib(candidate.required.expected_bytes)
            reason = f"{candidate.plan} needs at most {_gib(upper_bytes)} (expected {expected}) at risk {risk:g}"
            reason += f", and {_gib(room_bytes)} are free for it"
            if passed_over:
                reason += "; faster, but too large: " + ", ".join(passed_over)
            if unknown:
                reason += f"; not judged: {_unjudged(unknown)}"
            if candidate.confidence != "in_distribution":
                reason += f" [{candidate.confidence}: {'; '.join(candidate.doubts) or 'outside what was measured'}]"
            action = "compile" if is_compiled(candidate.plan) else "fall_back"
            return Decision(action=action, plan=candidate.plan, reason=reason)
        passed_over.append(f"{candidate.plan} (at most {_gib(upper_bytes)})")
    known = [plan for plan in ordered if plan.plan not in unknown]
    if not known:
        reason = f"no plan is sure to fit: {_unjudged(unknown)}"
        return Decision(action="refuse", plan=None, reason=reason)
    smallest = min(known, key=lambda p: p.required.upper_bytes)
    reason = (
        f"no plan fits in {_gib(max(room_bytes, 0))} at risk {risk:g}: {', '.join(passed_over)}; the smallest, "
        f"{smallest.plan}, expects {_gib(smallest.required.expected_bytes)}"
    )
    if unknown:
        reason += f"; not judged: {_unjudged(unknown)}"
    return Decision(action="refuse", plan=None, reason=reason)


def _unjudged(unknown: Mapping[str, Sequence[str]]) -> str:
    """Say which operators keep which plans from being judged."""
    ops = sorted({op for of_plan in unknown.values() for op in of_plan})
    more = f" and {len(ops) - _SHOWN_OPS} more" if len(ops) > _SHOWN_OPS else ""
    noun = "an operator" if len(ops) == 1 else "operators"
    return f"{noun} of unknown memory: {', '.join(ops[:_SHOWN_OPS])}{more} ({', '.join(unknown)})"


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / _GIB:.2f} GiB"
