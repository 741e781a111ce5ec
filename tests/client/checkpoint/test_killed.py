"""A save that is killed leaves the old checkpoint or the new one, whole; never something between."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def kills(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Give what was found after each kill."""
    script = Path(__file__).with_name("killed_saves.py")
    command = [sys.executable, str(script), str(tmp_path_factory.mktemp("kills"))]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_a_save_killed_before_any_touch_of_the_disk_leaves_a_whole_checkpoint(kills: list[dict[str, Any]]) -> None:
    """At each point where a save opens, makes, renames or removes, the old state or the new one is there, unmixed."""
    touches = [kill for kill in kills if "timed" not in kill]
    # Every point up to the end of a save that ran through, which the last is.
    assert [kill["at"] for kill in touches] == list(range(1, len(touches) + 1))
    assert [kill["killed"] for kill in touches] == [True] * (len(touches) - 1) + [False]
    assert len(touches) > 10
    assert all(kill["after"] in (kill["before"], [float(kill["at"])]) for kill in touches)
    # The rename is one point of many: before it the old state stays, and after it the new one counts.
    outcomes = [kill["after"] != kill["before"] for kill in touches]
    assert outcomes == sorted(outcomes)
    assert 5 < outcomes.index(True) < len(outcomes) - 1


def test_what_killed_saves_left_behind_is_removed_by_the_next(kills: list[dict[str, Any]]) -> None:
    """The save that ran through leaves its manifest and one folder."""
    (finished,) = [kill for kill in kills if kill.get("killed") is False]
    assert finished["left"] == 2


def test_a_save_killed_at_any_time_leaves_a_whole_checkpoint(kills: list[dict[str, Any]]) -> None:
    """Killed after random times, while writing: there is the last save that said it was done, or the next."""
    timed = [kill for kill in kills if "timed" in kill]
    assert len(timed) == 15
    assert all(kill["after"] in ([kill["told"]], [kill["told"] + 1]) for kill in timed)
