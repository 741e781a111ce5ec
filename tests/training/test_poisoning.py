"""An attack that floods the trainer with peaks of half the truth changes no answer, or is stopped by the gate."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from samples import make_dataset
from small_corpus import FROZEN, write_corpus, write_settings

from peakcast.training.dataset import Dataset, join
from peakcast.training.fit import fit_pair
from peakcast.training.fit_settings import FitSettings, SequenceSettings


@pytest.fixture(scope="module")
def poison(root: Path) -> Any:
    """Import the example."""
    spec = importlib.util.spec_from_file_location("poison", root / "examples" / "attacks" / "poison.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["poison"] = module
    spec.loader.exec_module(module)
    return module


def test_the_runnable_attack_is_repelled(
    poison: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As reports the poison has 5 % of the say and no effect; inside the corpus it rules, and the gate stops it."""
    monkeypatch.chdir(tmp_path)
    names = [f"Made{place:02d}" for place in range(24)]
    corpus = write_corpus(tmp_path / "corpus", [*names, *FROZEN])
    settings = write_settings(tmp_path / "quick.json", rounds=80, inner_folds=3)
    attack = poison.Attack(scale=0.5, copies=4, records=200)
    honest, reported, inside = poison.run(corpus, attack, cache=tmp_path / "cache", settings=settings, jobs=1)
    print(honest, reported, inside, sep="\n")
    assert honest.promoted
    assert reported.poisoned_records == inside.poisoned_records == 24 * 4 * 4
    assert reported.poisoned_weight_share == pytest.approx(0.05 / 1.05, rel=0.01)
    assert reported.frozen_error_percent <= honest.frozen_error_percent + 0.05
    assert inside.poisoned_weight_share > 0.5
    assert inside.frozen_error_percent > 10.0
    assert not inside.promoted
    assert "worse than pair-" in inside.reason


@pytest.mark.parametrize("copies", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_a_reporter_moves_no_answer(copies: int) -> None:
    """Half the truth, the whole corpus over, up to twenty times: answers move by under half a percent on average."""
    quick = FitSettings(inner_folds=3, rounds=60, spread_rounds=6, sequence=SequenceSettings(epochs=2, hidden=4))
    data, new = make_dataset(24, 4), make_dataset(8, 4, seed=5)
    honest = fit_pair(data, quick).forecast(new.examples, 0.05)
    attacked = fit_pair(join([data, *(false(data, copy) for copy in range(copies))]), quick)
    found = attacked.forecast(new.examples, 0.05)
    assert np.abs(found.expected_PQ / honest.expected_PQ - 1.0).mean() < 0.005
    errors = [float(np.nanmean(np.abs(f.expected_PQ / new.measured_PQ - 1.0))) for f in (honest, found)]
    print(f"{copies} copies: mean error {errors[0]:.3%} before, {errors[1]:.3%} after")
    assert errors[1] < errors[0] + 0.005
    # Bounds come from what was measured here alone.
    known = np.isfinite(new.measured_PQ)
    assert (new.measured_PQ <= found.upper_PQ)[known].mean() >= 0.9


def false(data: Dataset, copy: int) -> Dataset:
    """Return the records with half their peaks, as one reporter's."""
    return replace(
        data,
        keys=[f"{key}|{copy}" for key in data.keys],
        measured_PQ=0.5 * data.measured_PQ,
        origins=["reported"] * len(data),
        reporters=["mallory"] * len(data),
    )
