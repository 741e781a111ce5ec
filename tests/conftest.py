"""What every test stands on: one thread a worker, no network, and deterministic property tests."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Before numpy and torch are imported: two workers with two threads each only get into each other's way.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
# A pool of compiling processes for each of them costs more than it gains.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
# A test that would fetch weights fails at once, whatever the network.
os.environ["HF_HUB_OFFLINE"] = "1"

# No deadline: a slow machine is no failure. Derandomised, so that a red run is red again.
settings.register_profile(
    "peakcast", deadline=None, derandomize=True, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("peakcast")

ROOT = Path(__file__).parents[1]


def pytest_collection_finish() -> None:
    """Let no collection go through what was imported: many tests, and every capture, collect."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def root() -> Path:
    """Give the top of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def data() -> Path:
    """Give the folder of committed test data."""
    return ROOT / "tests" / "data"
