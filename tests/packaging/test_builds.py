"""What the wheel, the sdist and an editable install hold, and that each works with the sources out of the way."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from email import message_from_bytes
from functools import lru_cache
from importlib.metadata import distribution, requires
from pathlib import Path
from typing import TypeAlias

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

Install: TypeAlias = "Callable[[str], Environment]"

FOLDERS = ("client", "featurizer", "models", "service", "training")
# What one fits on: in the repository and the sdist, not in the wheel.
CORPORA = ("training/corpus/", "training/corpora/")


def _requirements(wheel: Path, extra: str) -> set[str]:
    """Return the names of everything an install of the wheel with `extra` ("" for none) brings, however deep."""
    with zipfile.ZipFile(wheel) as opened:
        (name,) = (name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        own = message_from_bytes(opened.read(name)).get_all("Requires-Dist", [])
    found: set[str] = set()
    waiting = [(text, extra) for text in own]
    while waiting:
        text, wanted = waiting.pop()
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": wanted}):
            continue
        name = canonicalize_name(requirement.name)
        deeper = own if name == "peakcast" else requires(name) or []
        waiting += [(line, deep) for deep in requirement.extras or {""} for line in deeper if name not in found]
        if name != "peakcast":
            found.add(name)
    return found


@dataclass(frozen=True)
class Environment:
    """A fresh venv for one install of peakcast; the packages it requires are borrowed from this interpreter."""

    folder: Path

    @classmethod
    def create(cls, folder: Path, requirements: set[str]) -> Environment:
        """Make a venv that sees these packages, and no peakcast."""
        venv.create(folder, with_pip=False, symlinks=True)
        (site,) = folder.glob("lib/python3*/site-packages")
        borrowed = folder / "borrowed"
        borrowed.mkdir()
        for name in requirements:
            of_package = distribution(name)
            for top in {file.parts[0] for file in of_package.files or ()} - {"..", "__pycache__", "bin"}:
                if not (borrowed / top).exists():
                    (borrowed / top).symlink_to(Path(str(of_package.locate_file(top))))
        (site / "borrowed.pth").write_text(f"{borrowed}\n")
        return cls(folder)

    def install(self, *what: str) -> None:
        """Install with this interpreter's pip, which need not be copied into the venv."""
        python = str(self.folder / "bin" / "python")
        options = ["--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
        _checked([sys.executable, "-m", "pip", "--python", python, "install", *options, *what], self.folder)

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the venv away from the sources, and return what it said."""
        environ = {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "VIRTUAL_ENV"}}
        command = [str(self.folder / "bin" / program), *arguments]
        return subprocess.run(
            command, cwd=self.folder, env=environ | {"NO_COLOR": "1"}, capture_output=True, text=True, check=False
        )

    def where_peakcast_is(self) -> Path:
        """Ask the venv's interpreter where it found the package, with every folder imported."""
        code = f"import peakcast\nfrom peakcast import {', '.join(FOLDERS)}\nprint(peakcast.__file__)"
        said = self.run("python", "-c", code)
        assert said.returncode == 0, said.stderr
        return Path(said.stdout.strip())


def _checked(command: list[str], cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"


def _build(kind: str, tree: Path, out: Path) -> Path:
    """Build a wheel or an sdist through the backend pyproject.toml names."""
    call = f"import sys\nfrom setuptools import build_meta\nbuild_meta.build_{kind}(sys.argv[1])"
    _checked([sys.executable, "-c", call, str(out)], tree)
    (made,) = out.iterdir()
    return made


@pytest.fixture(scope="module")
def tree(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy what git would commit, links as links, so that no leftover of a checkout gets into a build."""
    target = tmp_path_factory.mktemp("tree")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, check=True).stdout.decode().split("\0")
    for name in filter(None, listed):
        source = root / name
        if source.is_symlink() or source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name, follow_symlinks=False)
    return target


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel."""
    return _build("wheel", tree, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the source distribution and unpack it."""
    archive = _build("sdist", tree, tmp_path_factory.mktemp("sdist"))
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    (unpacked,) = folder.iterdir()
    return unpacked


@pytest.fixture(scope="module")
def install(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Install:
    """Give a function that installs the wheel with one extra, "" for none, into a venv of its own."""

    @lru_cache
    def made(extra: str) -> Environment:
        environment = Environment.create(tmp_path_factory.mktemp("installed"), _requirements(wheel, extra))
        environment.install(str(wheel))
        return environment

    return made


@pytest.fixture(scope="module")
def graph(data: Path) -> Path:
    """Give the smallest committed graph."""
    return min(data.rglob("*.json.xz"), key=lambda path: path.stat().st_size)


def _files(tree: Path, *patterns: str) -> set[str]:
    return {str(path.relative_to(tree)) for pattern in patterns for path in tree.glob(pattern) if path.is_file()}


def _contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def test_the_wheel_holds_every_module_and_what_they_read(tree: Path, wheel: Path) -> None:
    """Nothing a folder holds is lost on the way through the links."""
    held = _files(tree / "src" / "peakcast", "*") | _files(tree, *(f"{folder}/**/*" for folder in FOLDERS))
    wanted = {name for name in held if not name.startswith(CORPORA) and not name.endswith(".md")}
    assert {"__init__.py", "cli.py", "py.typed", "featurizer/spec.py", "featurizer/capture/fakecuda.cpp"} <= wanted
    assert wanted - {name.removeprefix("peakcast/") for name in _contents(wheel)} == set()


def test_the_wheel_installs_only_peakcast(wheel: Path) -> None:
    """No top-level `models` lands beside the user's own, and neither corpus nor tests come along."""
    names = sorted(_contents(wheel))
    assert {name.split("/")[0].split("-")[0] for name in names} == {"peakcast"}
    assert [name for name in names if name.removeprefix("peakcast/").startswith(CORPORA)] == []
    assert [name for name in names if "/tests/" in name or "__pycache__" in name] == []


def test_the_sdist_builds_the_same_wheel(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    """A wheel made from the unpacked sdist is the same, file by file."""
    again = _contents(_build("wheel", sdist, tmp_path))
    first = _contents(wheel)
    assert sorted(again) == sorted(first)
    # RECORD lists the hashes of the others in the order they were written.
    assert [name for name in first if not name.endswith("RECORD") and again[name] != first[name]] == []


def test_the_sdist_carries_corpus_tests_and_docs(tree: Path, sdist: Path) -> None:
    """Whoever has the sdist can fit again, test and read."""
    wanted = _files(tree, "docs/**/*", "examples/**/*", "tests/**/*", "constraints.txt", "Makefile", "LICENSE")
    wanted |= {f"src/peakcast/{name}" for name in _files(tree, *(f"{folder}**/*" for folder in CORPORA))}
    assert wanted - _files(sdist, "**/*") == set()


def test_an_editable_install_follows_the_links(tree: Path, wheel: Path, tmp_path: Path) -> None:
    """An editable install imports every folder from the tree itself."""
    environment = Environment.create(tmp_path / "editable", _requirements(wheel, "") | {"setuptools"})
    environment.install("--editable", str(tree))
    assert environment.where_peakcast_is() == tree / "src" / "peakcast" / "__init__.py"


def test_the_base_install_runs_its_command_line(install: Install) -> None:
    """Without any extra the console script answers, from the wheel and not from the sources."""
    base = install("")
    assert base.folder in base.where_peakcast_is().parents
    said = base.run("peakcast", "--help")
    assert said.returncode == 0, said.stderr
    for command in ("capture", "predict", "serve", "collect", "train", "evaluate"):
        assert command in said.stdout
    assert base.run("python", "-m", "peakcast", "--help").stdout == said.stdout


@pytest.mark.parametrize(("command", "extra"), [("serve", "serve"), ("train", "train"), ("evaluate", "train")])
def test_the_base_install_names_the_extra_it_misses(command: str, extra: str, install: Install) -> None:
    """A command whose packages are not installed says in a line which extra brings them."""
    said = install("").run("peakcast", command)
    assert said.returncode == 1
    assert f"peakcast[{extra}]" in said.stderr
    assert "Traceback" not in said.stderr


def test_the_base_install_asks_a_server(install: Install, graph: Path) -> None:
    """Asking a service needs no extra; one that does not answer is a plain error."""
    # Port 9 is `discard`: nothing listens.
    said = install("").run(
        "peakcast", "predict", str(graph), "--server", "http://127.0.0.1:9", "--timeout", "1", "--plans", "eager"
    )
    assert said.returncode == 1
    assert "127.0.0.1:9" in said.stderr
    assert "Traceback" not in said.stderr


def test_the_wheel_predicts_with_the_model_it_ships(install: Install, graph: Path) -> None:
    """Without any extra a wheel install predicts a committed graph."""
    said = install("").run("peakcast", "predict", str(graph), "--plans", "eager", "--json")
    assert said.returncode == 0, said.stderr
    (plan,) = json.loads(said.stdout)["plans"]
    assert plan["plan"] == "eager"
    assert 0 < plan["steady_allocated"]["expected_bytes"] <= plan["steady_allocated"]["upper_bytes"]


def test_the_serve_extra_is_all_a_service_needs(install: Install) -> None:
    """With the `serve` extra alone the app is made, its routes there."""
    code = "from peakcast.service.app import create_app\nprint(sorted(create_app().openapi()['paths']))"
    said = install("serve").run("python", "-c", code)
    assert said.returncode == 0, said.stderr
    assert "/predict" in said.stdout
