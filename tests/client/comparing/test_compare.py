"""`peakcast compare`: the predicted half anywhere, both halves on a GPU, and what each number is made of."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from peakcast.cli import app
from peakcast.client.comparing.compare_worker import folder_bytes, graph_pool_bytes, peaks
from peakcast.client.comparing.comparison import PEAKS, Measurement, PlanComparison, comparison_table, plot_comparison
from peakcast.featurizer.capture.isolated import CaptureError, ask_process
from peakcast.models.prediction import Prediction

EXAMPLES = Path(__file__).parents[3] / "examples"
WORKLOAD = f"{EXAMPLES / 'small_network.py'}:workload"
MIB = 1 << 20
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def measurement(**changes: object) -> Measurement:
    """Return a measurement of 100 MiB everywhere, with `changes`."""
    fields: dict[str, object] = {
        "peaks_bytes": dict.fromkeys(PEAKS, 100 * MIB),
        "graph_cache_bytes": 3 * MIB,
        "graph_pool_bytes": 0,
        "pinned_bytes": (8 * MIB, 8 * MIB, 8 * MIB),
        "step_seconds": 0.0125,
    }
    return Measurement(**{**fields, **changes})  # type: ignore[arg-type]


def compare(*arguments: str, columns: int = 120) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does, away from this process's torch."""
    command = [sys.executable, "-m", "peakcast", "compare", *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={**os.environ, "COLUMNS": str(columns), "NO_COLOR": "1"},
    )


@pytest.fixture(scope="module")
def predicted() -> dict[str, object]:
    """Give the predicted half of the small example, as JSON."""
    ran = compare(WORKLOAD, "--predict-only", "--device-memory", "40GiB", "--json")
    assert ran.returncode == 0, ran.stderr
    told: dict[str, object] = json.loads(ran.stdout)
    return told


@pytest.fixture(scope="module")
def prediction() -> Prediction:
    """Give what `peakcast predict` says of the small example."""
    ran = CliRunner().invoke(app, ["predict", WORKLOAD, "--device-memory", "40GiB", "--json"])
    return Prediction.model_validate_json(ran.stdout)


