"""What each part of the pair is worth: the simulation, the LSTM and the trees, alone and joined, on the same folds.

With the simulation a part corrects the prior; without it the part has to say log2 of the bytes itself, from the nodes
(LSTM) or from sums over the graph that no lifetime went into (trees). Every output is out of fold by architecture, and
how far the corrections are trusted is chosen for each fold on the others.

Shapes: P records, Q quantities, T steps, H heads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from peakcast.featurizer.vocabulary import QUANTITIES
from peakcast.models.blend import Blend
from peakcast.models.example import CONTEXT_NAMES, Example, Floats
from peakcast.models.gbm import ROW_NAMES
from peakcast.models.heads import ALL_HEADS, HEADS
from peakcast.training.dataset import Dataset
from peakcast.training.finished import Step
from peakcast.training.fit_lstm import fit_sequence_model
from peakcast.training.fit_members import Ensemble, Members
from peakcast.training.fit_settings import FitSettings

_Q: Final = len(QUANTITIES)
# How much of what an LSTM says beyond the trees is believed.
_RESIDUAL_SHARES: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
_SIMULATED_CONTEXT: Final = "log2_prior_gib"
# What a graph's tables tell without knowing when anything is freed.
_STATIC: Final = re.compile(
    r"log2_(parameters|buffers|inputs|outputs|optimizer_state)_mib|log2_(nodes|storages|regions|branches|accumulation"
    r"|world_size)|.*_(nodes_share|born_share|born_fraction|scratch_log2_mib)|(is|uses|optimizer|implementation)_.*"
    r"|autocast_half|expandable_segments|budget|device_capability|torch_version|traced_on_cpu"
)
_GIB_LOG2: Final = 30.0

PRIOR: Final = "simulation alone"
PAIR: Final = "pair on the simulation"


@dataclass(frozen=True, slots=True, eq=False)
class Ablation:
    """Expected bytes [P, Q] of each variant for the measured records, out of fold."""

    data: Dataset
    expected: Mapping[str, Floats]


def ablate(members: Members) -> Ablation:
    """Fit every variant on the members' folds."""
    guesses = members.guesses()
    corrections = members.corrections(members.out_of_fold(members.heads(members.features()), "trees"), guesses)
    trees_log2 = _trees_without_prior(members)
    residual = _sequences_without_prior(members, trees_log2)
    expected = {
        "LSTM without simulation": _bytes(_sequences_without_prior(members, None)),
        "trees without simulation": _bytes(trees_log2),
        "pair without simulation": _bytes(_joined(members, trees_log2, residual)),
        PRIOR: members.data.priors,
        "LSTM on the simulation": _nested(members, corrections, [name for name in ALL_HEADS if name not in HEADS]),
        "trees on the simulation": _nested(members, corrections, HEADS),
        PAIR: _nested(members, corrections, ALL_HEADS),
    }
    measured = np.flatnonzero(members.data.is_measured_P)
    return Ablation(members.data.take(measured), {name: value[measured] for name, value in expected.items()})


def _nested(members: Members, corrections_HPQ: Floats, heads: Sequence[str]) -> Floats:
    """Return expected bytes: the numbers of each fold's shrinkage are chosen on the other folds."""
    data, folds_P = members.data, members.folds_P
    expected = data.priors.copy()
    for fold in range(members.settings.inner_folds):
        chosen, held = np.flatnonzero((folds_P != fold) & data.is_measured_P), np.flatnonzero(folds_P == fold)
        part = data.take(chosen)
        blend = Blend.fit(part.examples, part.measured_PQ, corrections_HPQ[:, chosen], part.architectures, heads=heads)
        expected[held] = blend.apply(data.take(held).examples, corrections_HPQ[:, held])
    return expected


def _log2(measured_PQ: Floats) -> Floats:
    log2: Floats = np.log2(measured_PQ) - _GIB_LOG2
    return log2


def _bytes(log2_PQ: Floats) -> Floats:
    size: Floats = np.exp2(log2_PQ + _GIB_LOG2)
    return size


def _sequences_without_prior(members: Members, base_log2_PQ: Floats | None) -> Floats:
    """Return log2 [P, Q] of LSTMs that read the nodes and the run, and neither peak nor watermark.

    Of GiB; with a base, of what is measured beyond it: boosting, since trees read totals that an LSTM's mean forgets.
    """
    data, folds_P = members.data, members.folds_P
    base = np.zeros_like(data.measured_PQ) if base_log2_PQ is None else base_log2_PQ
    name = "plain-lstm" if base_log2_PQ is None else "plain-residual"
    steps = [
        Step(f"{name}-{fold}", _plain_sequence, (data, base, folds_P == fold, members.settings))
        for fold in range(members.settings.inner_folds)
    ]
    log2 = np.zeros_like(data.measured_PQ)
    told = members.told
    for fold, part in enumerate(
        members.finished.run(steps, jobs=members.jobs, told=lambda count: told(f"{name}, {count}"))
    ):
        log2[folds_P == fold] = part
    return log2


