"""Tune the hyper-parameters on grouped folds of everything but the frozen split.

Trials are asked for in rounds of a fixed width, and each trial's folds are steps of their own, so that trials and
folds run side by side. A round is proposed from the rounds before it alone, by a sampler seeded with its number: the
outcome depends neither on how many processes there are, nor on who finishes first, nor on a run that was killed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import joblib
import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from peakcast.models.blend import Blend
from peakcast.models.example import Floats
from peakcast.training.dataset import Dataset
from peakcast.training.finished import Finished
from peakcast.training.fit_members import Members, held_out_corrections
from peakcast.training.fit_settings import FitSettings, SequenceSettings, TreeSettings

# One error of 100 % must not outweigh all the others.
_ERROR_CAP: Final = 0.5
# Trials of the first rounds are drawn blindly.
_STARTUP_TRIALS: Final = 8
_FINGERPRINT: Final = "data"


class SearchError(ValueError):
    """A study that does not belong to what is searched."""


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """How far to search. `width` trials run side by side; `study` is the file that a killed search goes on from."""

    study: Path
    trials: int = 20
    width: int = 2
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """The best settings, their mean error and that of the usual settings (the first trial), and how many were tried."""

    settings: FitSettings
    error: float
    usual_error: float
    trials: int


def suggest(trial: optuna.Trial, base: FitSettings) -> FitSettings:
    """Return the settings of a trial."""
    sequence = SequenceSettings(
        hidden=trial.suggest_int("hidden", 16, 64, step=16),
        head=base.sequence.head,
        epochs=trial.suggest_int("epochs", 12, 48, step=6),
        batch=base.sequence.batch,
        learning_rate=trial.suggest_float("lstm_learning_rate", 1e-3, 1e-2, log=True),
        weight_decay=trial.suggest_float("weight_decay", 3e-3, 0.3, log=True),
        watermark_weight=trial.suggest_float("watermark_weight", 0.03, 3.0, log=True),
    )
    trees = TreeSettings(
        num_leaves=trial.suggest_int("num_leaves", 4, 31),
        learning_rate=trial.suggest_float("tree_learning_rate", 0.01, 0.1, log=True),
        min_data_in_leaf=trial.suggest_int("min_data_in_leaf", 5, 60, log=True),
        feature_fraction=trial.suggest_float("feature_fraction", 0.2, 1.0),
        lambda_l2=trial.suggest_float("lambda_l2", 0.1, 30.0, log=True),
    )
    return replace(base, rounds=trial.suggest_int("rounds", 60, 480, step=10), sequence=sequence, trees=trees)


def usual(base: FitSettings) -> dict[str, Any]:
    """Return the parameters of the usual settings, the first trial."""
    sequence, trees = base.sequence, base.trees
    return {
        "hidden": sequence.hidden,
        "epochs": sequence.epochs,
        "lstm_learning_rate": sequence.learning_rate,
        "weight_decay": sequence.weight_decay,
        "watermark_weight": sequence.watermark_weight,
        "num_leaves": trees.num_leaves,
        "tree_learning_rate": trees.learning_rate,
        "min_data_in_leaf": trees.min_data_in_leaf,
        "feature_fraction": trees.feature_fraction,
        "lambda_l2": trees.lambda_l2,
        "rounds": base.rounds,
    }


def search(
    data: Dataset,
    plan: SearchPlan,
    base: FitSettings,
    *,
    jobs: int = 2,
    suggested: Callable[[optuna.Trial, FitSettings], FitSettings] = suggest,
    told: Callable[[str], None] = lambda _: None,
) -> Found:
    """Search until `plan.trials` are done, those of earlier runs among them.

    `suggested` turns a trial into settings. Within `engines.running_on` the folds run on that engine.

    Raises:
        SearchError: if the study's file is of other data, folds or seed.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = _study(data, plan, base)
    _drop_unfinished(study)
    while (done := len(_complete(study))) < plan.trials:
        told(f"{done} of {plan.trials} trials" + (f", best {100 * study.best_value:.3f} %" if done else ""))
        count = min(plan.width, plan.trials - done)
        study.sampler = optuna.samplers.TPESampler(seed=plan.seed * 100_003 + done, n_startup_trials=_STARTUP_TRIALS)
        if not done and not study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            study.enqueue_trial(usual(base))
        asked = [study.ask() for _ in range(count)]
        errors = _errors(data, [suggested(trial, base) for trial in asked], jobs)
        for trial, error in zip(asked, errors, strict=True):
            study.tell(trial, error)
    trials = _complete(study)
    best = min(trials, key=lambda trial: (trial.value, trial.number))
    assert best.value is not None
    assert trials[0].value is not None
    settings = suggested(optuna.trial.FixedTrial(best.params), base)  # type: ignore[arg-type]
    return Found(settings, best.value, trials[0].value, len(trials))


