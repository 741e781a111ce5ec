"""Fit the pair on a corpus: out of fold by architecture, joined, shrunk, calibrated. One command and a seed.

    LSTM and trees out of fold             -> how they are joined, shrinkage, spread and bounds are chosen on that
    LSTM and trees once more on everything -> what is shipped

Nothing that is chosen or calibrated ever sees a prediction for an architecture the predicting model was fitted on, and
nothing is chosen, calibrated or called covered by peaks that were not measured here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from peakcast.featurizer.vocabulary import QUANTITIES
from peakcast.models.artefact import Manifest, content_version, write_artefact
from peakcast.models.blend import Blend
from peakcast.models.bounds import class_names, excess_target, scale_bytes
from peakcast.models.calibration import Calibration
from peakcast.models.coverage import Coverage
from peakcast.models.example import Floats
from peakcast.models.heads import HEADS
from peakcast.models.predictor import Predictor
from peakcast.training.dataset import Dataset
from peakcast.training.finished import Finished
from peakcast.training.fit_members import Members
from peakcast.training.fit_settings import FitSettings
from peakcast.training.lineage import code_version, fit_code_sha256, libraries


def finished_steps(data: Dataset, settings: FitSettings, cache: Path | None, *more: str) -> Finished:
    """Return the steps of a fit that are finished under `cache`, by the hash of all that decides their outcome.

    `more` names what else decides, for work that is more than one fit.
    """
    decides = (data.fingerprint, repr(settings), fit_code_sha256(), repr(sorted(libraries().items())), *more)
    return Finished.of(cache, *decides)


def fit_pair(
    data: Dataset,
    settings: FitSettings | None = None,
    *,
    stage: Callable[[str], None] = lambda _: None,
    jobs: int = 1,
    cache: Path | None = None,
) -> Predictor:
    """Fit, shrink and calibrate the pair. The same data and settings give the same model to the bit.

    `stage` is told what begins. With `cache`, finished steps are kept there, and a fit that was killed goes on.

    Raises:
        CorpusError: if there are fewer architectures than inner folds.
    """
    settings = settings or FitSettings()
    finished = finished_steps(data, settings, cache)
    members = Members(data, settings, finished, jobs, stage)
    guesses = members.guesses()
    features = members.features()
    heads = members.heads(features)
    shares = members.corrections(members.out_of_fold(heads, "trees"), guesses)

    stage("shrinkage")
    measured = np.flatnonzero(data.is_measured_P)
    judged = data.take(measured)
    blend: Blend = finished.once(
        "blend", lambda: Blend.fit(judged.examples, judged.measured_PQ, shares[:, measured], judged.architectures)
    )
    expected = blend.apply(data.examples, shares)

    excess = excess_target(data.measured_PQ, expected)
    # What others report is no measure of how sure the pair may be.
    excess[~data.is_measured_P] = np.nan
    spread = members.spread(features, excess)
    log2_excess = members.out_of_fold({"spread": spread}, "spread")["spread"]
    stage("bounds")
    calibration = _calibrate(judged, expected[measured], log2_excess[measured])

    sequence, trees = members.final({**heads, "spread": spread})
    predictor = Predictor(
        version="unversioned",
        sequence=sequence,
        heads={name: trees[name] for name in HEADS},
        spread=trees["spread"],
        blend=blend,
        calibration=calibration,
        coverage=Coverage.fit((example.facts for example in judged.examples), torch_versions=data.torch_versions),
        feature_names=members.names,
        speeds=judged.speeds(),
    )
    # Through its own files: what is evaluated is what would be loaded.
    files = predictor.to_files()
    return Predictor.from_files(content_version(files, data.data_sha256), files)


def save_pair(
    predictor: Predictor,
    data: Dataset,
    settings: FitSettings,
    root: Path,
    *,
    parent: str | None = None,
    held_out: Iterable[str] = (),
) -> Manifest:
    """Write the artefact to `root/<version>`. `parent`: the version before; `held_out`: what no part of it ever saw."""
    about: dict[str, Any] = {
        "created": data.created,
        "data_sha256": data.data_sha256,
        "code_version": code_version(),
        "seed": settings.seed,
        "libraries": libraries(),
        "lineage": {
            "parent": parent,
            "records": len(data),
            "architectures": len(set(data.architectures)),
            "origins": dict(sorted(Counter(data.origins).items())),
            "held_out": sorted(held_out),
            "settings": asdict(settings),
        },
    }
    return write_artefact(root / predictor.version, predictor.to_files(), about)


def _calibrate(data: Dataset, expected: Floats, log2_excess: Floats) -> Calibration:
    """Score every measured row against its out-of-fold expectation and scale."""
    kept = np.argwhere(np.isfinite(data.measured_PQ))
    index = (kept[:, 0], kept[:, 1])
    scores = ((data.measured_PQ - expected) / scale_bytes(log2_excess, expected))[index]
    names = [class_names(data.examples[row], QUANTITIES[column]) for row, column in kept]
    return Calibration.fit(scores, [data.architectures[row] for row in kept[:, 0]], names)
