"""One process replays all workloads of these tests."""

from __future__ import annotations

import pytest
from once import made_once
from replay_of import Replays, replay_all


@pytest.fixture(scope="session")
def replays(tmp_path_factory: pytest.TempPathFactory) -> Replays:
    """Give the replays of `replay_workloads.py`."""
    return Replays(made_once(tmp_path_factory, "replays", replay_all))
