"""Judge the pair on architectures it never saw: the whole of it, bounds included, refitted for each fold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peakcast.featurizer.vocabulary import QUANTITIES
from peakcast.models.example import Floats
from peakcast.models.predictor import Forecast
from peakcast.training.dataset import Dataset
from peakcast.training.finished import Finished, Step
from peakcast.training.fit import fit_pair
from peakcast.training.fit_settings import FitSettings
from peakcast.training.importance import node_shares, tree_parts, tree_shares

# The rule of thumb of training with Adam: weights, gradients and two moments.
WEIGHTS_RULE = 4


@dataclass(frozen=True, slots=True, eq=False)
class HeldOut:
    """Predictions for every record by a pair that never saw its architecture. P records, Q quantities."""

    data: Dataset
    folds_P: NDArray[np.int64]
    expected_PQ: Floats
    upper_PQ: Floats
    confidence_P: Sequence[str]
    extended_P: Sequence[bool]
    risk: float
    tree_shares: Mapping[str, float]  # mean over the folds, on the records held out
    node_shares: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Score:
    """Errors of one method over some records. Percent of the measured bytes."""

    n: int
    median_percent: float
    mean_percent: float
    p95_percent: float
    under_predicted_percent: float


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a set of records and a quantity under the three methods, and the pair's bound."""

    label: str
    quantity: str
    pair: Score
    prior: Score
    weights_rule: Score
    covered_percent: float
    slack_percent: float


@dataclass(frozen=True, slots=True)
class Worst:
    """One of the records predicted worst."""

    key: str
    architecture: str
    plan: str
    task: str
    measured_bytes: int
    expected_bytes: int
    prior_bytes: int
    error_percent: float
    confidence: str


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
            f"fold-{fold}",
            _fold,
            (data.where(fold_P != fold), asked, asked_P == fold, risk, replace(settings, seed=settings.seed + fold)),
        )
        for fold in range(folds)
        if (asked_P == fold).any()
    ]
    parts = (finished or Finished()).run(steps, jobs=jobs, told=lambda count: told(f"fold {count}"))
    expected, upper = np.empty_like(asked.measured_PQ), np.empty_like(asked.measured_PQ)
    confidence, extended = [""] * len(asked), [False] * len(asked)
    for index, forecast, _, _ in parts:
        expected[index], upper[index] = forecast.expected_PQ, forecast.upper_PQ
        for place, row in enumerate(index):
            confidence[row], extended[row] = forecast.confidence[place], forecast.extended[place]
    judged = np.flatnonzero(asked.is_measured_P)
    return HeldOut(
        asked.take(judged),
        asked_P[judged],
        expected[judged],
        upper[judged],
        [confidence[row] for row in judged],
        [extended[row] for row in judged],
        risk,
        tree_shares=_mean_shares([trees for _, _, trees, _ in parts]),
        node_shares=_mean_shares([nodes for _, _, _, nodes in parts]),
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
        forecast.confidence,
        forecast.extended,
        risk,
        tree_shares=tree_shares(predictor, frozen.examples),
        node_shares=node_shares(predictor, frozen.examples),
    )


def _fold(
    data: Dataset, asked: Dataset, held: NDArray[np.bool_], risk: float, settings: FitSettings
) -> tuple[NDArray[np.int64], Forecast, dict[str, float], dict[str, float]]:
    predictor = fit_pair(data, settings)
    index = np.flatnonzero(held & asked.is_measured_P)
    examples = asked.take(index).examples
    return index, predictor.forecast(examples, risk), tree_shares(predictor, examples), node_shares(predictor, examples)


