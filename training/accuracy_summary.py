"""Everything the accuracy report shows, as plain JSON values."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from peakcast.training.accuracy_bars import judged_bars
from peakcast.training.accuracy_rows import table, worst
from peakcast.training.bound_accuracy import coverage_rows
from peakcast.training.decision_accuracy import decision_rows
from peakcast.training.evaluate import DECISION_RISK, HeldOut
from peakcast.training.importance import tree_parts


def summary(held: HeldOut, frozen: HeldOut | None = None) -> dict[str, Any]:
    """Return everything the report shows: the folds, and the frozen split where it is given."""
    names, counts = np.unique(np.array(held.confidence_P), return_counts=True)
    return {
        **_judged(held),
        "folds": int(held.folds_P.max()) + 1,
        "risk": held.risk,
        "decision_risk": DECISION_RISK,
        "data_sha256": held.data.data_sha256,
        "tail_bounds": int(sum(held.extended_P)),
        "confidence": dict(zip(names.tolist(), counts.tolist(), strict=True)),
        "tree_shares": dict(held.tree_shares),
        "tree_parts": tree_parts(held.tree_shares),
        "node_shares": dict(held.node_shares),
        "worst": [asdict(record) for record in worst(held)],
        "frozen": None if frozen is None else _judged(frozen),
    }


def _judged(held: HeldOut) -> dict[str, Any]:
    """Return what is shown of the folds and of the frozen split alike."""
    rows = table(held)
    return {
        "records": len(held.data),
        "architectures": len(set(held.data.architectures)),
        "rows": [asdict(row) for row in rows],
        "bars": judged_bars(rows),
        "coverage": [asdict(row) for row in coverage_rows(held)],
        "decisions": [asdict(row) for row in decision_rows(held)],
    }
