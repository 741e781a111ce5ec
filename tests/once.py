"""Work that is done once, by whichever process of the tests comes first."""

from __future__ import annotations

import fcntl
import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_LOAD_LOOPS = "from peakcast.models import compiled; compiled.load()"


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder of this run of the tests that `make` has filled; all workers get the same one."""
    base = factory.getbasetemp()
    run = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = run / name
    with _locked(run / f"{name}.lock"):
        if not folder.exists():
            # Under its name only once it is whole: where `make` fails, the next worker says so too.
            unfinished = factory.mktemp(name)
            make(unfinished)
            unfinished.rename(folder)
    return folder


@functools.cache
def compile_loops() -> None:
    """Fill numba's cache. A service that is stopped while it does so ends late, and the next one begins again."""
    with _locked(Path(tempfile.gettempdir(), f"peakcast-loops-{os.getuid()}.lock")):
        subprocess.run([sys.executable, "-W", "ignore", "-c", _LOAD_LOOPS], check=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
