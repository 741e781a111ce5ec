"""Replay a workload for the command line: exact where it can be, the rules where it cannot, and a word on why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from peakcast.client.commands.capture import capture_with_progress, check_workload_name
from peakcast.featurizer.plans import parse_plan
from peakcast.featurizer.spec import GraphSpec

if TYPE_CHECKING:
    from peakcast.featurizer.capture.replay import Replayed

How = Literal["replayed", "traced", "rules"]

ReplayTimeout = Annotated[
    float, typer.Option("--replay-timeout", min=1.0, help="Seconds the replay of all plans has; then the rules answer.")
]


def replay_with_progress(workload: str, plans: Sequence[str], *, timeout_sec: float) -> Replayed:
    """Replay in a fresh process, telling on stderr how far it is; where that cannot be, capture as ever.

    Raises:
        typer.BadParameter: if the text cannot name a workload.
        CaptureError: if the workload or its capture fails.
    """
    from peakcast.featurizer.capture.replay import Replayed, ReplayUnavailable, replay_workload

    check_workload_name(workload)
    console = Console(stderr=True, highlight=False)
    try:
        with console.status(f"starting the replay of {workload}") as status:
            return replay_workload(workload, plans, timeout_sec=timeout_sec, progress=status.update)
    except ReplayUnavailable as error:
        reason = str(error)
    spec = capture_with_progress(workload, list(plans))
    return Replayed(spec, failed={plan: reason for plan in spec.traces if parse_plan(plan).compiled})


def how(spec: GraphSpec, plan: str) -> How:
    """Say where the lifetimes of a plan's trace come from: the compiler's own code, an eager step, or the rules."""
    if spec.traces[plan].replayed:
        return "replayed"
    return "rules" if parse_plan(plan).compiled else "traced"


def tell_failures(found: Replayed) -> None:
    """Say on stderr which plans the rules answer for, and why."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    for reason in dict.fromkeys(found.failed.values()):
        plans = ", ".join(plan for plan, said in found.failed.items() if said == reason)
        console.print(f"not replayed, by the rules: {plans} ({reason})", markup=False)
