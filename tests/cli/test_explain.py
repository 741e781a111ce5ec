"""`peakcast explain` shows what makes a peak, sets a measured step beside it, and says what it needs to measure one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from handmade import MIB, Sketch
from typer.testing import CliRunner, Result

from peakcast.client.commands.explain import explain_command
from peakcast.client.comparing.allocator_history import FORMAT, Block, Event, History
from peakcast.client.graph_file import write_graph
from peakcast.featurizer.vocabulary import INPUT

ROOT = Path(__file__).parents[2]


def explain(*arguments: str, code: int = 0) -> Result:
    """Run the command in this process."""
    app = typer.Typer()
    app.command()(explain_command)
    result = CliRunner().invoke(app, arguments, catch_exceptions=code == 1)
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """Give a graph of one exponential: 4 MiB in, 4 MiB out."""
    sketch = Sketch()
    x = sketch.start(4 * MIB, INPUT)
    (y,) = sketch.node("aten.exp.default", 4 * MIB, reads=[x])
    sketch.node("aten.sum.default", 512, reads=[y], dies=[y])
    path = tmp_path / "graph.json"
    write_graph(path, sketch.spec())
    return path


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """Give a history of that step in which 2 MiB more lived."""
    events = [
        Event(action="alloc", address=8, bytes=4 * MIB, line="model.py:1"),
        Event(action="alloc", address=16, bytes=2 * MIB, line="model.py:2"),
    ]
    block = Block(address=4, bytes=4 * MIB)
    recorded = History(
        format=FORMAT,
        device="NVIDIA H200",
        torch="2.11.0",
        plan="eager",
        reserved_at_start_bytes=20 * MIB,
        live_at_start=[block],
        events=events,
    )
    path = tmp_path / "history.json"
    path.write_text(recorded.model_dump_json())
    return path


def test_json_holds_the_timeline_and_the_tensors(graph: Path) -> None:
    """8 MiB and 512 bytes at the second node."""
    told = json.loads(explain(str(graph), "--json").stdout)
    assert told["simulated"]["peak_bytes"] == 8 * MIB + 512
    assert told["simulated"]["peak_at"] == 1
    assert [tensor["bytes"] for tensor in told["simulated"]["alive"]] == [4 * MIB, 4 * MIB, 512]
    assert told["simulated"]["alive"][1]["line"] == "model.py:1"
    assert told["measured"] is None


def test_a_measured_step_beside_it_names_the_missing_bytes(graph: Path, history: Path, tmp_path: Path) -> None:
    """2 MiB at line 2 of the model are missing, and both lines are drawn."""
    plot = tmp_path / "steps.png"
    told = json.loads(explain(str(graph), "--measured", str(history), "--plot", str(plot), "--json").stdout)
    assert told["measured"]["peak_bytes"] == 10 * MIB
    (missing,) = told["difference"]["missing"]
    assert (missing["bytes"], missing["line"]) == (2 * MIB, "model.py:2")
    assert told["difference"]["surplus_bytes"] == 512
    assert plot.read_bytes().startswith(b"\x89PNG")
    text = explain(str(graph), "--measured", str(history)).stdout
    assert "lies 2.0 MiB below the measured one" in text.replace("\n", " ")


def test_a_history_of_another_plan_is_refused(graph: Path, history: Path) -> None:
    """Two plans of one model have little in common."""
    result = explain(str(graph), "--measured", str(history), "--plan", "inductor", code=2)
    assert "recorded under eager" in " ".join(result.output.replace("│", " ").split())


def test_a_plan_that_the_graph_lacks_is_refused(graph: Path) -> None:
    """The message says which there are."""
    result = explain(str(graph), "--plan", "inductor", code=2)
    assert "only of eager" in " ".join(result.output.replace("│", " ").split())


def test_without_a_gpu_it_says_what_measuring_needs() -> None:
    """One sentence, and how the recording gets here."""
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    result = explain(f"{ROOT}/examples/small_network.py:workload", "--measure", code=1)
    assert "on a CUDA GPU" in str(result.exception)
    assert "--measured FILE" in str(result.exception)


@pytest.mark.slow
def test_a_step_is_measured_on_a_gpu(tmp_path: Path) -> None:
    """The recording's peak is the allocator's own, and the simulated one lies within 2 % of it."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    kept = tmp_path / "kept.json"
    target = f"{ROOT}/examples/small_network.py:workload"
    told = json.loads(explain(target, "--measure", "--history", str(kept), "--json").stdout)
    assert kept.exists()
    assert told["measured"]["peak_bytes"] == pytest.approx(told["simulated"]["peak_bytes"], rel=0.02)
