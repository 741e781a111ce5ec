"""The members of the pair, fitted out of fold and on everything: LSTM and trees, one finished step at a time.

Shapes: P records, Q quantities, R = P * Q rows, F features, H heads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peakcast.featurizer.vocabulary import QUANTITIES
from peakcast.models.example import Floats
from peakcast.models.gbm import Trees, feature_matrix, feature_names
from peakcast.models.heads import HEADS, corrections, head_targets, head_weights
from peakcast.models.lstm import SequenceModel
from peakcast.training.dataset import Dataset
from peakcast.training.finished import Finished, Step
from peakcast.training.fit_lstm import fit_sequence_model
from peakcast.training.fit_settings import FitSettings, TreeSettings

Q = len(QUANTITIES)
# The LSTM's additive targets, in asinh units: beyond, the simulation has failed and there is nothing to learn.
_ADDITIVE_LIMIT = 5.0


@dataclass(frozen=True, slots=True, eq=False)
class Ensemble:
    """One ensemble to fit, on rows [R] of features; NaN targets are left out."""

    features_RF: Floats
    names: Sequence[str]
    target_R: Floats
    weight_R: Floats
    objective: str
    rounds: int
    seed: int
    trees: TreeSettings

    def fit(self, chosen_R: NDArray[np.bool_] | None = None) -> Trees:
        """Fit on the rows chosen (default: all)."""
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
            parameters=asdict(self.trees),
        )

    def outputs_of(self, held_R: NDArray[np.bool_]) -> Floats:
        """Return what the ensemble says of the rows that are marked, fitted on the others."""
        return self.fit(~held_R).predict(self.features_RF[held_R])

    def text(self) -> bytes:
        """Return the ensemble fitted on everything."""
        return self.fit().to_text()


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """Fits the members on a dataset. `finished` keeps each step, `jobs` processes run side by side.

    `told` hears what begins. Reported and replayed records are fitted on; only measured ones are ever judged.
    """

    data: Dataset
    settings: FitSettings
    finished: Finished
    jobs: int = 1
    told: Callable[[str], None] = lambda _: None

    @property
    def folds_P(self) -> NDArray[np.int64]:
        """Return the fold of each record."""
        return self.data.folds(self.settings.inner_folds, self.settings.seed)

    @property
    def scratch_P(self) -> Floats:
        """Return each record's scratch bytes."""
        return np.array([example.scratch_bytes for example in self.data.examples])

    @property
    def targets(self) -> dict[str, Floats]:
        """Return the targets of each head, [P, Q]."""
        return head_targets(self.data.priors, self.data.measured_PQ, self.scratch_P)

    @property
    def names(self) -> list[str]:
        """Return the trees' columns."""
        return feature_names(self.data.examples, with_replays=bool(self.data.is_replayed_P.any()))

    def guesses(self) -> Floats:
        """Return the LSTM's [P, 2Q], each from one that never saw the record's architecture."""
        targets, folds_P = self.sequence_targets(), self.folds_P
        held = [np.flatnonzero(folds_P == fold) for fold in range(self.settings.inner_folds)]
        steps = [
            Step(f"lstm-{fold}", _guesses_of, (self.data, targets, folds_P, fold, self.settings))
            for fold in range(self.settings.inner_folds)
        ]
        guesses = np.zeros((len(self.data), 2 * Q))
        for index, part in zip(held, self._run("LSTM out of fold", steps), strict=True):
            guesses[index] = part
        return guesses

    def features(self) -> Floats:
        """Return the trees' rows."""
        return feature_matrix(self.data.examples, None, self.names, self.data.is_replayed_P)

    def heads(self, features_RF: Floats) -> dict[str, Ensemble]:
        """Return the ensemble of each head."""
        targets = self.targets
        weights = head_weights(self.data.priors, self.data.measured_PQ, self.scratch_P)
        return {
            name: self._ensemble(
                features_RF, targets[name], weights[name], "l1", self.settings.rounds, self.settings.trees
            )
            for name in HEADS
        }

    def spread(self, features_RF: Floats, target_PQ: Floats) -> Ensemble:
        """Return the ensemble that bounds are drawn from."""
        settings = self.settings
        return self._ensemble(
            features_RF, target_PQ, np.ones_like(target_PQ), "l2", settings.spread_rounds, settings.spread_trees
        )

    def _ensemble(
        self,
        features_RF: Floats,
        target_PQ: Floats,
        weight_PQ: Floats,
        objective: str,
        rounds: int,
        trees: TreeSettings,
    ) -> Ensemble:
        """Return an ensemble whose records weigh as the dataset says."""
        weight_R = (self.data.weights[:, None] * weight_PQ).ravel()
        target_R, seed = target_PQ.ravel(), self.settings.seed
        return Ensemble(features_RF, self.names, target_R, weight_R, objective, rounds, seed, trees)

    def out_of_fold(self, ensembles: Mapping[str, Ensemble], what: str) -> dict[str, Floats]:
        """Return each ensemble's outputs [P, Q], from trees that never saw the record's architecture."""
        fold_R = np.repeat(self.folds_P, Q)
        marks = [fold_R == fold for fold in range(self.settings.inner_folds)]
        steps = [
            Step(f"{what}-{name}-{fold}", ensemble.outputs_of, (held,))
            for name, ensemble in ensembles.items()
            for fold, held in enumerate(marks)
        ]
        parts = iter(self._run(f"{what} out of fold", steps))
        outputs = {}
        for name in ensembles:
            rows = np.zeros(len(fold_R))
            for held in marks:
                rows[held] = next(parts)
            outputs[name] = rows.reshape(-1, Q)
        return outputs

    def corrections(self, outputs: Mapping[str, Floats], guesses_P2Q: Floats) -> Floats:
        """Return what the heads say as shares of the prior, [H, P, Q]."""
        return corrections(outputs, self.data.priors, self.scratch_P, guesses_P2Q)

    def final(self, ensembles: Mapping[str, Ensemble]) -> tuple[SequenceModel, dict[str, Trees]]:
        """Return LSTM and ensembles fitted on everything."""
        steps = [
            Step("lstm-all", _sequence_tensors, (self.data, self.sequence_targets(), None, self.settings)),
            *(Step(f"trees-{name}-all", ensemble.text, ()) for name, ensemble in ensembles.items()),
        ]
        tensors, *texts = self._run("LSTM and trees on everything", steps)
        trees = {name: Trees.from_text(text) for name, text in zip(ensembles, texts, strict=True)}
        return SequenceModel(tensors), trees

    def sequence_targets(self) -> Floats:
        """Return the LSTM's targets [P, 2Q]."""
        targets = self.targets
        additive = np.clip(targets["additive"], -_ADDITIVE_LIMIT, _ADDITIVE_LIMIT)
        return np.concatenate([targets["ratio"], additive], axis=1)

    def _run(self, what: str, steps: Sequence[Step]) -> list[Any]:
        return self.finished.run(steps, jobs=self.jobs, told=lambda count: self.told(f"{what}, {count}"))


