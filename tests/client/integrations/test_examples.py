"""The guard under other people's loops: the examples run as they are, on the CPU, against a real service."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import Served, serving

EXAMPLES = Path(__file__).parents[3] / "examples"
# The CPU build's torchvision lacks operators, without which transformers' and Lightning's imports fail.
PROGRAM = """
import runpy, sys
from peakcast.featurizer.capture.torchvision_ops import define_missing_operators
define_missing_operators()
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def service() -> Iterator[Served]:
    """Give a running service."""
    with serving() as served:
        yield served


def run(name: str, *options: str) -> tuple[float, str]:
    """Run an example; return the last loss that it prints, and the rest of that line."""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, str(EXAMPLES / f"{name}.py"), *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = re.findall(r"loss ([\d.]+), (.*)", ran.stdout)
    assert found, ran.stdout
    return float(found[-1][0]), found[-1][1]


@pytest.mark.parametrize("name", ["guard_trainer", "guard_lightning", "guard_accelerate"])
def test_a_loop_asks_and_runs_the_plan(name: str, service: Served) -> None:
    """Each loop's model is captured whole, asked about, and trained under the plan decided on."""
    _, decision = run(name, "--server", service.url, "--plans", "eager,eager:checkpoint")
    # The networks of Lightning's and accelerate's examples repeat layers, GPT-2 blocks: checkpointing can be put on.
    assert decision == "decision: fall_back eager"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["guard_trainer", "guard_lightning", "guard_accelerate"])
def test_the_compiled_loop_reaches_eagers_loss(name: str) -> None:
    """Compiled under the guard a loop ends at the loss that it ends at eagerly."""
    eager, _ = run(name, "--plans", "eager")
    compiled, decision = run(name, "--plans", "inductor,eager")
    assert decision == "decision: compile inductor"
    assert compiled == pytest.approx(eager, abs=2e-4)


@pytest.mark.slow
def test_the_loop_of_ones_own_runs() -> None:
    """The example of a plain loop trains under the plan wanted."""
    loss, plan = run("guard_loop", "--batch", "8")
    assert plan == "plan inductor"
    assert 0 < loss < 10
