"""Fifty records of another place mend the answers there, and change nothing anywhere else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from samples import MIB, make_dataset

from peakcast.models.adaptation import Shift
from peakcast.models.example import Example
from peakcast.models.predictor import Predictor
from peakcast.training.adapt import adapt
from peakcast.training.dataset import Dataset
from peakcast.training.fit import fit_pair
from peakcast.training.fit_settings import FitSettings, SequenceSettings

QUICK = FitSettings(seed=3, inner_folds=3, rounds=60, spread_rounds=10, sequence=SequenceSettings(epochs=1, hidden=4))


def elsewhere(example: Example) -> Example:
    """Return the example under a torch that was not measured."""
    return replace(example, facts=replace(example.facts, torch="2.99"))


def moved(data: Dataset, *, share: float = 0.08, offset_bytes: float = 0.0) -> Dataset:
    """Return the records as another torch would have them: everything a share larger, and some bytes on top."""
    return replace(
        data,
        examples=[elsewhere(example) for example in data.examples],
        measured_PQ=data.measured_PQ * (1.0 + share) + offset_bytes,
        keys=[f"there|{key}" for key in data.keys],
    )


@pytest.fixture(scope="module")
def parent() -> Predictor:
    """Return a pair of 24 architectures, none of them from there."""
    return fit_pair(make_dataset(), QUICK)


def mean_error(pair: Predictor, data: Dataset) -> float:
    """Return the mean absolute error over all quantities."""
    expected = pair.forecast(data.examples, 0.05).expected_PQ
    return float(np.nanmean(np.abs(expected / data.measured_PQ - 1.0)))


@pytest.mark.parametrize(("share", "offset_mib"), [(0.08, 0.0), (0.0, 160.0), (-0.05, 0.0)])
def test_error_falls_there_on_architectures_never_seen(parent: Predictor, share: float, offset_mib: float) -> None:
    """48 records of 12 architectures bring the error of 12 others, there, below half."""
    local = moved(make_dataset(12, 4, seed=7), share=share, offset_bytes=offset_mib * MIB)
    new = moved(make_dataset(12, 8, seed=8), share=share, offset_bytes=offset_mib * MIB)
    assert mean_error(adapt(parent, local), new) < 0.5 * mean_error(parent, new)


def test_nothing_changes_elsewhere(parent: Predictor) -> None:
    """Expectation, bound, confidence and doubts of every example that is not from there are the same to the byte."""
    adapted = adapt(parent, moved(make_dataset(12, 4, seed=7)))
    examples = make_dataset(12, 8, seed=9).examples
    before, after = parent.forecast(examples, 0.05), adapted.forecast(examples, 0.05)
    assert np.array_equal(before.expected_PQ, after.expected_PQ)
    assert np.array_equal(before.upper_PQ, after.upper_PQ)
    assert (before.confidence, before.doubts) == (after.confidence, after.doubts)


def test_what_was_measured_there_is_covered_and_bounded(parent: Predictor) -> None:
    """Before, such an example is extrapolated; after, it is known, and 9 of 10 truths lie below the bound at 10 %."""
    local, new = moved(make_dataset(12, 4, seed=7)), moved(make_dataset(12, 8, seed=8))
    adapted = adapt(parent, local)
    assert set(parent.forecast(new.examples, 0.1).confidence) == {"extrapolating"}
    forecast = adapted.forecast(new.examples, 0.1)
    assert set(forecast.confidence) == {"in_distribution"}
    known = np.isfinite(new.measured_PQ)
    assert (new.measured_PQ <= forecast.upper_PQ)[known].mean() >= 0.9


def test_a_place_like_home_is_left_alone(parent: Predictor) -> None:
    """Where the pair is right already, 48 records move nothing."""
    local, new = moved(make_dataset(12, 4, seed=7)), moved(make_dataset(12, 8, seed=8))
    right = replace(local, measured_PQ=parent.forecast(local.examples, 0.1).expected_PQ)
    found = adapt(parent, right).forecast(new.examples, 0.1).expected_PQ
    assert np.allclose(found, parent.forecast(new.examples, 0.1).expected_PQ, rtol=1e-9)


def test_a_handful_is_too_few(parent: Predictor) -> None:
    """Four records of one architecture choose nothing: the answers stay, only what was measured is known."""
    local = moved(make_dataset(1, 4, seed=7))
    adapted = adapt(parent, local)
    assert adapted.adaptation is not None
    assert not adapted.adaptation.shifts
    with pytest.raises(ValueError, match="no local record"):
        adapt(parent, local.take([]))


def test_same_records_same_version_and_files_read_back(parent: Predictor) -> None:
    """Adapting is deterministic, and its file gives the same answers back."""
    local = moved(make_dataset(12, 4, seed=7))
    first, second = adapt(parent, local), adapt(parent, local)
    assert first.version == second.version != parent.version
    files = first.to_files()
    assert set(files) - set(parent.to_files()) == {"adaptation.json"}
    again = Predictor.from_files(first.version, files)
    assert np.array_equal(first.forecast(local.examples, 0.05).upper_PQ, again.forecast(local.examples, 0.05).upper_PQ)


def test_shift_by_hand() -> None:
    """Half the pair's correction is kept, then 10 % and 5 bytes come on top: (100 + 0.5 x 20) x 1.1 + 5 = 126."""
    found = Shift(trust=0.5, share=0.1, offset_bytes=5.0).apply(np.array([100.0]), np.array([120.0]))
    assert found.item() == pytest.approx(126.0)
