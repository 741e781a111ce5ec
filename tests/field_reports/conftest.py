"""One process captures all reported workloads; a test asks for the simulated step of one."""

from __future__ import annotations

from pathlib import Path

import pytest
from captured import Captured, Simulated, capture_all
from once import made_once

from peakcast.featurizer.prior import Prior, simulate
from peakcast.featurizer.run import DeviceSpec
from peakcast.models.asked import run_of


@pytest.fixture(scope="session")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Captured:
    """Give the graphs of `reported_workloads.py`."""
    script = Path(__file__).with_name("capture_reported.py")
    return Captured(made_once(tmp_path_factory, "reported", lambda folder: capture_all(folder, script)))


@pytest.fixture(scope="session")
def simulated(reported: Captured) -> Simulated:
    """Give the simulation of a reported workload."""

    def simulate_one(name: str, plan: str = "eager", *, device: str = "NVIDIA H200", **run: str) -> Prior:
        spec = reported.spec(name)
        asked = run_of(spec).model_copy(update=run)
        return simulate(spec, plan, asked, DeviceSpec(name=device))

    return simulate_one