def _joined(members: Members, base_log2_PQ: Floats, residual_PQ: Floats) -> Floats:
    """Return the base with a share of the residual on top: the share of each fold is the best of the others."""
    data, folds_P = members.data, members.folds_P
    joined = base_log2_PQ.copy()
    for fold in range(members.settings.inner_folds):
        known = (folds_P != fold) & data.is_measured_P
        truth = _log2(data.measured_PQ[known])
        losses = [
            float(np.nanmean(np.abs(np.exp2(base_log2_PQ[known] + share * residual_PQ[known] - truth) - 1.0)))
            for share in _RESIDUAL_SHARES
        ]
        joined[folds_P == fold] += _RESIDUAL_SHARES[int(np.argmin(losses))] * residual_PQ[folds_P == fold]
    return joined


def _plain_sequence(data: Dataset, base_PQ: Floats, held_P: NDArray[np.bool_], settings: FitSettings) -> Floats:
    fitted = data.where(~held_P)
    missing = _log2(fitted.measured_PQ) - base_PQ[~held_P]
    targets = np.concatenate([missing, np.full_like(missing, np.nan)], axis=1)
    model = fit_sequence_model(
        [_without_prior(example) for example in fitted.examples],
        targets,
        fitted.weights,
        seed=settings.seed,
        settings=replace(settings.sequence, watermark_weight=0.0),
        is_replayed_P=fitted.is_replayed_P,
    )
    found: Floats = model.predict([_without_prior(example) for example in data.where(held_P).examples])[:, :_Q]
    return found


def _without_prior(example: Example) -> Example:
    context = example.context_K.copy()
    context[CONTEXT_NAMES.index(_SIMULATED_CONTEXT)] = 0.0
    return replace(
        example,
        peak_step=len(example.steps_TC) - 1,
        watermark_T=np.zeros_like(example.watermark_T),
        context_K=context,
    )


def _trees_without_prior(members: Members) -> Floats:
    """Return log2 GiB [P, Q] of trees on what the graph's tables tell."""
    data = members.data
    static = [name for name in data.examples[0].summary if _STATIC.fullmatch(name)]
    shared = np.array([[example.summary[name] for name in static] for example in data.examples])
    written = np.array([[np.log2(1.0 + example.facts.written_bytes)] for example in data.examples])
    context = np.stack([_without_prior(example).context_K for example in data.examples])
    rows = np.repeat(np.concatenate([shared, written, context], axis=1), _Q, axis=0)
    quantity = np.tile(np.arange(_Q, dtype=float), len(data))[:, None]
    ensemble = Ensemble(
        np.concatenate([rows, quantity], axis=1),
        [*static, "log2_written", *CONTEXT_NAMES, ROW_NAMES[0]],
        _log2(data.measured_PQ).ravel(),
        np.repeat(data.weights, _Q),
        "l1",
        members.settings.rounds,
        members.settings.seed,
        members.settings.trees,
    )
    return members.out_of_fold({"log2": ensemble}, "plain trees")["log2"]


@dataclass(frozen=True, slots=True)
class Column:
    """Which records and quantities a column of the table is about."""

    name: str
    compiled: bool | None  # None: both
    quantities: tuple[str, ...]


COLUMNS: Final = (
    Column("eager, steady allocated", compiled=False, quantities=QUANTITIES[:1]),
    Column("eager, all quantities", compiled=False, quantities=QUANTITIES),
    Column("compiled, steady allocated", compiled=True, quantities=QUANTITIES[:1]),
    Column("compiled, all quantities", compiled=True, quantities=QUANTITIES),
    Column("all plans and quantities", compiled=None, quantities=QUANTITIES),
)


def ablation_rows(found: Ablation) -> dict[str, dict[str, dict[str, float]]]:
    """Return for each variant and column the median and mean absolute error, and the number of peaks. Percent."""
    eager_P = np.array([example.is_eager for example in found.data.examples])
    rows: dict[str, dict[str, dict[str, float]]] = {}
    for name, expected in found.expected.items():
        error = np.abs(expected / found.data.measured_PQ - 1.0) * 100.0
        rows[name] = {}
        for column in COLUMNS:
            chosen = np.ones(len(eager_P), bool) if column.compiled is None else eager_P != column.compiled
            part = error[chosen][:, [QUANTITIES.index(quantity) for quantity in column.quantities]]
            part = part[np.isfinite(part)]
            if len(part):
                rows[name][column.name] = {
                    "n": len(part),
                    "median_percent": float(np.median(part)),
                    "mean_percent": float(part.mean()),
                }
    return rows