def held_out_corrections(data: Dataset, held_P: NDArray[np.bool_], settings: FitSettings) -> Floats:
    """Return what all heads say [H, n, Q] of the n records that are marked, fitted on the others."""
    members = Members(data, settings, Finished())
    tensors = _sequence_tensors(data, members.sequence_targets(), ~held_P, settings)
    guesses = SequenceModel(tensors).predict(data.where(held_P).examples)
    held_R = np.repeat(held_P, Q)
    outputs = {
        name: ensemble.outputs_of(held_R).reshape(-1, Q) for name, ensemble in members.heads(members.features()).items()
    }
    return corrections(outputs, data.priors[held_P], members.scratch_P[held_P], guesses)


def _guesses_of(
    data: Dataset, targets_PW: Floats, folds_P: NDArray[np.int64], fold: int, settings: FitSettings
) -> Floats:
    held = folds_P == fold
    model = SequenceModel(_sequence_tensors(data, targets_PW, ~held, settings))
    return model.predict(data.where(held).examples) if held.any() else np.zeros((0, targets_PW.shape[1]))


def _sequence_tensors(
    data: Dataset, targets_PW: Floats, chosen_P: NDArray[np.bool_] | None, settings: FitSettings
) -> dict[str, NDArray[np.float32]]:
    chosen = np.ones(len(data), dtype=bool) if chosen_P is None else chosen_P
    part = data.where(chosen)
    model = fit_sequence_model(
        part.examples,
        targets_PW[chosen],
        data.weights[chosen],
        seed=settings.seed,
        settings=settings.sequence,
        is_replayed_P=part.is_replayed_P,
    )
    return dict(model.tensors)