def settings_document(settings: FitSettings) -> dict[str, Any]:
    """Return the settings as `--settings` reads them."""
    return {name: value for name, value in asdict(settings).items() if name != "seed"}


def _study(data: Dataset, plan: SearchPlan, base: FitSettings) -> optuna.Study:
    plan.study.parent.mkdir(parents=True, exist_ok=True)
    storage = JournalStorage(JournalFileBackend(str(plan.study)))
    study = optuna.create_study(study_name="pair", storage=storage, direction="minimize", load_if_exists=True)
    mark = f"{data.fingerprint} {base.inner_folds} {plan.seed} {plan.width}"
    known = study.user_attrs.get(_FINGERPRINT, mark)
    if known != mark:
        raise SearchError(f"{plan.study} is a search over other records, folds, width or seed: give another --study")
    study.set_user_attr(_FINGERPRINT, mark)
    return study


def _complete(study: optuna.Study) -> list[FrozenTrial]:
    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))


def _drop_unfinished(study: optuna.Study) -> None:
    """Fail what a killed run left open: its round is asked for again, and gives the same."""
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        study.tell(trial.number, state=TrialState.FAIL)


def _errors(data: Dataset, tried: list[FitSettings], jobs: int) -> list[float]:
    """Return the error of each of the settings: all their folds side by side."""
    folds = [Members(data, settings, Finished()).folds_P for settings in tried]
    calls = [
        joblib.delayed(held_out_corrections)(data, folds_P == fold, settings)
        for settings, folds_P in zip(tried, folds, strict=True)
        for fold in range(settings.inner_folds)
    ]
    parts = iter(joblib.Parallel(n_jobs=jobs)(calls))
    errors = []
    for settings, folds_P in zip(tried, folds, strict=True):
        held = [next(parts) for _ in range(settings.inner_folds)]
        shares = np.zeros((held[0].shape[0], *data.priors.shape))
        for fold, part in enumerate(held):
            shares[:, folds_P == fold] = part
        errors.append(out_of_fold_error(data, shares, folds_P))
    return errors


def out_of_fold_error(data: Dataset, corrections_HPQ: Floats, folds_P: NDArray[np.int64]) -> float:
    """Return the mean capped error of the joined answers: quantities and plan families count alike, architectures too.

    How the heads are joined is chosen for each fold on the others.
    """
    expected = data.priors.copy()
    for fold in np.unique(folds_P):
        known, held = np.flatnonzero((folds_P != fold) & data.is_measured_P), np.flatnonzero(folds_P == fold)
        part = data.take(known)
        blend = Blend.fit(part.examples, part.measured_PQ, corrections_HPQ[:, known], part.architectures)
        expected[held] = blend.apply(data.take(held).examples, corrections_HPQ[:, held])
    error = np.minimum(np.abs(expected / data.measured_PQ - 1.0), _ERROR_CAP)
    error[~data.is_measured_P] = np.nan
    group = np.unique(np.array(data.architectures), return_inverse=True)[1]
    eager_P = np.array([example.is_eager for example in data.examples])
    means = []
    for family in (eager_P, ~eager_P):
        for column in range(error.shape[1]):
            rows = np.flatnonzero(family & np.isfinite(error[:, column]))
            if len(rows):
                sizes = np.bincount(group[rows])
                by_group = np.bincount(group[rows], weights=error[rows, column])[sizes > 0] / sizes[sizes > 0]
                means.append(float(by_group.mean()))
    return float(np.mean(means))
