"""The evaluation holds out whole architectures, and its report shows what was found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import orjson
import pytest
from held_out import make_held
from samples import make_dataset

from peakcast.client.commands.render import people_console
from peakcast.training.accuracy_summary import summary
from peakcast.training.commands import TABLE_COLUMNS
from peakcast.training.evaluate import HeldOut, cross_validate
from peakcast.training.fit_settings import FitSettings, SequenceSettings
from peakcast.training.report import accuracy_tables, write_report

QUICK = FitSettings(inner_folds=2, rounds=40, spread_rounds=10, sequence=SequenceSettings(epochs=1, hidden=4))


@pytest.fixture
def held() -> HeldOut:
    """Return predictions 2 % too high for eager and 4 % too low for inductor, with bounds 3 % above the expectation."""
    return make_held()


def test_no_architecture_on_both_sides() -> None:
    """Changing what was measured of an architecture never changes what is predicted for it."""
    data = make_dataset(architectures=6, records=4)
    own = np.array([name == "Architecture02" for name in data.architectures])
    poisoned = data.take(range(len(data)))
    poisoned.measured_PQ[own] *= 3.0
    first, second = (cross_validate(each, folds=3, settings=QUICK, jobs=1) for each in (data, poisoned))
    same_fold = first.folds_P == first.folds_P[own][0]
    assert np.array_equal(first.expected_PQ[own], second.expected_PQ[own])
    assert np.array_equal(first.upper_PQ[own], second.upper_PQ[own])
    assert np.array_equal(first.decision_upper_PQ[own], second.decision_upper_PQ[own])
    assert not np.array_equal(first.upper_PQ[~same_fold], second.upper_PQ[~same_fold])
    # A smaller risk never has the lower bound.
    assert (first.decision_upper_PQ >= first.upper_PQ).all()
    assert (first.decision_upper_PQ > first.upper_PQ).any()


def test_report_is_written(tmp_path: Path, held: HeldOut) -> None:
    """Text, JSON and plot are there, agree, and hold no NaN."""
    found = summary(held, held)
    write_report(held, found, tmp_path)
    text = (tmp_path / "ACCURACY.md").read_text()
    assert "| eager, training | steady_allocated | 8 | 2.00 % | 2.00 % |" in text
    assert "| op | 0.75 | 0.00 | 0.31 |" in text
    assert (tmp_path / "importance.png").read_bytes().startswith(b"\x89PNG")
    assert "## The frozen test split" in text
    # What is aimed at, for the folds and the frozen split, which here are the same records.
    missed = "2.00 / 2.00 / 2.0 %, missed: median, mean"
    assert f"| eager | steady_allocated | 0.2 / 0.8 / 3 % | {missed} | {missed} |" in text
    assert "| all plans | steady_allocated | 16 | 4 | 50.0 % (50.0-50.0) | 50.0 % (50.0-50.0) |" in text
    assert "| steady_allocated | eager | 8 | 4 | 3.3 % (3.3-3.3), missed | 0.0 % (0.0-0.0), met |" in text
    assert "nan" not in text
    assert orjson.loads((tmp_path / "accuracy.json").read_bytes()) == orjson.loads(orjson.dumps(found))
    assert (tmp_path / "accuracy.png").read_bytes().startswith(b"\x89PNG")


def test_no_frozen_records_no_frozen_table(tmp_path: Path, held: HeldOut) -> None:
    """Without a frozen split there is neither its part of the text nor its column of what is aimed at."""
    write_report(held, summary(held), tmp_path)
    text = (tmp_path / "ACCURACY.md").read_text()
    assert "rozen test split" not in text
    assert "| records | quantity | we aim at | folds |" in text


def test_piped_tables_wrap_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Into a pipe each row of each table is one line: nothing is cut off and no cell goes on below."""
    monkeypatch.delenv("COLUMNS", raising=False)
    # The longest names there are.
    held = make_held(["eager", "inductor:reduce-overhead", "hybrid", "inductor:budget=0.35"])
    found = summary(held, held)
    people_console(TABLE_COLUMNS).print(accuracy_tables(found))
    output = capsys.readouterr().out
    lines = [line for line in output.splitlines() if line.startswith("│")]
    names = ("rows", "bars", "coverage", "decisions")
    rows = [row for side in (found, found["frozen"]) for name in names for row in side[name]]
    assert len(lines) == len(rows)
    for row, line in zip(rows, lines, strict=True):
        assert row["label"] in line
        assert row.get("quantity", row.get("truth")) in line
    assert "…" not in output
