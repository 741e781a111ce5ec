"""Adapt a finished pair to another card, torch, allocator or precision with a few dozen records measured there.

What is the same everywhere the pair knows already; what differs is a handful of numbers, and fifty records are enough
for those. Each is chosen with whole architectures held out, and only where it mends a cell for sure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from peakcast.featurizer.vocabulary import QUANTITIES
from peakcast.models.adaptation import Adaptation, Shift, cell_of, place_of
from peakcast.models.artefact import Manifest, content_version, read_manifest, write_artefact
from peakcast.models.bounds import class_names, scale_bytes
from peakcast.models.calibration import Calibration
from peakcast.models.coverage import Coverage
from peakcast.models.example import Floats
from peakcast.models.predictor import Predictor, ordered
from peakcast.training.dataset import Dataset
from peakcast.training.lineage import code_version, libraries

# Fewer peaks in a cell choose noise; the cell is then joined with its neighbours.
_LEAST_PEAKS: Final = 12
_LEAST_ARCHITECTURES: Final = 5
_FOLDS: Final = 10
_OUTER_FOLDS: Final = 5
JUDGED_RISK: Final = 0.05
# An error counts no more than this: one wild record must not choose.
_ERROR_CAP: Final = 0.5
# Standard errors over architectures that the gain must exceed, and still be one without the architecture that gains
# most: the best of a dozen shifts gains something by chance.
_SURE: Final = 2.0
_TRUSTS: Final = (0.0, 1.0)
_STRENGTHS: Final = (0.5, 1.0)


def adapt(parent: Predictor, local: Dataset) -> Predictor:
    """Return the pair with a layer fitted on local records; whatever runs elsewhere is answered as before, to the byte.

    An adaptation that the parent has already is replaced.

    Raises:
        ValueError: if there is no local record.
    """
    if not len(local):
        raise ValueError("no local record to adapt to")
    bare = replace(parent, adaptation=None)
    expected, log2_excess = bare.unordered(local.examples)
    names = {quantity: [cell_of(example, quantity) for example in local.examples] for quantity in QUANTITIES}
    shifts: dict[str, Shift] = {}
    moved = expected.copy()
    for column, quantity in enumerate(QUANTITIES):
        for cells, rows in _cells(local, names[quantity], column):
            shift, out_of_fold = _choose(
                local.measured_PQ[rows, column],
                local.priors[rows, column],
                expected[rows, column],
                [local.architectures[row] for row in rows],
            )
            moved[rows, column] = out_of_fold
            shifts |= dict.fromkeys(cells, shift)
    moved = ordered(moved, local.examples, is_warm=True)
    adaptation = Adaptation(
        frozenset(place_of(example.facts) for example in local.examples),
        shifts,
        _calibrate(local, moved, scale_bytes(log2_excess, moved)),
        bare.coverage.joined(Coverage.fit(example.facts for example in local.examples)),
    )
    adapted = replace(bare, adaptation=adaptation)
    files = adapted.to_files()
    return Predictor.from_files(content_version(files, local.data_sha256), files)


def _cells(local: Dataset, names: Sequence[str], column: int) -> Iterator[tuple[list[str], NDArray[np.int64]]]:
    """Yield the cells that share one shift and their measured rows: alone, or joined by family where they are small."""
    measured_P = np.isfinite(local.measured_PQ[:, column])
    name_P = np.array(names)
    small: dict[str, list[str]] = {}
    for name in sorted(set(names)):
        rows = np.flatnonzero(measured_P & (name_P == name))
        if _is_enough(local, rows):
            yield [name], rows
        else:
            small.setdefault(name.split("/")[0], []).append(name)
    for cells in small.values():
        rows = np.flatnonzero(measured_P & np.isin(name_P, cells))
        if _is_enough(local, rows):
            yield cells, rows


def _is_enough(local: Dataset, rows: NDArray[np.int64]) -> bool:
    return len(rows) >= _LEAST_PEAKS and len({local.architectures[row] for row in rows}) >= _LEAST_ARCHITECTURES


def _choose(measured: Floats, prior: Floats, expected: Floats, architectures: Sequence[str]) -> tuple[Shift, Floats]:
    """Return the shift that mends most on architectures held out, and what it says of each row out of fold."""
    group = np.unique(np.array(architectures), return_inverse=True)[1]
    fold = group % min(_FOLDS, int(group.max()) + 1)
    weight = 1.0 / np.bincount(group)[group]

    def by_architecture(answer: Floats) -> Floats:
        error = np.minimum(np.abs(answer / measured - 1.0), _ERROR_CAP)
        mean: Floats = np.bincount(group, weights=error * weight).astype(np.float64)
        return mean

    best, best_answer = Shift(), expected
    before = by_architecture(expected)
    best_error = float(before.mean())
    for trust, kind, strength in product(_TRUSTS, ("none", "share", "bytes"), _STRENGTHS):
        tried: dict[str, Any] = {"trust": trust, "kind": kind, "strength": strength}
        answer = np.empty_like(expected)
        for one in np.unique(fold):
            known = fold != one
            shift = _fit(measured[known], prior[known], expected[known], weight[known], **tried)
            answer[~known] = shift.apply(prior[~known], expected[~known])
        after = by_architecture(answer)
        gain = before - after
        sure = gain.mean() > _SURE * gain.std(ddof=1) / len(gain) ** 0.5 and np.sort(gain)[:-1].mean() > 0.0
        if sure and after.mean() < best_error:
            best, best_answer = _fit(measured, prior, expected, weight, **tried), answer
            best_error = float(after.mean())
    return best, best_answer


def _fit(
    measured: Floats, prior: Floats, expected: Floats, weight: Floats, *, trust: float, kind: str, strength: float
) -> Shift:
    """Return the shift of one kind: the median of what is missing, held back by `strength`."""
    base = Shift(trust).apply(prior, expected)
    if kind == "share":
        return Shift(trust, share=strength * _median(measured / base - 1.0, weight))
    if kind == "bytes":
        return Shift(trust, offset_bytes=strength * _median(measured - base, weight))
    return Shift(trust)


def _median(values: Floats, weight: Floats) -> float:
    order = np.argsort(values, kind="stable")
    mass = np.cumsum(weight[order])
    return float(values[order][np.searchsorted(mass, 0.5 * mass[-1])])


def _calibrate(local: Dataset, moved: Floats, scale: Floats) -> Calibration:
    """Return how far the moved answers were off out of fold, on the pair's own scale."""
    kept = np.argwhere(np.isfinite(local.measured_PQ))
    index = (kept[:, 0], kept[:, 1])
    scores = (local.measured_PQ[index] - moved[index]) / scale[index]
    names = [class_names(local.examples[row], QUANTITIES[column]) for row, column in kept]
    return Calibration.fit(scores, [local.architectures[row] for row in kept[:, 0]], names)


