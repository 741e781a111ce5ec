"""One table of everything that was timed, printed at the end: `make bench ARGS="--json bench.json"` also writes it."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from bench.timing import Row, table

from peakcast.models import compiled

ROWS = pytest.StashKey[list[Row]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that writes the table for machines."""
    parser.addoption("--json", metavar="PATH", help="write the rows of the table as JSON, too")


def pytest_configure(config: pytest.Config) -> None:
    """Start an empty table."""
    config.stash[ROWS] = []


@pytest.fixture(scope="session")
def rows(pytestconfig: pytest.Config) -> list[Row]:
    """Give the rows that the table is made of."""
    return pytestconfig.stash[ROWS]


@pytest.fixture(scope="session", params=[False, True], ids=["python", "compiled"])
def is_compiled(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Run once in Python and once with the loops compiled, where numba is installed."""
    if request.param and not compiled.load():
        pytest.skip("numba is not installed")
    yield request.param
    compiled.unload()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table, and write it where `--json` says."""
    found = config.stash[ROWS]
    if not found:
        return
    terminalreporter.write_line("")
    for line in table(found):
        terminalreporter.write_line(line)
    path = config.getoption("--json")
    if path:
        about = {"machine": platform.machine(), "python": platform.python_version()}
        Path(path).write_text(json.dumps({**about, "rows": [asdict(row) for row in found]}, indent=1) + "\n")
