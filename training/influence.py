"""How much each record may say in a fit: architectures count alike, replays little, and no single reporter rules.

A peak that a stranger reported may be wrong, or made to mislead. Whatever one reporter sends, and however much of it,
all of it together weighs no more than `MOST_OF_A_REPORTER` of what was measured here; with an L1 objective, whose
leaves are medians, that is too little to move an answer where measured peaks speak as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import numpy as np

from peakcast.models.example import Floats

MEASURED: Final = "measured"
REPORTED: Final = "reported"
REPLAYED: Final = "replayed"
# Of the whole weight of the measured records.
MOST_OF_A_REPORTER: Final = 0.05
MOST_OF_ALL_REPORTERS: Final = 0.25
# Replays are many and cheap, and lack what only a card shows: together they say no more than what was measured.
MOST_OF_REPLAYS: Final = 1.0
# One replay beside one measured record of an architecture.
REPLAY_SHARE: Final = 0.3


def weights(architectures: Sequence[str], origins: Sequence[str], reporters: Sequence[str]) -> Floats:
    """Return the weight of each record [P]; the measured ones have mean 1.

    A record weighs 1 / sqrt(the records of its architecture from the same origin and reporter). `origins` are
    `measured`, `reported` or `replayed`; `reporters` name who reported, "" elsewhere. A flood of records therefore
    takes no weight from those that were measured.
    """
    rows: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for row, group in enumerate(zip(origins, reporters, architectures, strict=True)):
        rows[group].append(row)
    weight = np.ones(len(architectures))
    for members in rows.values():
        weight[members] = len(members) ** -0.5
    origin, reporter = np.array(origins), np.array(reporters)
    measured = origin == MEASURED
    if measured.any():
        weight /= weight[measured].mean()
    whole = float(weight[measured].sum()) if measured.any() else float(len(weight))
    replayed, reported = origin == REPLAYED, origin == REPORTED
    weight[replayed] *= REPLAY_SHARE
    _cap(weight, replayed, MOST_OF_REPLAYS * whole)
    for name in sorted(set(reporter[reported].tolist())):
        _cap(weight, reported & (reporter == name), MOST_OF_A_REPORTER * whole)
    _cap(weight, reported, MOST_OF_ALL_REPORTERS * whole)
    return weight


def _cap(weight_P: Floats, chosen_P: np.ndarray, most: float) -> None:
    total = float(weight_P[chosen_P].sum())
    if total > most:
        weight_P[chosen_P] *= most / total