def _mean_shares(folds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    mean = {name: sum(fold[name] for fold in folds) / len(folds) for name in folds[0]}
    return dict(sorted(mean.items(), key=lambda item: -item[1]))


def score(expected: Floats, measured: Floats) -> Score:
    """Return the errors of expectations, all measured."""
    if not len(measured):
        return Score(0, *[float("nan")] * 4)
    signed = expected / measured - 1.0
    error = np.abs(signed) * 100.0
    return Score(
        n=len(measured),
        median_percent=float(np.median(error)),
        mean_percent=float(error.mean()),
        p95_percent=float(np.percentile(error, 95)),
        under_predicted_percent=float((signed < 0).mean() * 100.0),
    )


def table(held: HeldOut) -> list[Row]:
    """Return the lines: steady_allocated by plan and task, eager and inductor together, then every other quantity."""
    plans, tasks = held.data.plans, [example.task for example in held.data.examples]

    def where(test: Callable[[str, str], bool]) -> NDArray[np.bool_]:
        return np.array([test(plan, task) for plan, task in zip(plans, tasks, strict=True)])

    rows = []
    for plan, task in sorted(set(zip(plans, tasks, strict=True))):
        chosen = where(lambda p, t, plan=plan, task=task: (p, t) == (plan, task))  # type: ignore[misc]
        rows.append(_row(held, chosen, 0, f"{plan}, {task}"))
    rows.append(_row(held, where(lambda p, _: p == "eager"), 0, "eager"))
    rows.append(_row(held, where(lambda p, _: p == "inductor"), 0, "inductor"))
    both = where(lambda p, _: p in {"eager", "inductor"})
    everything = np.ones(len(plans), dtype=bool)
    for column in range(len(QUANTITIES)):
        rows.append(_row(held, both, column, "eager and inductor"))
        rows.append(_row(held, everything, column, "all plans"))
    return [row for row in rows if row.pair.n]


def _row(held: HeldOut, chosen: NDArray[np.bool_], column: int, label: str) -> Row:
    index = np.flatnonzero(chosen & np.isfinite(held.data.measured_PQ[:, column]))
    measured = held.data.measured_PQ[index, column]
    upper = held.upper_PQ[index, column]
    return Row(
        label=label,
        quantity=QUANTITIES[column],
        pair=score(held.expected_PQ[index, column], measured),
        prior=score(held.data.priors[index, column], measured),
        weights_rule=score(WEIGHTS_RULE * held.data.weights_bytes_P[index], measured),
        covered_percent=float((measured <= upper).mean() * 100.0) if len(index) else float("nan"),
        slack_percent=float((upper / measured - 1.0).mean() * 100.0) if len(index) else float("nan"),
    )


def worst(held: HeldOut, count: int = 20) -> list[Worst]:
    """Return the records whose steady_allocated is furthest off, worst first."""
    measured, expected = held.data.measured_PQ[:, 0], held.expected_PQ[:, 0]
    error = np.nan_to_num((expected / measured - 1.0) * 100.0)
    return [
        Worst(
            key=held.data.keys[row],
            architecture=held.data.architectures[row],
            plan=held.data.examples[row].plan,
            task=held.data.examples[row].task,
            measured_bytes=round(float(measured[row])),
            expected_bytes=round(float(expected[row])),
            prior_bytes=round(float(held.data.priors[row, 0])),
            error_percent=float(error[row]),
            confidence=held.confidence_P[row],
        )
        for row in np.argsort(-np.abs(error), kind="stable")[:count]
    ]


def summary(held: HeldOut, frozen: HeldOut | None = None) -> dict[str, Any]:
    """Return everything the report shows, as plain JSON values: the folds, and the frozen split where it is given."""
    names, counts = np.unique(np.array(held.confidence_P), return_counts=True)
    return {
        "records": len(held.data),
        "architectures": len(set(held.data.architectures)),
        "folds": int(held.folds_P.max()) + 1,
        "risk": held.risk,
        "data_sha256": held.data.data_sha256,
        "tail_bounds": int(sum(held.extended_P)),
        "confidence": dict(zip(names.tolist(), counts.tolist(), strict=True)),
        "tree_shares": dict(held.tree_shares),
        "tree_parts": tree_parts(held.tree_shares),
        "node_shares": dict(held.node_shares),
        "rows": [asdict(row) for row in table(held)],
        "worst": [asdict(record) for record in worst(held)],
        "frozen": None if frozen is None else _frozen_summary(frozen),
    }


def _frozen_summary(frozen: HeldOut) -> dict[str, Any]:
    return {
        "records": len(frozen.data),
        "architectures": len(set(frozen.data.architectures)),
        "rows": [asdict(row) for row in table(frozen)],
    }
