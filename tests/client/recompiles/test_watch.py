"""`peakcast watch` runs a script as python would, and reports on stderr and as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from peakcast.cli import app

SCRIPT = """
import sys
import torch
from neighbour import WIDTH

model = torch.nn.Linear(WIDTH, WIDTH)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def loss(x):
    return model(x).square().mean()

compiled = torch.compile(loss, backend="aot_eager", dynamic=False)
for batch in map(int, sys.argv[1:-1]):
    compiled(torch.ones(batch, WIDTH)).backward()
    optimizer.step()
    optimizer.zero_grad()
print("trained", __name__)
sys.exit(int(sys.argv[-1]))
"""


def watch(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Write the script and run the command on it, from another folder."""
    folder.joinpath("train.py").write_text(SCRIPT)
    folder.joinpath("neighbour.py").write_text("WIDTH = 8\n")
    command = [sys.executable, "-m", "peakcast", "watch", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, cwd=folder.parent)


def test_a_script_is_run_and_reported(tmp_path: Path) -> None:
    """Four steps with three sizes under a limit of two: its output, its exit code, and what was recompiled."""
    folder = tmp_path / "job"
    folder.mkdir()
    output = tmp_path / "report.json"
    script = str(folder / "train.py")
    ran = watch(folder, "--recompile-limit", "2", "-o", str(output), script, "2", "3", "2", "4", "5")
    assert ran.stdout == "trained __main__\n"
    assert ran.returncode == 5
    assert "eager since step" in ran.stderr
    told = json.loads(output.read_text())
    assert (told["steps"], told["compiles"], told["recompiles"], told["recompile_limit"]) == (4, 2, 1, 2)
    (frame,) = told["frames"]
    assert (frame["name"], frame["file"]) == ("loss", script)
    assert frame["varying"][0]["sizes"][:2] == [2, 3]
    assert told["leaks"] is None  # nothing tells the bytes alive without a GPU, and four steps are too few with one


def test_what_cannot_be_run_is_refused(tmp_path: Path) -> None:
    """No such script, and no such folder for the report."""
    ran = CliRunner().invoke(app, ["watch", str(tmp_path / "none.py")])
    assert ran.exit_code == 2
    assert "no such file" in ran.output
    script = tmp_path / "empty.py"
    script.write_text("")
    arguments = ["watch", "-o", str(tmp_path / "none" / "a.json"), str(script)]
    ran = CliRunner().invoke(app, arguments, env={"COLUMNS": "300"})
    assert ran.exit_code == 2
    assert "make it first" in ran.output
