"""What asking costs beside the cold compile that it goes with, on a CUDA device. Two processes for each model.

One trains under a guard, the other compiles the same model without one; both from cold caches.

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
from peakcast.featurizer.capture.workload import Workload
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
    parser.add_argument("--bare", action="store_true", help="with --model: without a guard")
    parser.add_argument("--json", action="store_true", help="a JSON line a model")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("error: the compiles that are timed here are for a CUDA device, and torch sees none", file=sys.stderr)
        return 2
    if options.model is not None:
        print(json.dumps(bare(options.model) if options.bare else guarded(options.model)))
        return 0
    for name in CASES:
        told: dict[str, Any] = {}
        for more in ([], ["--bare"]):
            command = [sys.executable, "-W", "ignore", __file__, "--model", name, *more]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
            if not lines:
                print(f"{name} failed: {done.stderr.strip()[-500:]}", file=sys.stderr)
                return 1
            told |= json.loads(lines[-1])
        told["share_of_bare_compile"] = round(told["first_step_s"] / told["bare_first_step_s"] - 1, 3)
        print(json.dumps(told) if options.json else as_text(told), flush=True)
    return 0


def on_the_card(name: str) -> Workload:
    """Build one model's training."""
    with torch.device("cuda"):
        workload = build(CASES[name], place=settle)
    assert workload.model is not None
    return workload


def bare(name: str) -> dict[str, Any]:
    """Compile and take the first step without a guard, from a cold cache."""
    from torch._inductor.utils import fresh_cache

    workload = on_the_card(name)
    with fresh_cache():
        time.sleep(LOADING_S)
        workload.model.compile()
        started_s = time.perf_counter()
        workload.run()
        torch.cuda.synchronize()
        return {"bare_first_step_s": round(time.perf_counter() - started_s, 2)}


def guarded(name: str) -> dict[str, Any]:
    """Train under the guard from a cold cache, and tell waiting for the answer from compiling."""
    from torch._inductor.utils import fresh_cache

    workload = on_the_card(name)
    policy = Policy(plans=("inductor", "eager"))
    with fresh_cache(), peakcast.guard(workload.model, workload.optimizer, policy=policy) as guard:
        time.sleep(LOADING_S)
        started_s = time.perf_counter()
        guard.step(workload.run)
        torch.cuda.synchronize()
        first_s = time.perf_counter() - started_s
        verdict = guard.decision
        assert verdict is not None
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
        "waited_s": round(verdict.waited_s, 2),
        "first_step_s": round(first_s, 2),
        "waiting_share_of_compile": round(verdict.waited_s / (first_s - verdict.waited_s), 3),
        "guarded_step_ms": round(sorted(step_ms)[CALLS // 2], 2),
        "after_the_guard_step_ms": round(sorted(bare_ms)[CALLS // 2], 2),
        "torch": torch.__version__,
        "card": torch.cuda.get_device_name(0),
    }


def as_text(told: dict[str, Any]) -> str:
    """Return one model's costs as a line for people."""
    return (
        f"{told['model']}: {told['nodes']} nodes, asking {told['captured_s'] + told['asked_s']:.2f} s, of which "
        f"{told['waited_s']:.2f} s were waited for, {told['waiting_share_of_compile']:.0%} of the cold compile and "
        f"first step; both took {told['first_step_s']:.1f} s, {told['bare_first_step_s']:.1f} s without one; a step "
        f"{told['guarded_step_ms']} ms under the guard"
    )


if __name__ == "__main__":
    sys.exit(main())
