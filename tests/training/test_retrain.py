"""`peakcast train` from records to a version in use: lineage, gate, frozen split, and a kill that loses nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from small_corpus import FROZEN, NAMES, write_corpus, write_settings
from typer.testing import CliRunner

from peakcast.cli import app
from peakcast.models.artefact import read_artefact
from peakcast.models.registry import Registry
from peakcast.training.dataset import load_datasets
from peakcast.training.frozen_split import frozen_architectures
from peakcast.training.retrain import split_frozen


def rule(name: str, row: int) -> float:
    """Return what is measured as a multiple of what lives: exact, but for a hair that tells records apart."""
    return 1.0 + 1e-4 * (len(name) % 3) + 1e-5 * row


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a corpus and quick settings, and work in it."""
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path / "corpus", factor=rule)
    write_settings(tmp_path / "quick.json")
    return tmp_path


def train(*arguments: str, exit_code: int = 0) -> dict[str, Any]:
    """Run `peakcast train` in this process with one job and the quick settings. Returns its JSON."""
    usual = ["--registry", "registry", "--settings", "quick.json", "--jobs", "1", "--json"]
    ran = CliRunner().invoke(app, ["train", *usual, *arguments])
    assert ran.exit_code == exit_code, ran.output
    found: dict[str, Any] = orjson.loads(ran.stdout)
    return found


def test_promotes_what_the_gate_lets_through(place: Path) -> None:
    """The first version is no worse than the simulation, goes into use, and its manifest says where it comes from."""
    found = train("--corpus", "corpus", "--promote")
    assert found["promoted"]
    assert found["gate"]["passes"], found["gate"]
    assert Registry(place / "registry").history() == [found["version"]]
    lineage = found["lineage"]
    assert lineage["parent"] is None
    assert lineage["records"] == 4 * len(NAMES)
    assert lineage["origins"] == {"measured": 4 * len(NAMES)}
    assert set(FROZEN) <= set(lineage["held_out"]) == frozen_architectures()
    assert lineage["settings"]["inner_folds"] == 2
    assert {"python", "torch", "lightgbm", "numpy", "scikit-learn"} == set(found["libraries"])
    assert found["code_version"].startswith("0.")
    # The next version names it as its parent, and is compared with it.
    again = train("--corpus", "corpus", "--seed", "1", "--promote")
    assert again["lineage"]["parent"] == found["version"]
    assert again["gate"]["before"] == found["version"]


def test_what_is_frozen_is_never_fitted_on(place: Path) -> None:
    """Whatever was measured of the frozen architectures, the version is the same to the bit."""
    first = train("--corpus", "corpus")
    write_corpus(place / "other", factor=lambda name, row: rule(name, row) * (7.0 if name in FROZEN else 1.0))
    second = train("--corpus", "other")
    assert first["sha256"] == second["sha256"]
    errors = [found["gate"]["lines"][0]["before_percent"] for found in (first, second)]
    assert errors[0] < 1.0 < errors[1]


def test_a_worse_version_is_refused_with_exit_code_4(place: Path) -> None:
    """Labels of half the truth make a worse pair: it is written and not promoted, but for --force."""
    good = train("--corpus", "corpus", "--promote")
    write_corpus(place / "bad", factor=lambda name, row: rule(name, row) * (1.0 if name in FROZEN else 0.7), records=6)
    settings = write_settings(place / "strong.json", rounds=120, inner_folds=3)
    worse = train("--corpus", "bad", "--settings", str(settings), "--promote", exit_code=4)
    assert not worse["gate"]["passes"]
    assert not worse["promoted"]
    assert Registry(place / "registry").history() == [good["version"]]
    assert (place / "registry" / worse["version"] / "manifest.json").is_file()
    forced = train("--corpus", "bad", "--settings", str(settings), "--promote", "--force")
    assert forced["version"] == worse["version"]
    assert Registry(place / "registry").history() == [worse["version"], good["version"]]


def test_no_frozen_records_no_promotion(place: Path) -> None:
    """A corpus that the gate cannot judge by puts nothing into use."""
    write_corpus(place / "rest", NAMES)
    found = train("--corpus", "rest", "--promote", exit_code=4)
    assert "no measured record of a frozen architecture" in found["gate"]["reason"]


def test_table_for_people(place: Path) -> None:
    """The gate's lines are printed with their numbers, then the verdict and where the version lies."""
    ran = CliRunner().invoke(
        app, ["train", "--corpus", "corpus", "--registry", "registry", "--settings", "quick.json", "--jobs", "1"]
    )
    assert ran.exit_code == 0, ran.output
    assert "frozen test split, new version against the simulation alone" in ran.stdout
    assert "gate passed: no worse than the simulation alone in any of" in ran.stdout
    assert "not in use: peakcast models promote pair-" in ran.stdout


