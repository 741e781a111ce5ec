"""`peakcast evaluate` judges folds and frozen split apart, each part of the pair, and ever more architectures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from samples import make_dataset
from small_corpus import FROZEN, NAMES, QUANTITIES, write_corpus, write_settings
from typer.testing import CliRunner

from peakcast.cli import app
from peakcast.training.ablation import COLUMNS, PAIR, PRIOR, Ablation, ablate, ablation_rows
from peakcast.training.finished import Finished
from peakcast.training.fit_members import Members
from peakcast.training.fit_settings import FitSettings, SequenceSettings

FACTOR = 1.25


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a corpus whose every peak is a quarter above what lives, and work in it."""
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path / "corpus", factor=lambda _name, _row: FACTOR)
    write_settings(tmp_path / "quick.json")
    return tmp_path


def evaluate(*arguments: str) -> dict[str, Any]:
    """Run `peakcast evaluate` in this process, quickly. Returns its JSON."""
    usual = [
        "--corpus",
        "corpus",
        "--settings",
        "quick.json",
        "--jobs",
        "1",
        "--folds",
        "2",
        "--output",
        "out",
        "--json",
    ]
    ran = CliRunner().invoke(app, ["evaluate", *usual, *arguments])
    assert ran.exit_code == 0, ran.output
    found: dict[str, Any] = orjson.loads(ran.stdout)
    return found


def test_folds_and_frozen_split_are_judged_apart(place: Path) -> None:
    """The folds hold all architectures but the frozen, the other table those; the prior is 20 % below the truth."""
    write_corpus(place / "more", ["Replayed0"], source="replayed")
    found = evaluate("--corpus", "more")
    assert (found["records"], found["architectures"]) == (4 * len(NAMES), len(NAMES))
    assert (found["frozen"]["records"], found["frozen"]["architectures"]) == (4 * len(FROZEN), len(FROZEN))
    for rows in (found["rows"], found["frozen"]["rows"]):
        assert rows[0]["prior"]["mean_percent"] == pytest.approx(100 * (1 - 1 / FACTOR), abs=0.5)
    text = (place / "out" / "ACCURACY.md").read_text()
    assert "## The frozen test split" in text
    assert "| shape |" in text
    assert {"accuracy.png", "importance.png", "accuracy.json"} <= {path.name for path in (place / "out").iterdir()}


def test_ablation_has_every_variant_and_is_written(place: Path) -> None:
    """Seven variants; the simulation's error is known; what was found lies in a file."""
    found = evaluate("--ablation")
    assert len(found["rows"]) == 7
    assert found["rows"][PRIOR]["all plans and quantities"]["mean_percent"] == pytest.approx(20.0, abs=0.5)
    assert found["rows"][PRIOR]["all plans and quantities"]["n"] == 4 * len(NAMES) * len(QUANTITIES)
    assert orjson.loads((place / "out" / "ablation.json").read_bytes()) == found


@pytest.mark.slow
def test_curve_begins_at_the_simulation_and_ends_at_all(place: Path) -> None:
    """The first point is no architecture, the last all of them; the plot is there."""
    found = evaluate("--curve")
    assert found["rows"][0]["architectures"] == 0
    assert found["rows"][0]["pair_mean_percent"] == pytest.approx(20.0, abs=0.5)
    assert found["rows"][-1]["architectures"] == len(NAMES)
    assert (place / "out" / "learning_curve.png").read_bytes().startswith(b"\x89PNG")


def test_parts_that_know_a_rule_mend_the_simulation() -> None:
    """Convolutions hide 48 MiB and compiled plans take 3 % less: trees and pair halve the simulation's error."""
    settings = FitSettings(inner_folds=3, rounds=120, spread_rounds=4, sequence=SequenceSettings(epochs=4, hidden=8))
    rows = ablation_rows(ablate(Members(make_dataset(), settings, Finished())))
    mean = {name: cells["all plans and quantities"]["mean_percent"] for name, cells in rows.items()}
    assert mean["trees on the simulation"] < 0.5 * mean[PRIOR]
    assert mean[PAIR] < 0.5 * mean[PRIOR]
    assert mean[PAIR] < mean["pair without simulation"]


def test_columns_by_hand() -> None:
    """Eager 10 % and compiled 30 % too high: each column has its own, the last one both."""
    data = make_dataset(4, 4)
    data.measured_PQ[:, -1] = data.priors[:, -1]
    eager_P = np.array([example.is_eager for example in data.examples])[:, None]
    expected = data.measured_PQ * np.where(eager_P, 1.1, 1.3)
    cells = ablation_rows(Ablation(data, {"one": expected}))["one"]
    assert [round(cells[column.name]["mean_percent"], 6) for column in COLUMNS] == [10.0, 10.0, 30.0, 30.0, 20.0]
