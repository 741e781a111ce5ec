"""Judge the pair on architectures it never saw: the whole of it, bounds included, refitted for each fold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from peakcast.models.example import Floats
from peakcast.models.predictor import Forecast
from peakcast.training.dataset import Dataset
from peakcast.training.finished import Finished, Step
from peakcast.training.fit import fit_pair
from peakcast.training.fit_settings import FitSettings
from peakcast.training.importance import node_shares, tree_shares

# Of the bounds that decisions are judged by: what a client asks for unless told otherwise.
DECISION_RISK: Final = 0.01


@dataclass(frozen=True, slots=True, eq=False)
class HeldOut:
    """Predictions for every record by a pair that never saw its architecture. P records, Q quantities."""

    data: Dataset
    folds_P: NDArray[np.int64]
    expected_PQ: Floats
    upper_PQ: Floats  # at `risk`
    decision_upper_PQ: Floats  # at DECISION_RISK
    confidence_P: Sequence[str]
    extended_P: Sequence[bool]
    risk: float
    tree_shares: Mapping[str, float]  # mean over the folds, on the records held out
    node_shares: Mapping[str, float]


@dataclass(frozen=True, slots=True, eq=False)
class _Fold:
    """What one fold's pair says of the records held out, by their place in what is asked."""

    index: NDArray[np.int64]
    forecast: Forecast
    decision_upper_PQ: Floats
    tree_shares: dict[str, float]
    node_shares: dict[str, float]


def cross_validate(
    data: Dataset,
    *,
    asked: Dataset | None = None,
    folds: int = 5,
    risk: float = 0.05,
    settings: FitSettings | None = None,
    jobs: int = 2,
    finished: Finished | None = None,
    told: Callable[[str], None] = lambda _: None,
) -> HeldOut:
    """Hold every fold of architectures out once and refit everything on the rest, over `jobs` processes.

    Fitted on every record of the other folds, judged on measured ones: of `data`, or of `asked` instead, each by a fold
    that leaves its architecture out. `finished` keeps each fold; `told` hears how many are done.
    """
    settings = settings or FitSettings()
    # Another seed than the inner folds': outer and inner splits must not line up.
    fold_P = data.folds(folds, settings.seed + 1)
    asked = data if asked is None else asked
    fold_of = dict(zip(data.architectures, fold_P.tolist(), strict=True))
    asked_P = np.array([fold_of.get(name, 0) for name in asked.architectures], dtype=np.int64)
    steps = [
        Step(
            f"judged-fold-{fold}",
            _fold,
            (data.where(fold_P != fold), asked, asked_P == fold, risk, replace(settings, seed=settings.seed + fold)),
        )
        for fold in range(folds)
        if (asked_P == fold).any()
    ]
    parts = (finished or Finished()).run(steps, jobs=jobs, told=lambda count: told(f"fold {count}"))
    expected, upper, decision_upper = (np.empty_like(asked.measured_PQ) for _ in range(3))
    confidence, extended = [""] * len(asked), [False] * len(asked)
    for part in parts:
        index, forecast = part.index, part.forecast
        expected[index], upper[index] = forecast.expected_PQ, forecast.upper_PQ
        decision_upper[index] = part.decision_upper_PQ
        for place, row in enumerate(index):
            confidence[row], extended[row] = forecast.confidence[place], forecast.extended[place]
    judged = np.flatnonzero(asked.is_measured_P)
    return HeldOut(
        asked.take(judged),
        asked_P[judged],
        expected[judged],
        upper[judged],
        decision_upper[judged],
        [confidence[row] for row in judged],
        [extended[row] for row in judged],
        risk,
        tree_shares=_mean_shares([part.tree_shares for part in parts]),
        node_shares=_mean_shares([part.node_shares for part in parts]),
    )


def frozen_forecast(
    data: Dataset,
    frozen: Dataset,
    *,
    risk: float = 0.05,
    settings: FitSettings | None = None,
    jobs: int = 2,
    cache: Path | None = None,
    stage: Callable[[str], None] = lambda _: None,
) -> HeldOut:
    """Fit on all of `data`, none of whose architectures are in `frozen`, and predict the frozen records."""
    predictor = fit_pair(data, settings, jobs=jobs, cache=cache, stage=stage)
    forecast = predictor.forecast(frozen.examples, risk)
    return HeldOut(
        frozen,
        np.zeros(len(frozen), np.int64),
        forecast.expected_PQ,
        forecast.upper_PQ,
        predictor.forecast(frozen.examples, DECISION_RISK).upper_PQ,
        forecast.confidence,
        forecast.extended,
        risk,
        tree_shares=tree_shares(predictor, frozen.examples),
        node_shares=node_shares(predictor, frozen.examples),
    )


def _fold(data: Dataset, asked: Dataset, held: NDArray[np.bool_], risk: float, settings: FitSettings) -> _Fold:
    predictor = fit_pair(data, settings)
    index = np.flatnonzero(held & asked.is_measured_P)
    examples = asked.take(index).examples
    return _Fold(
        index,
        predictor.forecast(examples, risk),
        predictor.forecast(examples, DECISION_RISK).upper_PQ,
        tree_shares(predictor, examples),
        node_shares(predictor, examples),
    )


def _mean_shares(folds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    mean = {name: sum(fold[name] for fold in folds) / len(folds) for name in folds[0]}
    return dict(sorted(mean.items(), key=lambda item: -item[1]))
