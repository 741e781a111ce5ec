"""Train on a card that is too small for the plan wanted, with and without the guard. Needs a CUDA device.

Without --scenario every one is run, each run in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch

import peakcast
from peakcast.client.measure import settle
from peakcast.training.zoo import Case, build

GIB = 1 << 30
STEPS = 5


@dataclass(frozen=True, slots=True)
class Scenario:
    """A training that does not fit as it is wanted.

    Args:
        story: what the limit is for.
        case: what is trained.
        wanted: the plan a script without the guard runs.
        limit_gib: all that the process may take on the card.
        taken_gib: what the process takes for itself once the plan is settled, so that a step runs out all the same.
    """

    story: str
    case: Case
    wanted: str
    limit_gib: float
    taken_gib: float = 0.0


SCENARIOS = {
    "compiled-needs-more": Scenario(
        "fits eager, not compiled", Case("ast_small", 32, "none"), wanted="inductor", limit_gib=2.9
    ),
    "eager-needs-more": Scenario(
        "fits compiled, not eager", Case("gpt2_small", 8, "bfloat16"), wanted="eager", limit_gib=6.0
    ),
    "budget": Scenario(
        "fits compiled under an activation budget alone",
        Case("gpt2_small", 8, "bfloat16"),
        wanted="inductor",
        limit_gib=4.3,
    ),
    "rescue": Scenario(
        "fits until the process takes more itself",
        Case("gpt2_small", 8, "bfloat16"),
        wanted="inductor",
        limit_gib=8.0,
        taken_gib=4.1,
    ),
}


def main() -> int:
    """Run one scenario in this process, or all of them in processes of their own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenario", choices=SCENARIOS, help="run this one here")
    parser.add_argument("--guard", action="store_true", help="with --scenario: under the guard")
    parser.add_argument("--json", action="store_true", help="one JSON line a run")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("error: this example limits a card and trains on it, and torch sees no CUDA device", file=sys.stderr)
        return 2
    if options.scenario is not None:
        print(json.dumps(run(options.scenario, guarded=options.guard)))
        return 0
    for name in SCENARIOS:
        for extra in ([], ["--guard"]):
            command = [sys.executable, "-W", "ignore", __file__, "--scenario", name, *extra]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
            told = json.loads(lines[-1]) if lines else {"scenario": name, "died": done.stderr.strip()[-300:]}
            print(json.dumps(told) if options.json else as_text(told), flush=True)
    return 0


def run(name: str, *, guarded: bool) -> dict[str, Any]:
    """Train for some steps under the limit, and tell how it went."""
    scenario = SCENARIOS[name]
    total_bytes = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(scenario.limit_gib * GIB / total_bytes)
    with torch.device("cuda"):
        workload = build(scenario.case, place=settle)
    torch.cuda.reset_peak_memory_stats()
    told: dict[str, Any] = {
        "scenario": name,
        "guard": guarded,
        "limit_gib": scenario.limit_gib,
        "torch": torch.__version__,
        "card": torch.cuda.get_device_name(0),
    }
    train = train_guarded if guarded else train_plain
    try:
        told.update(train(scenario, workload))
    except torch.OutOfMemoryError as error:
        told["died"] = str(error).splitlines()[0]
    told["peak_allocated_gib"] = round(torch.cuda.max_memory_allocated() / GIB, 3)
    return told


def train_plain(scenario: Scenario, workload: peakcast.Workload) -> dict[str, Any]:
    """Train as a script without the guard does: under the plan wanted."""
    assert workload.model is not None
    if scenario.wanted == "inductor":
        workload.model.compile()
    taken, seconds = [], []
    for step in range(STEPS):
        started_s = time.perf_counter()
        workload.run()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started_s)
        if step == 1 and scenario.taken_gib:
            taken.append(torch.empty(int(scenario.taken_gib * GIB), dtype=torch.uint8, device="cuda"))
    return {"plan": scenario.wanted, "steps": STEPS, "step_ms": round(1000 * min(seconds), 1)}


def train_guarded(scenario: Scenario, workload: peakcast.Workload) -> dict[str, Any]:
    """Train under the guard, which predicts in this process."""
    assert workload.model is not None
    taken, seconds = [], []
    with peakcast.guard(workload.model, workload.optimizer) as guard:
        for step in range(STEPS):
            started_s = time.perf_counter()
            guard.step(workload.run)
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - started_s)
            if step == 1 and scenario.taken_gib:
                taken.append(torch.empty(int(scenario.taken_gib * GIB), dtype=torch.uint8, device="cuda"))
        decision = guard.decision
        assert decision is not None
        return {
            "plan": guard.plan,
            "reason": decision.reason,
            "steps": STEPS,
            "step_ms": round(1000 * min(seconds), 1),
            "first_step_s": round(seconds[0], 1),
            "required_gib": {plan: round(size / GIB, 2) for plan, size in decision.required.items()},
            "counts": dict(guard.counts),
        }


def as_text(told: dict[str, Any]) -> str:
    """Return one run as two lines for people."""
    how = "with the guard" if told.get("guard") else "without"
    head = f"{told['scenario']}, {how}, {told.get('limit_gib', 0):.1f} GiB: "
    if "died" in told:
        return f"{head}DIED: {told['died']}"
    peak = f"peak {told['peak_allocated_gib']:.2f} GiB, {told['step_ms']:.0f} ms a step"
    return f"{head}{told['steps']} steps under {told['plan']}, {peak}\n    {told.get('reason', '')}"


if __name__ == "__main__":
    sys.exit(main())
