"""One process captures all workloads of these tests."""

from __future__ import annotations

import pytest
from captured import Captured, capture_all


@pytest.fixture(scope="session")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Captured:
    """Give the graphs of `workloads.py`."""
    return capture_all(tmp_path_factory.mktemp("captured"))
