"""Coverage is counted by architecture and by record, with intervals from resampled architectures."""

from __future__ import annotations

import numpy as np
import pytest
from held_out import make_held, with_bounds

from peakcast.training.bound_accuracy import coverage_rows
from peakcast.training.cluster_bootstrap import by_architecture, by_record


def test_shares_by_hand() -> None:
    """One architecture's only record holds, the other's three do not: half of the architectures, a quarter of all."""
    within, names = np.array([1.0, 0.0, 0.0, 0.0]), ["A", "B", "B", "B"]
    of_architectures, of_records = by_architecture(within, names), by_record(within, np.ones(4), names)
    assert of_architectures is not None
    assert of_records is not None
    assert of_architectures.percent == 50.0
    assert of_records.percent == 25.0
    # Of two draws out of two, one in four is A alone and one in four B alone.
    assert (of_architectures.low_percent, of_architectures.high_percent) == (0.0, 100.0)
    assert (of_records.low_percent, of_records.high_percent) == (0.0, 100.0)


def test_an_interval_has_the_width_of_its_architectures() -> None:
    """Of 400 architectures of ten alike records, 90 % hold: 1.96 x sqrt(0.9 x 0.1 / 400) = 2.94 points either way."""
    within = np.repeat(np.arange(400) % 10 != 0, 10).astype(float)
    found = by_record(within, np.ones(4000), [f"A{row // 10}" for row in range(4000)])
    assert found is not None
    assert found.percent == 90.0
    assert found.low_percent == pytest.approx(87.06, abs=0.5)
    assert found.high_percent == pytest.approx(92.94, abs=0.5)
    assert found == by_record(within, np.ones(4000), [f"A{row // 10}" for row in range(4000)])


def test_nothing_has_no_share() -> None:
    """Neither no records nor a sum of zero has a share."""
    assert by_architecture(np.empty(0), []) is None
    assert by_record(np.zeros(2), np.zeros(2), ["A", "B"]) is None


def test_lines_by_hand() -> None:
    """Eager bounds hold, inductor's at 0.05 do not (0.96 x 1.03) and at 0.01 do (0.96 x 1.06)."""
    lines = {(line.label, line.quantity): line for line in coverage_rows(make_held())}
    everything, inductor = lines["all plans", "steady_allocated"], lines["inductor", "steady_allocated"]
    for share in (everything.by_architecture, everything.by_record):
        assert share is not None
        assert (share.percent, share.low_percent, share.high_percent) == (50.0, 50.0, 50.0)
    assert everything.by_record_at_decision_risk is not None
    assert everything.by_record_at_decision_risk.percent == 100.0
    assert (everything.n, everything.architectures) == (16, 4)
    # 1.0506 and 0.9888 of the truth, half each.
    assert everything.slack_mean_percent == pytest.approx((5.06 - 1.12) / 2)
    assert inductor.slack_median_percent == pytest.approx(-1.12)
    assert lines["all plans", "required"].n == 4
    assert ("hybrid", "steady_allocated") not in lines


def test_an_architecture_with_few_records_weighs_as_much() -> None:
    """All but the first architecture's bounds hold: three of four, though it is 1 of 13 records with `required`."""
    held = with_bounds(make_held(), lambda row: 0.9 if row < 4 else 1.1)
    held.data.measured_PQ[4:, 4] = held.data.measured_PQ[4:, 0]
    held.upper_PQ[4:, 4] = held.upper_PQ[4:, 0]
    held.decision_upper_PQ[4:, 4] = held.decision_upper_PQ[4:, 0]
    line = next(line for line in coverage_rows(held) if line.quantity == "required")
    assert line.by_architecture is not None
    assert line.by_record is not None
    assert line.by_architecture.percent == 75.0
    assert line.by_record.percent == pytest.approx(100 * 12 / 13)
