"""How a pair is fitted: everything that a search may tune, in one place."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path

import orjson

from peakcast.models.gbm import PARAMETERS


class SettingsError(ValueError):
    """A file of settings that cannot be used."""


@dataclass(frozen=True, slots=True)
class SequenceSettings:
    """Size and schedule of the LSTM. The defaults fit a few hundred examples in well under a minute on one core."""

    hidden: int = 32
    head: int = 24
    epochs: int = 24
    batch: int = 32
    learning_rate: float = 4e-3
    weight_decay: float = 3e-2
    # The watermark's share of the loss, beside 1 for the corrections.
    watermark_weight: float = 0.3


@dataclass(frozen=True, slots=True)
class TreeSettings:
    """Shape of the trees. The defaults are those of `models.gbm`."""

    num_leaves: int = PARAMETERS["num_leaves"]
    learning_rate: float = PARAMETERS["learning_rate"]
    min_data_in_leaf: int = PARAMETERS["min_data_in_leaf"]
    feature_fraction: float = PARAMETERS["feature_fraction"]
    lambda_l2: float = PARAMETERS["lambda_l2"]


# Large excesses are rare, and a leaf of few records is a leaf of one architecture.
SPREAD_TREES = TreeSettings(min_data_in_leaf=100, feature_fraction=0.3)


@dataclass(frozen=True, slots=True)
class FitSettings:
    """How much to fit. `inner_folds`: into how many the architectures are split for out-of-fold outputs."""

    seed: int = 0
    inner_folds: int = 5
    rounds: int = 250
    spread_rounds: int = 80
    sequence: SequenceSettings = field(default_factory=SequenceSettings)
    trees: TreeSettings = field(default_factory=TreeSettings)
    spread_trees: TreeSettings = SPREAD_TREES


def read_settings(path: Path | None, *, seed: int = 0) -> FitSettings:
    """Return the settings of a file, as `peakcast search` writes it, with this seed; None: the usual ones.

    Raises:
        SettingsError: if the file is no JSON object of known settings.
    """
    if path is None:
        return FitSettings(seed=seed)
    try:
        found = orjson.loads(path.read_bytes())
        parts = {
            "sequence": SequenceSettings(**found.pop("sequence", {})),
            "trees": TreeSettings(**found.pop("trees", {})),
            "spread_trees": TreeSettings(**{**asdict(SPREAD_TREES), **found.pop("spread_trees", {})}),
        }
        return FitSettings(**{**found, **parts, "seed": seed})
    except (orjson.JSONDecodeError, AttributeError, TypeError) as error:
        raise SettingsError(f"{path} holds no settings of a fit: {error}") from error
