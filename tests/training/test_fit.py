"""The pair learns what the simulation misses, leaves alone what it has right, and is the same for the same seed."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from samples import MIB, make_dataset, make_facts

from peakcast.featurizer.vocabulary import QUANTITIES
from peakcast.models.artefact import read_artefact
from peakcast.models.predictor import Predictor, ordered
from peakcast.training.dataset import Dataset
from peakcast.training.fit import fit_pair, save_pair
from peakcast.training.fit_settings import FitSettings, SequenceSettings

QUICK = FitSettings(seed=3, inner_folds=3, rounds=120, spread_rounds=20, sequence=SequenceSettings(epochs=2, hidden=8))


@pytest.fixture(scope="module")
def data() -> Dataset:
    """Return made-up records of 24 architectures."""
    return make_dataset()


@pytest.fixture(scope="module")
def pair(data: Dataset) -> Predictor:
    """Return a pair fitted on them."""
    return fit_pair(data, QUICK)


def test_same_seed_same_bytes(data: Dataset, pair: Predictor) -> None:
    """Fitted twice, every file is equal to the bit, and so is the version."""
    again = fit_pair(data, QUICK)
    assert again.to_files() == pair.to_files()
    assert again.version == pair.version


def test_order_of_records_does_not_leak_into_folds(data: Dataset) -> None:
    """An architecture lies in one fold whatever the order of its records."""
    shuffled = data.take(np.random.default_rng(0).permutation(len(data)))
    assert dict(zip(data.architectures, data.folds(4, 7), strict=True)) == dict(
        zip(shuffled.architectures, shuffled.folds(4, 7), strict=True)
    )


def test_learns_what_the_prior_misses(pair: Predictor) -> None:
    """On new architectures of the same rules the mean error falls below half of the prior's."""
    new = make_dataset(architectures=12, seed=99)
    forecast = pair.forecast(new.examples, 0.1)
    truth = new.measured_PQ[:, 0]
    learned = np.abs(forecast.expected_PQ[:, 0] / truth - 1.0).mean()
    assert learned < 0.5 * np.abs(new.priors[:, 0] / truth - 1.0).mean()


def test_bounds_hold_on_new_architectures(pair: Predictor) -> None:
    """At risk 0.1 at most about a tenth of new records lies above the bound, and the bound is above the expectation."""
    new = make_dataset(architectures=12, seed=99)
    forecast = pair.forecast(new.examples, 0.1)
    measured = np.isfinite(new.measured_PQ)
    assert (new.measured_PQ[measured] > forecast.upper_PQ[measured]).mean() <= 0.15
    assert (forecast.upper_PQ >= forecast.expected_PQ).all()


def test_finer_risk_is_never_a_lower_bound(data: Dataset, pair: Predictor) -> None:
    """Bounds grow as the risk asked for shrinks, past what the data supports too."""
    uppers = [pair.forecast(data.examples, risk).upper_PQ for risk in (0.3, 0.1, 0.03, 0.01, 0.001)]
    for coarse, fine in pairwise(uppers):
        assert (fine >= coarse).all()


def test_unknown_op_is_never_a_small_confident_number(data: Dataset, pair: Predictor) -> None:
    """A graph with a foreign op is `unknown`; no bound lies below the unfused step with twice its output on top."""
    facts = make_facts(op_share={"aten.mm.default": 0.5, "mylib.attend.default": 0.5}, unfused_bytes=77 << 30)
    forecast = pair.forecast([replace(data.examples[0], facts=facts)], 0.05)
    assert forecast.confidence == ("unknown",)
    assert (forecast.upper_PQ >= 79 << 30).all()


def test_extrapolating_is_bounded_wider(data: Dataset, pair: Predictor) -> None:
    """The same example on a card that was not measured has the same expectation and a wider bound."""
    example = data.examples[0]
    known, other = pair.forecast([example, replace(example, facts=make_facts(device="sm_7"))], 0.2).upper_PQ
    assert (other > known).all()


def test_physics_is_put_right(data: Dataset) -> None:
    """Quantities in an impossible order are raised until they are possible; none is lowered."""
    example = replace(data.examples[0], parameters_bytes=int(10 * MIB), optimizer_state_bytes=int(20 * MIB))
    names = ("steady_allocated", "steady_reserved", "first_allocated", "first_reserved", "required")
    assert names == QUANTITIES
    found = ordered(np.array([[100.0, 90.0, 5.0, 110.0, 500.0]]) * MIB, [example])
    assert found.tolist() == [[100 * MIB, 100 * MIB, 10 * MIB, 500 * MIB, 500 * MIB]]
    found = ordered(np.array([[1.0, 2.0, 3.0, 4.0, 5.0]]) * MIB, [example])
    assert found.tolist() == [[30 * MIB, 30 * MIB, 10 * MIB, 10 * MIB, 30 * MIB]]


def test_saved_pair_answers_the_same(tmp_path: Path, data: Dataset, pair: Predictor) -> None:
    """What is loaded from the artefact predicts to the bit what was fitted; its manifest names its origin."""
    manifest = save_pair(pair, data, QUICK, tmp_path)
    loaded = Predictor.load(tmp_path / manifest.version)
    fitted, again = pair.forecast(data.examples, 0.05), loaded.forecast(data.examples, 0.05)
    assert np.array_equal(fitted.expected_PQ, again.expected_PQ)
    assert np.array_equal(fitted.upper_PQ, again.upper_PQ)
    assert loaded.version == manifest.version == pair.version
    assert (manifest.seed, manifest.data_sha256) == (3, data.data_sha256)
    assert read_artefact(tmp_path / manifest.version)[1] == pair.to_files()


def test_speeds_are_medians_against_eager(pair: Predictor) -> None:
    """The samples' compiled steps take half of the eager ones'."""
    assert pair.speeds == {"eager": 1.0, "inductor": 2.0}


def test_too_few_architectures_are_refused() -> None:
    """Folds by architecture need as many architectures."""
    with pytest.raises(ValueError, match="3 folds need as many architectures; there are 2"):
        fit_pair(make_dataset(architectures=2), QUICK)