def test_reports_and_replays_are_fitted_on_and_never_judged_by(place: Path) -> None:
    """Other origins count in the lineage; of frozen architectures only measured records reach the gate."""
    write_corpus(place / "export", ["Strange0"], source="reported", reporter="lab")
    # Made up for this test: no replay ran.
    write_corpus(place / "replays", ["Made00", *FROZEN[:1]], source="replayed")
    found = train("--corpus", "corpus", "--corpus", "export", "--corpus", "replays")
    assert found["lineage"]["origins"] == {"measured": 40, "replayed": 4, "reported": 4}
    data = load_datasets([Path("corpus"), Path("export"), Path("replays")], jobs=1)
    fitted, frozen = split_frozen(data)
    assert set(frozen.origins) == {"measured"}
    assert len(frozen) == 4 * len(FROZEN)
    assert not set(fitted.architectures) & frozen_architectures()


def test_a_reported_frozen_graph_is_known_by_its_operators(place: Path) -> None:
    """A stranger's run of a frozen architecture has no name, and is held out all the same."""
    write_corpus(place / "export", FROZEN[:1], source="reported", reporter="lab", architecture=None)
    data = load_datasets([Path("corpus"), Path("export")], jobs=1)
    assert FROZEN[0] in {a for a, o in zip(data.architectures, data.origins, strict=True) if o == "reported"}
    assert "reported" not in split_frozen(data)[0].origins


def test_replays_lead_where_nothing_was_measured(place: Path) -> None:
    """Replays of a rule that the measured records lack reach the LSTM's first epochs and the trees, not the bounds."""
    write_corpus(place / "replays", [f"Replayed{place}" for place in range(6)], source="replayed")
    plain, taught = train("--corpus", "corpus"), train("--corpus", "corpus", "--corpus", "replays")
    assert plain["sha256"]["lstm.safetensors"] != taught["sha256"]["lstm.safetensors"]
    coverage = [
        orjson.loads(read_artefact(place / "registry" / v["version"])[1]["coverage.json"]) for v in (plain, taught)
    ]
    assert coverage[0]["ops"] == coverage[1]["ops"]


def start(place: Path, cache: str) -> subprocess.Popen[bytes]:
    """Start `peakcast train` in a process group of its own; what it says goes into a file."""
    usual = ["--corpus", "corpus", "--registry", cache, "--settings", "long.json", "--jobs", "1", "--cache", cache]
    with (place / f"{cache}.err").open("ab") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "peakcast", "train", *usual, "--json"],
            cwd=place,
            stdout=subprocess.PIPE,
            stderr=said,
            start_new_session=True,
        )


def finished(place: Path, cache: str) -> set[str]:
    """Return the steps that are finished."""
    return {path.stem for path in (place / cache).glob("fit-*/[!.]*.joblib")}


def test_kill_9_and_resume_give_the_same_bytes(place: Path) -> None:
    """A process killed halfway leaves whole steps; the next run does the rest, and every file is equal to the bit."""
    write_settings(place / "long.json", sequence={"epochs": 12, "hidden": 8, "head": 6}, inner_folds=3)
    killed = start(place, "broken")
    deadline = time.monotonic() + 120
    while len(finished(place, "broken")) < 2 and killed.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert killed.poll() is None, (place / "broken.err").read_text()
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    kept = finished(place, "broken")
    assert killed.returncode == -signal.SIGKILL
    assert len(kept) >= 2
    assert not list((place / "broken").glob("pair-*"))
    before = {path: path.stat().st_mtime_ns for path in (place / "broken").glob("fit-*/[!.]*.joblib")}

    resumed = start(place, "broken")
    while resumed.poll() is None:
        done = {path: path.stat().st_mtime_ns for path in before if path.exists()}
        # A finished step is read, never done again.
        assert all(before[path] == changed for path, changed in done.items())
        time.sleep(0.02)
    whole = start(place, "whole")
    found = [orjson.loads(process.communicate()[0]) for process in (resumed, whole)]
    assert found[0]["version"] == found[1]["version"]
    assert found[0]["sha256"] == found[1]["sha256"]
    # Nothing stays behind of a fit that came to its end.
    assert not finished(place, "broken")


def test_another_seed_does_not_take_the_steps_of_the_first(place: Path) -> None:
    """What was finished counts only where records, settings, code and libraries are the same."""
    data, _ = split_frozen(load_datasets([Path("corpus")], jobs=1))
    from peakcast.training.fit import finished_steps
    from peakcast.training.fit_settings import FitSettings

    cache = Path("cache")
    first = finished_steps(data, FitSettings(seed=0), cache)
    assert first == finished_steps(data, FitSettings(seed=0), cache)
    changed = data.take(np.arange(len(data)))
    changed.measured_PQ[3, 0] += 1.0
    others = {finished_steps(data, FitSettings(seed=1), cache), finished_steps(changed, FitSettings(seed=0), cache)}
    assert first not in others
    assert len(others) == 2
