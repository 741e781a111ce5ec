"""The command line told wrong things: exit code, what it says on stderr, and an empty stdout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from peakcast.cli import app
from peakcast.client.graph_file import write_graph
from peakcast.featurizer.spec import GraphSpec
from peakcast.service.examples import example_request


def peakcast(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    command = [sys.executable, "-m", "peakcast", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=cwd)


def words(text: str) -> str:
    """Return what a box of the terminal says, without the box."""
    return " ".join(text.replace("│", " ").split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with one good graph file and several bad ones."""
    path = tmp_path_factory.mktemp("graphs")
    write_graph(path / "good.json", GraphSpec.from_json(example_request()["graph"]))
    good = (path / "good.json").read_bytes()
    (path / "cut.json").write_bytes(good[:-30])
    (path / "other.json").write_bytes(b'{"schema": 7}')
    write_graph(path / "good.json.xz", GraphSpec.from_json(good))
    (path / "cut.json.xz").write_bytes((path / "good.json.xz").read_bytes()[:-30])
    (path / "broken.py").write_text("def workload():\n    raise RuntimeError('no data set here')\n")
    (path / "needs.py").write_text("import not_installed_anywhere\n")
    return path


USAGE = [
    (["predit"], "No such command 'predit'. Did you mean 'predict'?"),
    (["predict"], "Missing argument"),
    (["predict", "good.json", "--device-memory", "lots"], "give one such as 80GiB"),
    (["predict", "good.json", "--device-memory", "80"], "did you mean 80GiB?"),
    (["predict", "good.json", "--device-memory", "9000PiB"], "--device-memory"),
    (["predict", "good.json", "--plans", "eager,fast"], "unknown plan 'fast'; allowed: eager, eager:checkpoint"),
    (["predict", "good.json", "--risk", "2"], "--risk"),
    (["predict", "good.json", "--run", "speed=9"], "keys: task, optimizer"),
    (["predict", "good.json", "--run", "task=sleeping"], "task=sleeping"),
    (["predict", "good.json", "--server", "localhost:8400"], "give http://host:port"),
    (["predict", "no-such-thing"], "neither a graph file nor"),
    (["predict", "broken.py"], "name its function that returns the workload, as broken.py:workload"),
    (["capture", "x.py:workload", "-o", "no/such/folder/g.json"], "make it first"),
    (["capture", "broken.py"], "path/to/file.py:name"),
]

FAILURES = [
    (["predict", "missing.json"], "cannot read missing.json: No such file"),
    (["predict", "cut.json"], "cut.json is no graph: $: is not JSON"),
    (["predict", "cut.json.xz"], "ends early"),
    (["predict", "other.json"], "$.schema: is 7; allowed: 1"),
    (
        ["predict", "good.json", "--server", "http://127.0.0.1:9", "--timeout", "0.5"],
        "no answer from http://127.0.0.1:9",
    ),
    (["capture", "missing.py:workload"], "no such file: missing.py"),
    (["capture", "broken.py:nothing"], "has no function 'nothing'"),
    (["capture", "broken.py:workload"], "no data set here"),
    (["capture", "needs.py:workload"], "not_installed_anywhere"),
]


@pytest.mark.parametrize(("arguments", "said"), USAGE, ids=[" ".join(arguments) for arguments, _ in USAGE])
def test_wrong_usage_exits_with_2(
    folder: Path, arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message says what was wrong and what is allowed; nothing goes to stdout."""
    monkeypatch.chdir(folder)
    ran = CliRunner().invoke(app, arguments)
    assert ran.exit_code == 2, ran.stderr
    assert said in words(ran.stderr)
    assert ran.stdout == ""


@pytest.mark.parametrize(("arguments", "said"), FAILURES, ids=[" ".join(arguments) for arguments, _ in FAILURES])
def test_failures_exit_with_1(folder: Path, arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be done is said in a line, without traceback; nothing goes to stdout."""
    monkeypatch.chdir(folder)
    ran = CliRunner().invoke(app, arguments)
    assert ran.exit_code == 1, ran.stderr
    assert isinstance(ran.exception, SystemExit)
    assert said in words(ran.stderr)
    assert "Traceback" not in ran.stderr
    assert ran.stdout == ""


def test_a_traceback_is_there_for_whoever_asks(folder: Path) -> None:
    """`--traceback` shows where in the workload the error came from."""
    ran = peakcast("--traceback", "capture", "broken.py:workload", cwd=folder)
    assert ran.returncode == 1
    assert "raise RuntimeError('no data set here')" in ran.stderr


def test_help_needs_none_of_the_large_packages() -> None:
    """`peakcast --help` lists every command without importing torch, LightGBM or a web framework."""
    code = (
        "import sys, peakcast.cli\n"
        "try: peakcast.cli.app(['--help'])\n"
        "except SystemExit as stop: assert stop.code == 0\n"
        "print(sorted({'torch', 'lightgbm', 'fastapi', 'numpy', 'sklearn', 'pydantic'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.splitlines()[-1] == "[]"
    for command in ("capture", "predict", "serve", "peaks", "report", "collect", "train", "evaluate", "models"):
        assert f" {command} " in ran.stdout


@pytest.mark.parametrize(
    ("missing", "arguments", "extra"),
    [
        ("fastapi", ["serve"], "peakcast[serve]"),
        ("uvicorn", ["serve"], "peakcast[serve]"),
        ("sqlalchemy", ["serve"], "peakcast[serve]"),
        ("sqlalchemy", ["peaks", "list"], "peakcast[serve]"),
        ("joblib", ["train"], "peakcast[train]"),
    ],
)
def test_a_missing_extra_is_named(folder: Path, missing: str, arguments: list[str], extra: str) -> None:
    """Without the packages of an extra its commands say which to install, and exit with 1."""
    # None in sys.modules makes an import fail as that of a package that is not installed.
    code = f"import sys; sys.modules[{missing!r}] = None; import peakcast.cli; peakcast.cli.app({arguments!r})"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=folder, timeout=60
    )
    assert ran.returncode == 1, ran.stderr
    assert f"pip install '{extra}'" in words(ran.stderr)
    assert "Traceback" not in ran.stderr


def test_every_command_has_help() -> None:
    """Each command explains itself and its options."""
    for command in ("capture", "predict", "serve", "peaks", "report", "collect", "train", "evaluate", "models"):
        ran = CliRunner().invoke(app, [command, "--help"], prog_name="peakcast")
        assert ran.exit_code == 0, ran.stderr
        assert "Usage: peakcast " + command in words(ran.stdout)
    assert peakcast("--version").stdout.startswith("peakcast ")
