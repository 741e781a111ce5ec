"""What README and docs/ say is so: targets, commands, options, files, links, and the code runs."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from peakcast.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def _code(text: str) -> str:
    """Return the code of a page, fenced and inline, a piece a line: prose that says "make sure" is no command."""
    fenced = re.findall(r"```\w*\n(.*?)```", text, re.DOTALL)
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return "\n".join(fenced + inline)


def _anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.*)", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@lru_cache
def _help(command: str) -> str:
    """Return the help of a command, or nothing where there is no such command."""
    said = CliRunner().invoke(app, [*command.split(), "--help"], env={"COLUMNS": "300", "NO_COLOR": "1"})
    return said.output if said.exit_code == 0 else ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_make_target_named_is_in_the_makefile(page: Path) -> None:
    """`make X` in a page is a target."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:^|[\s;&])make ([a-z][a-z-]*)", _code(page.read_text()), re.MULTILINE)) - targets == set()


def test_every_make_target_is_phony_and_explained() -> None:
    """`make help` lists each target, and no file of that name can stop it."""
    makefile = (ROOT / "Makefile").read_text()
    explained = set(re.findall(r"^([a-z-]+):.*## \S", makefile, re.MULTILINE))
    assert explained == set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    assert explained == set(re.findall(r"^\.PHONY: ([a-z-]+)$", makefile, re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_and_option_named_exists(page: Path) -> None:
    """`peakcast X --y` in a page is a command of the tool, with that option."""
    for line in re.findall(r"(?:^|[\s;&|/])peakcast ([a-z][^\n`#|]*)", _code(page.read_text()), re.MULTILINE):
        words = line.split()
        known = (words[0] in {"checkpoint", "models", "peaks"} and _help(" ".join(words[:2]))) or _help(words[0])
        assert known, line
        used = {word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert {option for option in used if not re.search(rf"(?<![\w-]){option}(?![\w-])", known)} == set(), line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    """Each relative link names a file, and its anchor a heading."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        linked = page if not name else (page.parent / name).resolve()
        assert linked.exists(), target
        assert not anchor or anchor in _anchors(linked.read_text()), target


def test_the_readme_leads_to_every_page() -> None:
    """Each page of docs/ is linked from the README."""
    readme = (ROOT / "README.md").read_text()
    assert [page.name for page in PAGES if page.parent.name == "docs" and f"(docs/{page.name})" not in readme] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_named_exists(page: Path) -> None:
    """A path below one of the top-level folders is there."""
    folders = r"(?:client|featurizer|models|service|training|src|tests|docs|examples|deploy)"
    # A path has a suffix or ends in a slash; `/name` before it would make it part of a longer one.
    named = re.findall(
        rf"(?<![\w/.-])({folders}/[\w./-]*(?:\.(?:py|cpp|md|sh|json|xz|toml)|/))(?![\w*<{{])", page.read_text()
    )
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_python_of_the_readme_runs(tmp_path: Path) -> None:
    """The README's Python, pasted into one file, runs and prints a decision, a bound in bytes, and the guard's plan."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    (tmp_path / "my_file.py").write_text("\n".join(blocks))
    ran = subprocess.run(
        [sys.executable, "my_file.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240
    )
    assert ran.returncode == 0, ran.stderr
    decision, upper_bytes, plan = ran.stdout.strip().splitlines()
    assert plan == "inductor"  # the plan wanted fits on the empty card that is assumed where there is none
    assert decision.startswith("compile ")
    # Weights, gradients and two moments of 1024 x 4096 + 4096 x 10 floats and their biases are the least it can be.
    parameters = 1024 * 4096 + 4096 + 4096 * 10 + 10
    assert int(upper_bytes) > 4 * 4 * parameters