def test_the_predicted_half_is_what_predict_says(predicted: dict[str, object], prediction: Prediction) -> None:
    """Eager and inductor, each with the expected peaks of `peakcast predict`, and nothing measured."""
    plans = predicted["plans"]
    assert isinstance(plans, list)
    assert [each["plan"] for each in plans] == ["eager", "inductor"]
    assert all(each["measured"] is None for each in plans)
    for each in plans:
        expected = prediction.plan(each["plan"])
        for quantity in PEAKS:
            assert each["predicted"][quantity] == getattr(expected, quantity).model_dump()
    assert predicted["epochs"] == 3
    assert predicted["model_version"] == prediction.model_version


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_the_error_says_what_is_needed() -> None:
    """A GPU and a CUDA build, or --predict-only; nothing is captured before."""
    ran = compare(WORKLOAD)
    assert ran.returncode == 1
    assert "needs" not in ran.stdout
    told = " ".join(ran.stderr.split())
    assert "torch sees none here" in told
    assert "CUDA build of torch" in told
    assert "--predict-only" in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--device-memory", "40GiB"], "the GPU here is the card"),
        (["--predict-only", "--plot", "out.pdf"], "must end in .png or .svg"),
        (["--predict-only", "--plot", "nowhere/out.png"], "a folder there is"),
        (["--predict-only", "--plans", "fast"], "unknown plan 'fast'"),
        (["--epochs", "0"], "--epochs"),
    ],
    ids=["card", "pdf", "folder", "plan", "epochs"],
)
def test_wrong_usage_is_told_before_anything_runs(arguments: list[str], told: str) -> None:
    """Exit code 2, with what is allowed."""
    ran = CliRunner().invoke(app, ["compare", WORKLOAD, *arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert ran.exit_code == 2
    assert told in ran.output


def test_pinned_growth_is_told_an_epoch_without_the_first() -> None:
    """8 MiB are made in the first epoch; then each adds 2 MiB. One epoch alone tells nothing."""
    grown = measurement(pinned_bytes=(8 * MIB, 10 * MIB, 12 * MIB, 14 * MIB))
    assert grown.pinned_growth_bytes == 2 * MIB
    assert measurement().pinned_growth_bytes == 0
    assert measurement(pinned_bytes=(8 * MIB,)).pinned_growth_bytes is None
    assert measurement(pinned_bytes=()).pinned_growth_bytes is None
    assert Measurement.from_dict(json.loads(json.dumps(grown.to_dict()))) == grown


def test_only_private_pools_count_as_graph_pools() -> None:
    """As `torch.cuda.memory_snapshot` tells segments."""
    segments = [
        {"total_size": 20 * MIB, "segment_pool_id": (0, 0)},
        {"total_size": 6 * MIB, "segment_pool_id": (0, 1)},
        {"total_size": 2 * MIB, "segment_pool_id": [1, 0]},
        {"total_size": 4 * MIB},
    ]
    assert graph_pool_bytes(segments) == 8 * MIB


def test_the_graph_cache_is_every_file_below_its_folders(tmp_path: Path) -> None:
    """However deep; a folder that is not there, as after an eager run, has none."""
    for name, size_bytes in (("a.so", 700), ("fxgraph/ab/c", 30), ("fxgraph/ab/d/e.py", 4)):
        path = tmp_path / "inductor" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(size_bytes))
    assert folder_bytes(tmp_path / "inductor", tmp_path / "triton") == 734
    assert folder_bytes(tmp_path / "triton") == 0


def test_the_four_peaks_are_taken_from_a_measurement() -> None:
    """And nothing else that was measured."""
    measured = {f"{name}_bytes": index for index, name in enumerate(PEAKS)}
    assert peaks({**measured, "static_bytes": 9}) == dict(zip(PEAKS, range(4), strict=True))


def test_the_table_puts_predicted_beside_measured(prediction: Prediction, tmp_path: Path) -> None:
    """With the difference in per cent; a plan that ran out says so, and its message stands below; and it is drawn."""
    eager, inductor = prediction.plan("eager"), prediction.plan("inductor")
    true_bytes = round(eager.steady_allocated.expected_bytes / 1.25)
    rows = [
        PlanComparison(
            "eager", eager, measurement(peaks_bytes={**dict.fromkeys(PEAKS, 1), "steady_allocated": true_bytes})
        ),
        PlanComparison("inductor", inductor, measurement(peaks_bytes={}, message="OutOfMemoryError: CUDA")),
    ]
    console = Console(width=120, record=True, file=(tmp_path / "log").open("w"))
    console.print(comparison_table(rows, heading="a job"))
    console.file.close()
    text = console.export_text()
    assert "(+25.0%)" in text
    assert text.count("out of memory") == 4
    assert "inductor: OutOfMemoryError: CUDA" in text
    assert "12.5 ms" in text
    plot_comparison(rows, tmp_path / "plot.png", title="a job")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_the_process_that_runs_a_plan_tells_what_stopped_it() -> None:
    """Asked for a run without a GPU, it answers with that, and not with a dead process."""
    request = {"target": WORKLOAD, "plan": "eager", "epochs": 1, "steps": 1}
    with pytest.raises(CaptureError, match="torch sees no CUDA device here"):
        ask_process("peakcast.client.comparing.compare_worker", request, timeout_sec=200)


@on_gpu
@pytest.mark.slow
def test_both_halves_on_a_gpu(tmp_path: Path) -> None:
    """The small example, eager and compiled: measured peaks beside predicted ones, and a cache only where compiled."""
    ran = compare(WORKLOAD, "--json", "--epochs", "2", "--steps", "3", "--plot", str(tmp_path / "plot.png"))
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    eager, inductor = told["plans"]
    assert told["device"]["name"] == torch.cuda.get_device_name()
    assert eager["measured"]["graph_cache_bytes"] == 0
    assert inductor["measured"]["graph_cache_bytes"] > 0
    for each in (eager, inductor):
        measured = each["measured"]["peaks_bytes"]["steady_allocated"]
        assert each["predicted"]["steady_allocated"]["expected_bytes"] == pytest.approx(measured, rel=0.2)
        assert len(each["measured"]["pinned_bytes"]) == 2
    assert (tmp_path / "plot.png").stat().st_size > 1000
