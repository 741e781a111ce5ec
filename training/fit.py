"""Fit the pair on a corpus: stacked out of fold by architecture, shrunk, calibrated. One command and a seed.

    out-of-fold LSTM -> its guesses are features -> out-of-fold trees -> shrinkage, spread and bounds are chosen on them
    LSTM and trees once more on everything                            -> what is shipped

Nothing that is chosen or calibrated ever sees a prediction for an architecture the predicting model was fitted on.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peakcast._version import __version__
from peakcast.featurizer.vocabulary import QUANTITIES
from peakcast.models.artefact import Manifest, content_version, write_artefact
from peakcast.models.blend import LIMITS, UNIT_BYTES, Blend
from peakcast.models.calibration import Calibration
from peakcast.models.coverage import Coverage
from peakcast.models.example import Floats
from peakcast.models.gbm import Trees, feature_matrix, feature_names
from peakcast.models.lstm import SequenceModel
from peakcast.models.predictor import LARGEST_SPREAD, Predictor, class_names, spread_bytes
from peakcast.training.dataset import Dataset
from peakcast.training.fit_lstm import SequenceSettings, fit_sequence_model

_Q = len(QUANTITIES)
# The trust in the learned spread: the smallest scale of a bound, from trusting it whole to not at all (one scale for
# all). The one that gives the narrowest bounds at JUDGED_RISK is kept.
SPREAD_FLOORS = (5e-4, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, LARGEST_SPREAD)
JUDGED_RISK = 0.05
# Relative error that counts as none when the spread is learned: logarithms of exact answers must stay finite.
_SMALLEST_ERROR = 5e-4


@dataclass(frozen=True, slots=True)
class FitSettings:
    """How much to fit. `inner_folds`: into how many the architectures are split for out-of-fold outputs."""

    seed: int = 0
    inner_folds: int = 5
    rounds: int = 250
    spread_rounds: int = 80
    sequence: SequenceSettings = field(default_factory=SequenceSettings)


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """The dataset as targets. P records, R = P * Q rows."""

    data: Dataset
    ratio_PQ: Floats
    additive_PQ: Floats
    folds_P: NDArray[np.int64]

    @property
    def measured(self) -> NDArray[np.bool_]:
        return np.isfinite(self.ratio_PQ.ravel())


def fit_pair(data: Dataset, settings: FitSettings | None = None) -> Predictor:
    """Fit, shrink and calibrate the pair. The same data and settings give the same model to the bit.

    Raises:
        ValueError: if there are fewer architectures than inner folds.
    """
    settings = settings or FitSettings()
    prior, measured = data.priors, data.measured_PQ
    rows = _Rows(
        data,
        ratio_PQ=np.clip(measured / prior - 1.0, *LIMITS),
        additive_PQ=np.arcsinh((measured - prior) / UNIT_BYTES),
        folds_P=data.folds(settings.inner_folds, settings.seed),
    )
    names = feature_names(data.examples)
    features = feature_matrix(data.examples, _guesses_out_of_fold(rows, settings), names)
    weights = {"ratio": _row_weight(data), "additive": _row_weight(data) * _additive_weight(prior, measured).ravel()}
    targets = {"ratio": rows.ratio_PQ.ravel(), "additive": rows.additive_PQ.ravel()}
    outputs = {
        name: _out_of_fold(features, targets[name], weights[name], rows, names, settings)
        for name in ("ratio", "additive")
    }
    blend = Blend.fit(data.examples, measured, outputs["ratio"], outputs["additive"], data.architectures)
    expected = blend.apply(data.examples, outputs["ratio"], outputs["additive"])

    spread_target = np.log2(np.abs(measured / expected - 1.0) + _SMALLEST_ERROR).ravel()
    log2_spread = _out_of_fold(
        features, spread_target, weights["ratio"], rows, names, settings, objective="l2", rounds=settings.spread_rounds
    )
    floor, calibration = _calibrate(data, expected, log2_spread)

    kept = rows.measured

    def final(target: Floats, weight: Floats, objective: str, rounds: int) -> Trees:
        return Trees.fit(
            features[kept],
            target[kept],
            weight[kept],
            names=names,
            objective=objective,
            rounds=rounds,
            seed=settings.seed,
        )

    predictor = Predictor(
        version="unversioned",
        sequence=_fit_sequence(rows, np.ones(len(data), dtype=bool), settings),
        ratio=final(targets["ratio"], weights["ratio"], "l1", settings.rounds),
        additive=final(targets["additive"], weights["additive"], "l1", settings.rounds),
        spread=final(spread_target, weights["ratio"], "l2", settings.spread_rounds),
        blend=blend,
        calibration=calibration,
        coverage=Coverage.fit((example.facts for example in data.examples), torch_versions=data.torch_versions),
        spread_floor=floor,
        feature_names=names,
        speeds=data.speeds(),
    )
    # Through its own files: what is evaluated is what would be loaded.
    files = predictor.to_files()
    return Predictor.from_files(content_version(files, data.data_sha256), files)


def save_pair(predictor: Predictor, data: Dataset, settings: FitSettings, root: Path) -> Manifest:
    """Write the artefact to `root/<version>`."""
    about: dict[str, Any] = {
        "created": data.created,
        "data_sha256": data.data_sha256,
        "code_version": __version__,
        "seed": settings.seed,
        "libraries": {
            "python": platform.python_version(),
            **{name: installed(name) for name in ("lightgbm", "numpy", "torch")},
        },
    }
    return write_artefact(root / predictor.version, predictor.to_files(), about)


def _row_weight(data: Dataset) -> Floats:
    return np.repeat(data.weights, _Q)


def _additive_weight(prior: Floats, measured: Floats) -> Floats:
    """Return weights [P, Q] that make an error in asinh units count by what it is of the peak."""
    slope = np.hypot(UNIT_BYTES, np.nan_to_num(measured - prior)) / prior
    return np.clip(slope, 1e-3, 10.0)


def _fit_sequence(rows: _Rows, chosen_P: NDArray[np.bool_], settings: FitSettings) -> SequenceModel:
    index = np.flatnonzero(chosen_P)
    targets = np.concatenate([rows.ratio_PQ, np.clip(rows.additive_PQ, -5.0, 5.0)], axis=1)
    return fit_sequence_model(
        rows.data.take(index).examples,
        targets[index],
        rows.data.weights[index],
        seed=settings.seed,
        settings=settings.sequence,
    )


def _guesses_out_of_fold(rows: _Rows, settings: FitSettings) -> Floats:
    """Return the LSTM's [P, 2Q], each from one that never saw the record's architecture."""
    guesses = np.zeros((len(rows.data), 2 * _Q))
    for fold in range(settings.inner_folds):
        held = rows.folds_P == fold
        model = _fit_sequence(rows, ~held, settings)
        index = np.flatnonzero(held)
        guesses[index] = model.predict(rows.data.take(index).examples)
    return guesses


def _out_of_fold(
    features: Floats,
    target: Floats,
    weight: Floats,
    rows: _Rows,
    names: list[str],
    settings: FitSettings,
    *,
    objective: str = "l1",
    rounds: int | None = None,
) -> Floats:
    """Return the trees' outputs [P, Q], each from trees that never saw the record's architecture."""
    outputs = np.zeros(len(target))
    fold_of_row = np.repeat(rows.folds_P, _Q)
    for fold in range(settings.inner_folds):
        held = fold_of_row == fold
        used = ~held & rows.measured
        trees = Trees.fit(
            features[used],
            target[used],
            weight[used],
            names=names,
            objective=objective,
            rounds=rounds or settings.rounds,
            seed=settings.seed,
        )
        outputs[held] = trees.predict(features[held])
    return outputs.reshape(-1, _Q)


def _calibrate(data: Dataset, expected: Floats, log2_spread: Floats) -> tuple[float, Calibration]:
    """Return the floor of the spread that gives the narrowest bounds, and the calibration under it.

    Every measured row is scored against its out-of-fold expectation and scale.
    """
    kept = np.argwhere(np.isfinite(data.measured_PQ))
    index = (kept[:, 0], kept[:, 1])
    groups = [data.architectures[row] for row in kept[:, 0]]
    names = [class_names(data.examples[row], QUANTITIES[column]) for row, column in kept]
    tried = []
    for floor in SPREAD_FLOORS:
        scale = spread_bytes(log2_spread, expected, floor)[index]
        calibration = Calibration.fit((data.measured_PQ[index] - expected[index]) / scale, groups, names)
        width = {row: max(calibration.quantile(row, JUDGED_RISK).value, 0.0) for row in set(names)}
        slack = np.array([width[row] for row in names]) * scale / expected[index]
        tried.append((float(slack.mean()), floor, calibration))
    _, floor, calibration = min(tried, key=lambda entry: entry[:2])
    return floor, calibration
