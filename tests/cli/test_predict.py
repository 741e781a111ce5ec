"""`peakcast capture` and `peakcast predict` on a real workload, told right things."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import Served, serving

from peakcast.client.commands.render import bytes_text
from peakcast.client.graph_file import read_graph
from peakcast.models.prediction import Prediction

ROOT = Path(__file__).parents[2]
WORKLOAD = f"{ROOT / 'examples' / 'small_network.py'}:workload"


def peakcast(*arguments: str, code: int = 0, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own and check its exit code."""
    command = [sys.executable, "-m", "peakcast", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, cwd=cwd)
    assert ran.returncode == code, ran.stderr
    return ran


def numbers(text: str) -> dict[str, Any]:
    """Return a `--json` reply without what differs from call to call."""
    return {key: value for key, value in json.loads(text).items() if key != "elapsed_ms"}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Capture the small network once, packed by xz."""
    path = tmp_path_factory.mktemp("captured") / "graph.json.xz"
    told = json.loads(peakcast("capture", WORKLOAD, "-o", str(path), "--json").stdout)
    assert told["output"] == str(path)
    assert told["bytes"] == path.stat().st_size
    assert set(told["nodes"]) == {"eager", "inductor"}
    assert told["graph_id"] == read_graph(path).graph_id
    return path


@pytest.fixture(scope="module")
def service() -> Iterator[Served]:
    """Give a running service."""
    with serving() as served:
        yield served


def test_json_is_the_prediction_and_nothing_else(graph: Path) -> None:
    """With `--json` stdout is one document, the whole prediction."""
    ran = peakcast("predict", str(graph), "--device-memory", "80GiB", "--json")
    prediction = Prediction.model_validate_json(ran.stdout)
    assert [plan.plan for plan in prediction.plans] == ["eager", "inductor"]
    assert prediction.decision.action in {"compile", "fall_back"}
    assert all(plan.fits for plan in prediction.plans)


def test_people_get_tables_with_the_same_numbers(graph: Path) -> None:
    """Without it stdout has the plans, the decision and the parts, and stderr nothing."""
    prediction = Prediction.model_validate_json(peakcast("predict", str(graph), "--json").stdout)
    ran = peakcast("predict", str(graph))
    expected_bytes = prediction.plan("eager").steady_allocated.expected_bytes
    mib = f"{expected_bytes / (1 << 20):.1f} MiB"
    gib = f"{expected_bytes / (1 << 30):.3f} GiB"
    assert mib in ran.stdout or gib in ran.stdout
    assert prediction.decision.action.replace("_", " ") in ran.stdout
    assert "optimizer state" in ran.stdout
    assert ran.stderr == ""


@pytest.mark.parametrize("columns", ["80", "120"])
def test_no_number_is_broken_on_a_terminal(graph: Path, columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the width of a usual terminal every plan's bytes stand whole, each with its unit."""
    prediction = Prediction.model_validate_json(peakcast("predict", str(graph), "--json").stdout)
    monkeypatch.setenv("COLUMNS", columns)
    ran = peakcast("predict", str(graph))
    for plan in prediction.plans:
        for quantity in (plan.steady_allocated, plan.steady_reserved, plan.required):
            assert f" {bytes_text(quantity.expected_bytes)} " in ran.stdout
            assert f"≤ {bytes_text(quantity.upper_bytes)} " in ran.stdout


def test_where_nothing_fits_the_exit_code_is_3(graph: Path) -> None:
    """For CI: a card too small is told by the exit code, with the whole answer on stdout."""
    ran = peakcast("predict", str(graph), "--device-memory", "64MiB", "--json", code=3)
    assert json.loads(ran.stdout)["decision"]["action"] == "refuse"
    assert peakcast("predict", str(graph), "--device-memory", "64MiB", code=3).stdout


def test_memory_others_use_counts_against_the_card(graph: Path) -> None:
    """What fits an empty card of 80 GiB does not where others hold all but 64 MiB of it."""
    others = str(80 * (1 << 30) - (64 << 20))
    peakcast("predict", str(graph), "--device-memory", "80GiB", "--used-by-others", others, "--json", code=3)


def test_a_server_says_what_this_process_says(graph: Path, service: Served) -> None:
    """In-process and over HTTP, the first time and by id, the answer is the same."""
    own = numbers(peakcast("predict", str(graph), "--json").stdout)
    for _ in range(2):
        assert numbers(peakcast("predict", str(graph), "--json", "--server", service.url).stdout) == own
    statuses = [event["status"] for event in service.events() if event.get("route") == "/predict"]
    # The service warmed up with this very graph: it is known from the start.
    assert statuses == [200, 200]


def test_a_workload_is_captured_and_predicted_in_one_go(graph: Path) -> None:
    """Given a workload in place of a file, the answer is that for its captured graph."""
    ran = peakcast("predict", WORKLOAD, "--json")
    assert numbers(ran.stdout)["plans"] == numbers(peakcast("predict", str(graph), "--json").stdout)["plans"]


def test_a_module_in_the_current_folder_can_be_named(tmp_path: Path) -> None:
    """`package.module:name` is looked for from where the command is run."""
    package = tmp_path / "project"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "net.py").write_text((ROOT / "examples" / "small_network.py").read_text())
    peakcast("capture", "project.net:workload", "--plans", "eager", "--redact", cwd=tmp_path)
    spec = read_graph(tmp_path / "graph.json")
    assert spec.plans == ("eager",)
    assert spec.lines == ()
