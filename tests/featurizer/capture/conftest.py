"""One process captures all workloads of these tests."""

from __future__ import annotations

import pytest
from captured import Captured, capture_all
from once import made_once


@pytest.fixture(scope="session")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Captured:
    """Give the graphs of `workloads.py`."""
    return Captured(made_once(tmp_path_factory, "captured", capture_all))
