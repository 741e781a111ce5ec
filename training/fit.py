"""Fit the pair on a corpus: stacked out of fold by architecture, shrunk, calibrated. One command and a seed.

    out-of-fold LSTM -> its guesses are features -> out-of-fold trees -> shrinkage, spread and bounds are chosen on them
    LSTM and trees once more on everything                            -> what is shipped

Nothing that is chosen or calibrated ever sees a prediction for an architecture the predicting model was fitted on.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peakcast._version import __version__
from peakcast.featurizer.vocabulary import QUANTITIES
from peakcast.models.artefact import Manifest, content_version, write_artefact
from peakcast.models.blend import Blend
from peakcast.models.calibration import Calibration
from peakcast.models.coverage import Coverage
from peakcast.models.example import Floats
from peakcast.models.gbm import Trees, feature_matrix, feature_names
from peakcast.models.heads import HEADS, corrections, head_targets, head_weights
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
    """The dataset with its targets and folds. P records, R = P * Q rows; NaN targets are not fitted on."""

    data: Dataset
    targets: Mapping[str, Floats]  # by head, [P, Q]
    folds_P: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class _Task:
    """One ensemble to fit: on all rows with a target, or out of fold."""

    features_RF: Floats
    names: Sequence[str]
    target_R: Floats
    weight_R: Floats
    objective: str
    rounds: int
    seed: int

    def fit(self, chosen_R: NDArray[np.bool_] | None = None) -> Trees:
        chosen = np.ones(len(self.target_R), dtype=bool) if chosen_R is None else chosen_R
        used = chosen & np.isfinite(self.target_R)
        # Without a single target (no record takes scratch, say) the ensemble learns to say nothing.
        used = used if used.any() else chosen
        return Trees.fit(
            self.features_RF[used],
            np.nan_to_num(self.target_R[used]),
            self.weight_R[used],
            names=self.names,
            objective=self.objective,
            rounds=self.rounds,
            seed=self.seed,
        )

    def out_of_fold(self, folds_P: NDArray[np.int64]) -> Floats:
        """Return the outputs [P, Q], each from trees that never saw the record's architecture."""
        outputs = np.zeros(len(self.target_R))
        fold_of_row = np.repeat(folds_P, _Q)
        for fold in np.unique(folds_P):
            held = fold_of_row == fold
            outputs[held] = self.fit(~held).predict(self.features_RF[held])
        return outputs.reshape(-1, _Q)


def fit_pair(
    data: Dataset, settings: FitSettings | None = None, *, stage: Callable[[str], None] = lambda _: None
) -> Predictor:
    """Fit, shrink and calibrate the pair. The same data and settings give the same model to the bit.

    `stage` is told what begins.

    Raises:
        CorpusError: if there are fewer architectures than inner folds.
    """
    settings = settings or FitSettings()
    prior, measured = data.priors, data.measured_PQ
    scratch = np.array([example.scratch_bytes for example in data.examples])
    rows = _Rows(data, head_targets(prior, measured, scratch), data.folds(settings.inner_folds, settings.seed))
    names = feature_names(data.examples)
    stage("LSTM out of fold")
    features = feature_matrix(data.examples, _guesses_out_of_fold(rows, settings), names)

    def task(target: Floats, weight: Floats, objective: str, rounds: int) -> _Task:
        by_row = (data.weights[:, None] * weight).ravel()
        return _Task(features, names, target.ravel(), by_row, objective, rounds, settings.seed)

    weights = head_weights(prior, measured, scratch)
    stage("trees out of fold")
    heads = {name: task(rows.targets[name], weights[name], "l1", settings.rounds) for name in HEADS}
    outputs = {name: head.out_of_fold(rows.folds_P) for name, head in heads.items()}
    shares = corrections(outputs, prior, scratch)
    blend = Blend.fit(data.examples, measured, shares, data.architectures)
    expected = blend.apply(data.examples, shares)

    stage("spread and calibration")
    log2_error = np.log2(np.abs(measured / expected - 1.0) + _SMALLEST_ERROR)
    spread = task(log2_error, np.ones_like(prior), "l2", settings.spread_rounds)
    floor, calibration = _calibrate(data, expected, spread.out_of_fold(rows.folds_P))

    stage("LSTM and trees on everything")
    predictor = Predictor(
        version="unversioned",
        sequence=_fit_sequence(rows, np.ones(len(data), dtype=bool), settings),
        heads={name: head.fit() for name, head in heads.items()},
        spread=spread.fit(),
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


def _fit_sequence(rows: _Rows, chosen_P: NDArray[np.bool_], settings: FitSettings) -> SequenceModel:
    index = np.flatnonzero(chosen_P)
    targets = np.concatenate([rows.targets["ratio"], np.clip(rows.targets["additive"], -5.0, 5.0)], axis=1)
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
