"""WORKLOAD on the command line: the two forms, and what is said when it names nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from peakcast.featurizer.capture.target import load_target


@pytest.fixture(autouse=True)
def _own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the path: loading a file puts its folder there, as running it would."""
    monkeypatch.setattr(sys, "path", [*sys.path])


def test_a_file_finds_its_neighbours(tmp_path: Path) -> None:
    """`path/to/file.py:name` runs like a script: modules beside it can be imported."""
    (tmp_path / "beside_it.py").write_text("ANSWER = 42\n")
    (tmp_path / "script_a.py").write_text("from beside_it import ANSWER\ndef workload():\n    return ANSWER\n")
    assert load_target(f"{tmp_path}/script_a.py:workload")() == 42


def test_a_module_of_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`package.module:name` looks in the current folder."""
    (tmp_path / "loads_of_work").mkdir()
    (tmp_path / "loads_of_work" / "small.py").write_text("def one():\n    return 1\n")
    monkeypatch.chdir(tmp_path)
    assert load_target("loads_of_work.small:one")() == 1


@pytest.mark.parametrize("target", ["", "module", "module:", ":name", "module:two words", "file.py"])
def test_neither_form(target: str) -> None:
    """The two forms are named."""
    with pytest.raises(ValueError, match=r"package\.module:name or path/to/file\.py:name, not"):
        load_target(target)


def test_no_such_file() -> None:
    """The file is named."""
    with pytest.raises(ValueError, match=r"no such file: nowhere\.py"):
        load_target("nowhere.py:workload")


def test_no_such_module() -> None:
    """The module is named, and where it was looked for."""
    with pytest.raises(ValueError, match=r"no module named .no_such_package\.x. .looked in the current folder"):
        load_target("no_such_package.x:workload")


def test_no_such_function(tmp_path: Path) -> None:
    """The functions that are there are offered."""
    (tmp_path / "script_b.py").write_text("VALUE = 1\ndef small():\n    pass\ndef large():\n    pass\n")
    with pytest.raises(ValueError, match="has no function 'medium'; it has: large, small"):
        load_target(f"{tmp_path}/script_b.py:medium")


def test_no_function_at_all(tmp_path: Path) -> None:
    """A value is not a function."""
    (tmp_path / "script_c.py").write_text("VALUE = 1\n")
    with pytest.raises(ValueError, match="has no function 'VALUE'; it has: none"):
        load_target(f"{tmp_path}/script_c.py:VALUE")


def test_an_import_that_fails_inside_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that is there but imports one that is not raises that error."""
    (tmp_path / "imports_nothing.py").write_text("import not_there_at_all\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all"):
        load_target("imports_nothing:workload")
