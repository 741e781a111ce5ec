"""The names of `import peakcast`, and what importing them costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import peakcast

HEAVY = ("torch", "lightgbm", "fastapi", "sklearn", "scipy")


def _imported_by(code: str, cwd: Path) -> set[str]:
    """Run `code` in a fresh interpreter and return which heavy modules it pulled in."""
    report = f"{code}\nimport sys\nprint(*sorted(set({HEAVY!r}) & set(sys.modules)))"
    # -P: the current folder stays off the path, so only the installed package can answer.
    run = subprocess.run([sys.executable, "-P", "-c", report], cwd=cwd, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split())


def test_importing_peakcast_pulls_in_nothing_heavy(tmp_path: Path) -> None:
    """`import peakcast` leaves torch, LightGBM and FastAPI alone."""
    assert _imported_by("import peakcast", tmp_path) == set()


@pytest.mark.parametrize("name", ["GraphSpec", "RunSpec", "DeviceSpec", "Prediction", "predict"])
def test_a_name_that_reads_graphs_needs_no_heavy_package(name: str, tmp_path: Path) -> None:
    """A client that only sends a graph runs on the base install."""
    assert _imported_by(f"from peakcast import {name}", tmp_path) == set()


def test_capture_brings_torch_and_no_more(tmp_path: Path) -> None:
    """Capture needs torch and neither the learners nor the web framework."""
    assert _imported_by("from peakcast import capture, Workload", tmp_path) == {"torch"}


@pytest.mark.parametrize("name", peakcast.__all__)
def test_every_public_name_is_there(name: str) -> None:
    """Each name in `__all__` resolves, is listed by `dir`, and resolves to the same object again."""
    value = getattr(peakcast, name)
    assert value is not None
    assert name in dir(peakcast)
    assert getattr(peakcast, name) is value


def test_an_unknown_name_is_an_attribute_error() -> None:
    """A typo answers as any module does."""
    with pytest.raises(AttributeError, match="no attribute 'predikt'"):
        peakcast.predikt  # noqa: B018 - the access is the test
