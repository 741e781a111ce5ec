"""`peakcast capture --symbolic` and `peakcast predict --symbol`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from peakcast.client.graph_file import read_graph
from peakcast.featurizer.polynomials import Symbol

WORKLOAD = f"{Path(__file__).parents[2] / 'examples' / 'small_network.py'}:workload"


def peakcast(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own and check its exit code."""
    command = [sys.executable, "-m", "peakcast", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert ran.returncode == code, ran.stderr
    return ran


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Capture the small network, whose function takes the batch, once."""
    path = tmp_path_factory.mktemp("captured") / "graph.json"
    ran = peakcast("capture", WORKLOAD, "-o", str(path), "--plans", "eager", "--symbolic", "batch=2:100000")
    assert "batch: 2 to 100,000, captured at 2,32,257" in ran.stdout
    assert read_graph(path).symbols == {"batch": Symbol(hint=32, min=2, max=100_000)}
    return path


def test_the_prediction_is_for_the_batch_asked_for(graph: Path) -> None:
    """100,000 samples: the hidden layer alone is 256 floats for each, which it keeps for the backward."""
    ran = peakcast("predict", str(graph), "--symbol", "batch=100000", "--device-memory", "80GiB", "--json")
    told = json.loads(ran.stdout)
    assert told["plans"][0]["steady_allocated"]["expected_bytes"] > 4 * 256 * 100_000
    assert told["plans"][0]["confidence"] == "extrapolating"
    assert told["decision"]["largest_batch"] == 100_000


def test_people_are_told_the_largest_batch(graph: Path) -> None:
    """Where nothing fits the exit code is 3, and the largest batch stands beside the reason."""
    ran = peakcast("predict", str(graph), "--symbol", "batch=90000", "--device-memory", "1GiB", code=3)
    words = " ".join(ran.stdout.split())
    found = int(words.partition("largest batch that fits: ")[2].split()[0])
    assert 32 < found < 90_000


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--symbol", "batch=1", "symbols.batch: 1 is not an integer from 2 to 100000"),
        ("--symbol", "length=8", "the graph has no symbol 'length'; it has batch"),
        ("--symbol", "batch=many", "give NAME=NUMBER"),
    ],
)
def test_a_size_that_cannot_be_is_wrong_usage(graph: Path, option: str, value: str, words: str) -> None:
    """The exit code is 2, and the error says what is allowed."""
    assert words in _plain(peakcast("predict", str(graph), option, value, code=2).stderr)


def test_a_range_that_cannot_be_is_wrong_usage() -> None:
    """It is refused before anything is captured."""
    ran = peakcast("capture", WORKLOAD, "--symbolic", "length", code=2)
    assert "allowed: batch, or batch=MIN:MAX such as batch=2:256" in _plain(ran.stderr)


CHUNKED = """
import torch, peakcast
class Chunked(torch.nn.Module):
    def forward(self, x):
        return torch.cat([part.sin() for part in x.split(4)])
def workload():
    return peakcast.Workload(Chunked(), torch.ones(8, 8))
"""


def test_a_step_that_differs_between_batches_is_captured_plainly(tmp_path: Path) -> None:
    """A warning says what differs; predicting at another batch says it again."""
    script = tmp_path / "chunked.py"
    script.write_text(CHUNKED)
    output = tmp_path / "graph.json"
    ran = peakcast("capture", f"{script}:workload", "-o", str(output), "--plans", "eager", "--symbolic", "batch")
    differs = "eager: node 3 is aten.cat.default at batch 8, but aten.sin.default at batch 65"
    assert f"warning: the graph is of one batch only: {differs}" in ran.stderr
    assert not read_graph(output).symbols
    assert differs in _plain(peakcast("predict", str(output), "--symbol", "batch=16", code=2).stderr)


def _plain(text: str) -> str:
    """Return an error panel as one line of words."""
    return " ".join(text.replace("│", " ").split())
