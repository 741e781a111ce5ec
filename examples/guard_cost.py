"""What asking costs beside the cold compile that it precedes, on a CUDA device. A process for each model.

Run it as `python examples/guard_cost.py`; --json prints a line a model.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

import torch

import peakcast
from peakcast.client.guard.policy import Policy
from peakcast.client.measure import settle
from peakcast.training.zoo import Case, build

CASES = {
    "gpt2_small": Case("gpt2_small", 8, "bfloat16"),
    "bert_base": Case("bert_base", 8, "none"),
    "t5_small": Case("t5_small", 4, "none"),
    "resnet50": Case("resnet50", 32, "bfloat16"),
}
# A training loads its data between the guard and the first step; the capturing process imports torch meanwhile.
LOADING_S = 15
CALLS = 200


def main() -> int:
    """Run one model in this process, or all of them in processes of their own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=CASES, help="run this one here")
    parser.add_argument("--json", action="store_true", help="a JSON line a model")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("error: the compiles that are timed here are for a CUDA device, and torch sees none", file=sys.stderr)
        return 2
    if options.model is not None:
        print(json.dumps(run(options.model)))
        return 0
    for name in CASES:
        command = [sys.executable, "-W", "ignore", __file__, "--model", name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if not lines:
            print(f"{name} failed: {done.stderr.strip()[-500:]}", file=sys.stderr)
            return 1
        print(lines[-1] if options.json else as_text(json.loads(lines[-1])), flush=True)
    return 0


def run(name: str) -> dict[str, Any]:
    """Train under the guard from a cold cache, and tell asking from compiling."""
    from torch._inductor.utils import fresh_cache

    with torch.device("cuda"):
        workload = build(CASES[name], place=settle)
    assert workload.model is not None
    policy = Policy(plans=("inductor", "eager"))
    with fresh_cache(), peakcast.guard(workload.model, workload.optimizer, policy=policy) as guard:
        time.sleep(LOADING_S)
        started_s = time.perf_counter()
        guard.step(workload.run)
        torch.cuda.synchronize()
        first_s = time.perf_counter() - started_s
        verdict = guard.decision
        assert verdict is not None
        asking_s = verdict.captured_s + verdict.asked_s
        step_ms = []
        for _ in range(CALLS):
            started_s = time.perf_counter()
            guard.step(workload.run)
            torch.cuda.synchronize()
            step_ms.append(1000 * (time.perf_counter() - started_s))
    bare_ms = []
    for _ in range(CALLS):
        started_s = time.perf_counter()
        workload.run()
        torch.cuda.synchronize()
        bare_ms.append(1000 * (time.perf_counter() - started_s))
    return {
        "model": name,
        "plan": verdict.plan,
        "nodes": len(verdict.specs[0].traces["inductor"]) if verdict.specs else None,
        "captured_s": round(verdict.captured_s, 2),
        "asked_s": round(verdict.asked_s, 3),
        "first_step_s": round(first_s, 2),
        "asking_share_of_compile": round(asking_s / (first_s - asking_s), 3),
        "guarded_step_ms": round(sorted(step_ms)[CALLS // 2], 2),
        "after_the_guard_step_ms": round(sorted(bare_ms)[CALLS // 2], 2),
        "torch": torch.__version__,
        "card": torch.cuda.get_device_name(0),
    }


def as_text(told: dict[str, Any]) -> str:
    """Return one model's costs as a line for people."""
    share = told["asking_share_of_compile"]
    return (
        f"{told['model']}: {told['nodes']} nodes, asking {told['captured_s'] + told['asked_s']:.2f} s, "
        f"{share:.0%} of the cold compile and first step; a step {told['guarded_step_ms']} ms under the guard"
    )


if __name__ == "__main__":
    sys.exit(main())
