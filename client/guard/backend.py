"""The Dynamo backend `peakcast`: `model.compile(backend="peakcast")`.

A backend sees one segment of the model, without loss and optimizer. Inside a guard it takes over the guard's decision,
which is about the whole step. By itself it assumes a loss and AdamW, so its bounds are wide, and it says so.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

from peakcast.client.guard import active_plan
from peakcast.client.guard.asking import Asking
from peakcast.client.guard.deciding import Decider
from peakcast.client.guard.plan_backend import PlanBackend
from peakcast.client.guard.policy import DEFAULT_PLANS, Policy
from peakcast.client.guard.question import Call
from peakcast.client.guard.segment import Segment
from peakcast.client.guard.verdict import Verdict
from peakcast.featurizer.plans import Plan, parse_plan

_log = logging.getLogger("peakcast")
_GIB = 1 << 30
_SEGMENT_PLANS = tuple(plan for plan in DEFAULT_PLANS if plan == "eager" or plan.startswith("inductor"))
_OPTIONS = ("server", "token", "risk")
_said: set[str] = set()


def peakcast(graph: fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
    """Compile a segment under the plan that fits: as asked, under a smaller budget, or not at all.

    `torch.compile(..., options={"server": url, "risk": 0.05})` says whom to ask, and at which risk; by default
    `PEAKCAST_SERVER`, else the predictor of this process.

    Raises:
        ValueError: for an option that is none of these.
    """
    active = active_plan.current()
    if active is not None:
        plan = parse_plan(active.plan)
        # A guard's hybrid plan compiles what it compiles: blocks, like this one.
        plan = Plan("inductor") if plan.compiler == "hybrid" else plan
        return _compiled(graph, example_inputs, plan, compiling=active.compiling)
    options = dict(kwargs.get("options") or {})
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        raise ValueError(f"unknown option {unknown[0]!r} of backend peakcast; allowed: {', '.join(_OPTIONS)}")
    verdict = _verdict(graph, example_inputs, options)
    return _compiled(graph, example_inputs, parse_plan(verdict.plan))


def _compiled(
    graph: fx.GraphModule,
    example_inputs: Sequence[Any],
    plan: Plan,
    *,
    compiling: active_plan.Compiling | None = None,
) -> Any:
    return PlanBackend(plan, compiling=compiling)(graph, example_inputs) if plan.compiled else graph.forward


def _verdict(graph: fx.GraphModule, example_inputs: Sequence[Any], options: Mapping[str, Any]) -> Verdict:
    """Ask about the segment; as the guard does, go on as asked where nobody can say."""
    policy = Policy(plans=_SEGMENT_PLANS, risk=options.get("risk", 0.01), warm_capture=False)
    server = options.get("server") or os.environ.get("PEAKCAST_SERVER")
    asking = Asking(server, token=options.get("token"), time_s=policy.ask_time.total_seconds(), risk=policy.risk)
    decider = Decider(policy.plans, asking, policy, None)
    try:
        verdict = decider.decide(_call(graph, example_inputs))
    except Exception as error:  # noqa: BLE001  (fails open: nothing that asking does may stop the compile)
        _say("unknown", "no prediction for this segment, so it is compiled as asked: %r", error)
        return Verdict(policy.plans[0], "unknown", repr(error))
    finally:
        decider.close()
    told = verdict.prediction()
    if told is not None:
        _say(
            "segment",
            "backend peakcast sees one segment, without loss and optimizer: %s is expected to require %.2f GiB with "
            "AdamW, and at most %.2f; peakcast.guard(model, optimizer) knows the whole step (%s)",
            verdict.plan,
            told.required.expected_bytes / _GIB,
            told.required.upper_bytes / _GIB,
            verdict.reason,
        )
    return verdict


def _call(graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Call:
    segment = Segment(graph, example_inputs)
    learning = [weight for weight in segment.weights if weight.requires_grad]
    takes_gradients = torch.is_grad_enabled() and any(
        isinstance(value, torch.Tensor) and value.requires_grad for value in example_inputs
    )
    # Of the common optimizers none needs more: two moments, and as much again of temporaries.
    optimizer = torch.optim.AdamW(learning or [nn.Parameter(torch.zeros(()))]) if takes_gradients else None
    return Call(segment, segment.arguments, {}, optimizer, None, takes_gradients)


def _say(kind: str, message: str, *values: object) -> None:
    """Say it once in a process for each kind."""
    if kind not in _said:
        _said.add(kind)
        _log.warning(message, *values)
