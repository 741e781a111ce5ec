"""The examples: captured, predicted, and shown by the demo."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from peakcast.featurizer.capture import capture_workload
from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.vocabulary import OPTIMIZER_STATE, PARAMETER
from peakcast.service.examples import example_request

EXAMPLES = Path(__file__).parents[2] / "examples"
# GPT-2 small: 12 layers of width 768, 50,257 tokens, 1,024 positions; the head shares the token embedding.
BLOCK = 12 * 768 * 768 + 13 * 768
PARAMETERS = 50_257 * 768 + 1024 * 768 + 12 * BLOCK + 2 * 768


def test_the_small_network_is_the_example_of_the_service() -> None:
    """The OpenAPI example is what capturing the example gives."""
    spec = capture_workload(f"{EXAMPLES / 'small_network.py'}:workload", plans=["eager", "inductor"])
    assert spec.graph_id == GraphSpec.from_json(example_request()["graph"]).graph_id


def test_gpt2_small_is_captured_whole() -> None:
    """124,439,808 parameters in fp32, the tied head counted once, and two AdamW moments of the same size."""
    spec = capture_workload(f"{EXAMPLES / 'gpt2_small.py'}:workload", plans=["eager"])
    storages = spec.traces["eager"].storages
    parameters_bytes = int(storages.bytes[storages.role == PARAMETER].sum())
    state_bytes = int(storages.bytes[storages.role == OPTIMIZER_STATE].sum())
    assert PARAMETERS == 124_439_808
    # Allocations are told rounded up by less than 512 bytes each, for 148 parameters.
    assert 4 * PARAMETERS <= parameters_bytes < 4 * PARAMETERS + 148 * 512
    assert 8 * PARAMETERS <= state_bytes < 8 * PARAMETERS + 3 * 148 * 512
    assert {key: spec.captured_with[key] for key in ("task", "optimizer", "autocast")} == {
        "task": "training",
        "optimizer": "AdamW",
        "autocast": "bfloat16",
    }


@pytest.mark.slow
def test_the_demo_predicts_what_was_measured(tmp_path: Path) -> None:
    """`examples/demo.sh` ends with 0, and its expected peaks are within 5 % of the measured ones."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = [str(EXAMPLES / "demo.sh"), "--keep", "--log", str(tmp_path / "log")]
    ran = subprocess.run(
        command,
        env={**os.environ, "PATH": path, "COLUMNS": "160"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    pid = re.search(r"kill (\d+)", ran.stdout)
    assert pid is not None
    try:
        differences = [float(percent) for percent in re.findall(r"([+-]\d+\.\d)%", ran.stdout)]
        assert len(differences) == 2
        assert all(abs(difference) <= 5.0 for difference in differences), ran.stdout
        line = re.search(r"curl -s (\S+) -H '([\w-]+): (\S+)' -d '(.*)'", ran.stdout)
        assert line is not None
        asked = urllib.request.Request(line[1], line[4].encode(), {line[2]: line[3]})  # noqa: S310 - the demo's server
        with urllib.request.urlopen(asked, timeout=30) as reply:  # noqa: S310 - the same
            assert [plan["plan"] for plan in json.load(reply)["plans"]] == ["eager", "inductor"]
    finally:
        os.kill(int(pid[1]), 15)
