"""The evaluation holds out whole architectures and counts errors, coverage and slack as they are defined."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import orjson
import pytest
from rich.console import Console
from samples import MIB, make_dataset

from peakcast.client.commands.render import people_console
from peakcast.training.commands import TABLE_COLUMNS
from peakcast.training.evaluate import HeldOut, cross_validate, score, summary, table, worst
from peakcast.training.fit_settings import FitSettings, SequenceSettings
from peakcast.training.report import accuracy_table, write_report

QUICK = FitSettings(inner_folds=2, rounds=40, spread_rounds=10, sequence=SequenceSettings(epochs=1, hidden=4))


@pytest.fixture
def held() -> HeldOut:
    """Return predictions 2 % too high for eager and 4 % too low for inductor, with bounds 3 % above the expectation."""
    data = make_dataset(architectures=4, records=4)
    factor = np.array([[1.02 if example.is_eager else 0.96] for example in data.examples])
    expected = data.measured_PQ * factor
    return HeldOut(
        data=data,
        folds_P=data.folds(2, 0),
        expected_PQ=expected,
        upper_PQ=1.03 * expected,
        confidence_P=["in_distribution"] * len(data),
        extended_P=[False] * len(data),
        risk=0.05,
        tree_shares={"log2_prior": 1.0},
        node_shares={"op": 0.75, "shape": 0.25, "placement": 0.0},
    )


def test_score_by_hand() -> None:
    """Errors of 0, 10, 20 and 30 % have a median of 15 and a mean of 15; two lie below the truth."""
    found = score(np.array([100.0, 110.0, 80.0, 70.0]), np.full(4, 100.0))
    assert found.n == 4
    assert found.median_percent == pytest.approx(15.0)
    assert found.mean_percent == pytest.approx(15.0)
    assert found.p95_percent == pytest.approx(28.5)
    assert found.under_predicted_percent == pytest.approx(50.0)


def test_table_by_hand(held: HeldOut) -> None:
    """Half the bounds hold: 1.02 x 1.03 is above the truth, 0.96 x 1.03 below."""
    rows = {(row.label, row.quantity): row for row in table(held)}
    eager, both = rows["eager, training", "steady_allocated"], rows["eager and inductor", "steady_allocated"]
    assert eager.pair.mean_percent == pytest.approx(2.0)
    assert eager.covered_percent == 100.0
    assert eager.slack_percent == pytest.approx(5.06)
    assert both.pair.mean_percent == pytest.approx(3.0)
    assert both.covered_percent == 50.0
    assert both.pair.under_predicted_percent == 50.0
    # Unmeasured quantities count for nothing: `required` was measured for every fourth record.
    assert rows["all plans", "required"].pair.n == 4
    # 4 x 100 MiB of weights, whatever was measured.
    measured = held.data.measured_PQ[:, 0]
    expected = np.mean(np.abs(400 * MIB / measured - 1.0)) * 100.0
    assert rows["all plans", "steady_allocated"].weights_rule.mean_percent == pytest.approx(expected)


def test_worst_come_first(held: HeldOut) -> None:
    """The inductor records, 4 % off, come before the eager ones."""
    found = worst(held, 10)
    assert [record.plan for record in found] == ["inductor"] * 8 + ["eager"] * 2
    assert found[0].error_percent == pytest.approx(-4.0)


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
    assert not np.array_equal(first.upper_PQ[~same_fold], second.upper_PQ[~same_fold])


def test_report_is_written(tmp_path: Path, held: HeldOut) -> None:
    """Text, JSON and plot are there, agree, and hold no NaN."""
    found = summary(held, held)
    write_report(held, found, tmp_path)
    text = (tmp_path / "ACCURACY.md").read_text()
    assert "| eager, training | steady_allocated | 8 | 2.00 % | 2.00 % |" in text
    assert "| op | 0.75 | 0.00 | 0.31 |" in text
    assert (tmp_path / "importance.png").read_bytes().startswith(b"\x89PNG")
    assert "## The frozen test split" in text
    assert "nan" not in text
    assert orjson.loads((tmp_path / "accuracy.json").read_bytes()) == orjson.loads(orjson.dumps(found))
    assert (tmp_path / "accuracy.png").read_bytes().startswith(b"\x89PNG")


def test_table_for_people(held: HeldOut) -> None:
    """The terminal shows the same numbers."""
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(accuracy_table(summary(held)))
    assert "eager and inductor" in console.export_text()


def test_piped_table_wraps_nothing(
    held: HeldOut, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Into a pipe each row of the table is one line: nothing is cut off and no cell goes on below."""
    monkeypatch.delenv("COLUMNS", raising=False)
    found = summary(held)
    people_console(TABLE_COLUMNS).print(accuracy_table(found))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert len(lines) == len(found["rows"])
    assert all(row["label"] in line and row["quantity"] in line for row, line in zip(found["rows"], lines, strict=True))
    assert not any("…" in line for line in lines)
