"""`peakcast replay` and `peakcast predict --exact` on a real workload."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from peakcast.client.facts import run_of
from peakcast.client.graph_file import read_graph
from peakcast.featurizer.prior import simulate
from peakcast.featurizer.run import DeviceSpec
from peakcast.models.prediction import Prediction

ROOT = Path(__file__).parents[2]
WORKLOAD = f"{ROOT / 'examples' / 'small_network.py'}:workload"


def peakcast(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own and check its exit code."""
    command = [sys.executable, "-m", "peakcast", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert ran.returncode == code, ran.stderr
    return ran


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Replay the small network once: the graph file, and what was told as JSON."""
    path = tmp_path_factory.mktemp("replayed") / "graph.json.gz"
    ran = peakcast("replay", WORKLOAD, "--plan", "inductor,eager", "-o", str(path), "--json")
    return path, ran.stdout


def test_json_tells_each_plan_how_it_was_found(replayed: tuple[Path, str]) -> None:
    """The compiled plan was replayed, eager traced; the bytes are those simulated over the graph that was written."""
    path, text = replayed
    told = json.loads(text)
    spec = read_graph(path)
    assert told["graph_id"] == spec.graph_id
    assert {row["plan"]: row["how"] for row in told["plans"]} == {"inductor": "replayed", "eager": "traced"}
    for row in told["plans"]:
        prior = simulate(spec, row["plan"], run_of(spec), DeviceSpec())
        steady = row["steady_allocated_bytes"]
        assert steady["expected"] == prior.steady_allocated_bytes
        assert steady["lower"] <= steady["expected"] <= steady["upper"]
        assert row["reason"] is None


def test_a_replayed_graph_is_predicted_like_any_other(replayed: tuple[Path, str]) -> None:
    """The file goes into `predict`, which takes the replayed plan as simulated."""
    path, _ = replayed
    prediction = Prediction.model_validate_json(peakcast("predict", str(path), "--json").stdout)
    spec = read_graph(path)
    (plan,) = (plan for plan in prediction.plans if plan.plan == "inductor")
    assert (
        plan.steady_allocated.expected_bytes
        == simulate(spec, "inductor", run_of(spec), DeviceSpec()).steady_allocated_bytes
    )


def test_exact_wants_the_workload_itself(replayed: tuple[Path, str]) -> None:
    """A graph holds no model to run the compiler on."""
    path, _ = replayed
    assert "name the workload" in " ".join(peakcast("predict", str(path), "--exact", code=2).stderr.split())


def test_exact_out_of_time_answers_by_the_rules() -> None:
    """A replay that does not end is given up; the prediction comes all the same, and stderr says why."""
    ran = peakcast("predict", WORKLOAD, "--exact", "--replay-timeout", "1", "--plans", "inductor", "--json")
    assert "not replayed, by the rules: inductor (the capture did not end within 1 s)" in ran.stderr
    assert [plan.plan for plan in Prediction.model_validate_json(ran.stdout).plans] == ["inductor"]
