"""The trees of the pair: LightGBM on graph summary and prior, one row for each plan and quantity.

Shapes: P plans (examples), Q quantities, R = P * Q rows, F features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from peakcast.featurizer.vocabulary import QUANTITIES
from peakcast.models.example import CONTEXT_NAMES, Example, Floats
from peakcast.models.forest import Forest

ROW_NAMES = ("quantity", "log2_prior", "prior_over_steady", "resident_share")
# Tells in training which labels were computed; what is served is always asked as measured.
REPLAYED_NAME = "replayed"

# Small trees with a strong pull to zero: a few hundred records from a few dozen architectures, most of them within
# 1 % already. One thread and fixed orders make the text the same to the bit.
PARAMETERS: Mapping[str, Any] = {
    "num_leaves": 12,
    "learning_rate": 0.04,
    "min_data_in_leaf": 20,
    "feature_fraction": 0.5,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "lambda_l2": 1.0,
    "num_threads": 1,
    "deterministic": True,
    "force_row_wise": True,
    "verbosity": -1,
}


def feature_names(examples: Sequence[Example], *, with_replays: bool = False) -> list[str]:
    """Return the F names: the summary's, the context's, then the row's own; the replays' mark last."""
    return [*examples[0].summary, *CONTEXT_NAMES, *ROW_NAMES, *([REPLAYED_NAME] if with_replays else [])]


def feature_matrix(
    examples: Sequence[Example],
    sequence_P2Q: Floats | None,
    names: Sequence[str],
    is_replayed_P: NDArray[np.bool_] | None = None,
) -> Floats:
    """Return [R, F]: rows in the order plan, then quantity. A summary feature an example lacks is NaN.

    `sequence_P2Q`: the LSTM's guesses, which trees of version 0.1 read; `is_replayed_P` marks labels that were computed
    (default: none).
    """
    count = len(QUANTITIES)
    known = names.index(CONTEXT_NAMES[0])
    shared = np.array([[e.summary.get(name, np.nan) for name in names[:known]] for e in examples], dtype=float)
    context = np.stack([example.context_K for example in examples])
    prior = np.stack([example.prior_bytes for example in examples])
    resident = np.stack([example.floor_bytes for example in examples])
    own = {
        "quantity": np.broadcast_to(np.arange(count, dtype=float), prior.shape),
        "log2_prior": np.log2(prior),
        "prior_over_steady": prior / prior[:, :1],
        "resident_share": resident / prior,
    }
    if sequence_P2Q is not None:
        own |= {"lstm_ratio": sequence_P2Q[:, :count], "lstm_bytes": sequence_P2Q[:, count:]}
    replayed = np.zeros(len(examples)) if is_replayed_P is None else is_replayed_P.astype(float)
    own[REPLAYED_NAME] = np.broadcast_to(replayed[:, None], prior.shape)
    rows = np.stack([own[name] for name in names[known + len(CONTEXT_NAMES) :]], axis=-1)
    repeated = np.repeat(np.concatenate([shared, context], axis=1), count, axis=0)
    return np.concatenate([repeated, rows.reshape(repeated.shape[0], -1)], axis=1)


@dataclass(frozen=True, eq=False)
class Trees:
    """One boosted ensemble as LightGBM's text. LightGBM is needed to fit and to explain it, not to predict."""

    text: str

    @cached_property
    def forest(self) -> Forest:
        """Return the trees as arrays."""
        return Forest.from_text(self.text)

    @classmethod
    def fit(
        cls,
        features_RF: Floats,
        target_R: Floats,
        weight_R: Floats,
        *,
        names: Sequence[str],
        objective: str,
        rounds: int,
        seed: int,
        parameters: Mapping[str, Any] | None = None,
    ) -> Self:
        """Fit on the rows given, all of them with a target. `parameters` go before the usual ones."""
        import lightgbm

        data = lightgbm.Dataset(
            features_RF,
            target_R,
            weight=weight_R,
            # LightGBM allows few characters in names: columns are numbered here, and named in the artefact's JSON.
            feature_name=[f"f{column}" for column in range(len(names))],
            categorical_feature=[list(names).index("quantity")],
        )
        chosen = {**PARAMETERS, **(parameters or {}), "objective": objective, "seed": seed}
        return cls(lightgbm.train(chosen, data, num_boost_round=rounds).model_to_string())

    def predict(self, features_RF: Floats) -> Floats:
        """Return [R], what LightGBM gives to the bit."""
        return self.forest.predict(features_RF)

    def contributions(self, features_RF: Floats) -> Floats:
        """Return TreeSHAP values [R, F + 1]; the last column is the expected value."""
        import lightgbm

        booster = lightgbm.Booster(model_str=self.text)
        return np.asarray(booster.predict(features_RF, pred_contrib=True, num_threads=1), dtype=float)

    def to_text(self) -> bytes:
        """Return LightGBM's text format."""
        return self.text.encode()

    @classmethod
    def from_text(cls, text: bytes) -> Self:
        """Read LightGBM's text format.

        Raises:
            ValueError: if it is not that, or uses what is not evaluated here.
        """
        trees = cls(text.decode())
        assert trees.forest is not None  # read now, so that what is wrong is said where it is loaded
        return trees
