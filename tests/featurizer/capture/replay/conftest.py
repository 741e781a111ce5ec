"""One process replays all workloads of these tests."""

from __future__ import annotations

import pytest
from replay_of import Replays, replay_all


@pytest.fixture(scope="session")
def replays(tmp_path_factory: pytest.TempPathFactory) -> Replays:
    """Give the replays of `replay_workloads.py`."""
    return replay_all(tmp_path_factory.mktemp("replays"))