def out_of_fold_errors(parent: Predictor, local: Dataset) -> dict[str, tuple[int, float, float]]:
    """Return by family and quantity the number of local peaks, and the mean error before and after. Percent.

    "After" is of layers fitted without the record's architecture.
    """
    bare = replace(parent, adaptation=None)
    names = sorted(set(local.architectures))
    before = bare.forecast(local.examples, JUDGED_RISK).expected_PQ
    after = before.copy()
    for fold in range(min(_OUTER_FOLDS, len(names))):
        held = np.array([names.index(name) % _OUTER_FOLDS == fold for name in local.architectures])
        if held.any() and not held.all():
            layer = adapt(parent, local.where(~held))
            after[held] = layer.forecast(local.where(held).examples, JUDGED_RISK).expected_PQ
    eager_P = np.array([example.is_eager for example in local.examples], dtype=bool)
    found: dict[str, tuple[int, float, float]] = {}
    for family, column in product(("eager", "compiled"), range(len(QUANTITIES))):
        chosen = (eager_P == (family == "eager")) & np.isfinite(local.measured_PQ[:, column])
        if chosen.any():
            truth = local.measured_PQ[chosen, column]
            errors = [float(np.mean(np.abs(side[chosen, column] / truth - 1.0)) * 100.0) for side in (before, after)]
            found[f"{family}, {QUANTITIES[column]}"] = (int(chosen.sum()), errors[0], errors[1])
    return found


def adapted_version(parent: Predictor, local: Dataset, folder: Path, registry: Path) -> Manifest:
    """Adapt the version that lies in `folder`, and write the outcome into the registry."""
    manifest = read_manifest(folder)
    adapted = adapt(parent, local)
    lineage = {
        "parent": manifest.version,
        "records": len(local),
        "architectures": len(set(local.architectures)),
        "origins": dict(sorted(Counter(local.origins).items())),
        "held_out": manifest.lineage.held_out if manifest.lineage is not None else [],
        "settings": {"adapted_to": sorted(adapted.adaptation.places) if adapted.adaptation is not None else []},
    }
    about = {
        "created": max(local.created, manifest.created),
        "data_sha256": local.data_sha256,
        "code_version": code_version(),
        "seed": manifest.seed,
        "libraries": libraries(),
        "lineage": lineage,
    }
    return write_artefact(registry / adapted.version, adapted.to_files(), about)
