"""Accuracy for models spread over ranks: DDP and FSDP2, eager and compiled, beside torch's own tracker.

P records, Q quantities. All figures are of rank 0's steady allocated bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from peakcast.models.example import Floats
from peakcast.models.predictor import Predictor
from peakcast.training import corpus as store
from peakcast.training.accuracy_rows import Score, score
from peakcast.training.corpus import Record
from peakcast.training.dataset import is_usable
from peakcast.training.evaluate import HeldOut

WAYS: Final = {"ddp": "DDP", "fsdp2": "FSDP2"}
# A measured peak is one that was simulated if it is as near as this.
NEAR: Final = 0.002
_HOWS: Final = ("eager", "compiled", "hybrid")


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """Records of models spread over ranks, and what each method says of rank 0, [P], NaN where it says nothing."""

    ways: list[str]
    hows: list[str]
    architectures: list[str]
    world_sizes: list[int]
    measured_P: Floats
    prior_P: Floats
    pair_P: Floats  # by a pair that never saw the architecture
    shipped_P: Floats
    tracker_P: Floats
    keys: list[str]
    most_P: Floats  # simulated for a rank without luck; NaN where luck has no part in it
    ranks: list[list[int]]  # measured steady allocated of all ranks


@dataclass(frozen=True, slots=True)
class SpreadRow:
    """One line: a way of spreading, a kind of plan, and each method's errors. A method that says nothing has n = 0."""

    label: str
    architectures: int
    prior: Score
    pair: Score
    shipped: Score
    tracker: Score


def spread_records(corpora: Iterable[Path]) -> dict[str, Record]:
    """Read the records of spread models by key.

    Raises:
        CorpusError: if there are none that can be judged.
    """
    found: dict[str, Record] = {}
    for corpus in corpora:
        for record in store.read(corpus):
            if is_usable(record) and _way(record) and int(record["run"].get("world_size", 1)) > 1:
                found.setdefault(str(record["key"]), record)
    if not found:
        raise store.CorpusError("no record of more than one rank has a graph: `peakcast collect --ranks 2` makes them")
    return found


def spread_only(records: Mapping[str, Record], held: Iterable[HeldOut], shipped: Predictor | None) -> Spread:
    """Keep of what was held out the given records, and ask the shipped pair about them too."""
    parts = [_part(records, each, shipped) for each in held]
    return Spread(
        ways=[one for part in parts for one in part.ways],
        hows=[one for part in parts for one in part.hows],
        architectures=[one for part in parts for one in part.architectures],
        world_sizes=[one for part in parts for one in part.world_sizes],
        measured_P=np.concatenate([part.measured_P for part in parts]),
        prior_P=np.concatenate([part.prior_P for part in parts]),
        pair_P=np.concatenate([part.pair_P for part in parts]),
        shipped_P=np.concatenate([part.shipped_P for part in parts]),
        tracker_P=np.concatenate([part.tracker_P for part in parts]),
        keys=[one for part in parts for one in part.keys],
        most_P=np.concatenate([part.most_P for part in parts]),
        ranks=[one for part in parts for one in part.ranks],
    )


def _part(records: Mapping[str, Record], held: HeldOut, shipped: Predictor | None) -> Spread:
    rows = np.array([row for row, key in enumerate(held.data.keys) if key in records], dtype=np.int64)
    data = held.data.take(rows)
    nothing_P = np.full(len(rows), np.nan)
    says_P = shipped.forecast(data.examples, held.risk).expected_PQ[:, 0] if shipped and len(rows) else nothing_P
    chosen = [records[key] for key in data.keys]
    return Spread(
        ways=[_way(record) for record in chosen],
        hows=[_how(plan) for plan in data.plans],
        architectures=list(data.architectures),
        world_sizes=[int(record["run"]["world_size"]) for record in chosen],
        measured_P=data.measured_PQ[:, 0],
        prior_P=np.array([example.prior_bytes[0] for example in data.examples], dtype=float),
        pair_P=held.expected_PQ[rows, 0],
        shipped_P=says_P,
        tracker_P=np.array([_tracked_bytes(record) for record in chosen], dtype=float),
        keys=list(data.keys),
        most_P=np.array([example.most_allocated_bytes or np.nan for example in data.examples], dtype=float),
        ranks=[_rank_bytes(record) for record in chosen],
    )


def _way(record: Record) -> str:
    case = record.get("case") or {}
    return WAYS.get(str(case.get("parallel", "none")).split("_", maxsplit=1)[0], "")


def _how(plan: str) -> str:
    if plan.startswith("eager"):
        return "eager"
    return "hybrid" if plan.startswith("hybrid") else "compiled"


def _tracked_bytes(record: Record) -> float:
    """Give what torch's tracker said of rank 0."""
    said = record.get("tracker")
    return float(said[0]) if said else float("nan")


def _rank_bytes(record: Record) -> list[int]:
    ranks = record.get("ranks") or [record["measured"]]
    return [int(one["steady_allocated_bytes"]) for one in ranks]


def luck(spread: Spread) -> dict[str, int]:
    """Count eager DDP's ranks: at the simulated peak, at that with both sets of buckets, and those near neither."""
    found = {"ranks": 0, "one_set": 0, "both_sets": 0, "neither": 0}
    for row, (way, how) in enumerate(zip(spread.ways, spread.hows, strict=True)):
        if way != WAYS["ddp"] or how != "eager" or not np.isfinite(spread.most_P[row]):
            continue
        for measured in spread.ranks[row]:
            off = {
                "one_set": abs(spread.prior_P[row] / measured - 1.0),
                "both_sets": abs(spread.most_P[row] / measured - 1.0),
            }
            nearest = min(off, key=off.__getitem__)
            found["ranks"] += 1
            found[nearest if off[nearest] <= NEAR else "neither"] += 1
    return found


def worst_of_simulation(spread: Spread, count: int = 10) -> list[dict[str, Any]]:
    """Return the records that the simulation alone gets most wrong, worst first, with the errors against each rank."""
    error_P = np.abs(spread.prior_P / spread.measured_P - 1.0)
    return [
        {
            "key": spread.keys[row],
            "measured_bytes": round(float(spread.measured_P[row])),
            "prior_bytes": round(float(spread.prior_P[row])),
            "rank_errors_percent": [float(spread.prior_P[row] / one - 1.0) * 100.0 for one in spread.ranks[row]],
        }
        for row in np.argsort(-error_P, kind="stable")[:count].tolist()
    ]


def spread_rows(spread: Spread) -> list[SpreadRow]:
    """Return the lines: each way of spreading by kind of plan, then all its plans."""
    rows = []
    for way in WAYS.values():
        of_way = np.array([each == way for each in spread.ways], dtype=bool)
        for how in _HOWS:
            chosen = of_way & np.array([each == how for each in spread.hows], dtype=bool)
            rows.append(_row(spread, chosen, f"{way}, {how}"))
        rows.append(_row(spread, of_way, f"{way}, all plans"))
    return [row for row in rows if row.prior.n]


def _row(spread: Spread, chosen: NDArray[np.bool_], label: str) -> SpreadRow:
    def of(said_P: Floats) -> Score:
        index = np.flatnonzero(chosen & np.isfinite(spread.measured_P) & np.isfinite(said_P))
        return score(said_P[index], spread.measured_P[index])

    names = {name for name, picked in zip(spread.architectures, chosen, strict=True) if picked}
    return SpreadRow(
        label,
        len(names),
        prior=of(spread.prior_P),
        pair=of(spread.pair_P),
        shipped=of(spread.shipped_P),
        tracker=of(spread.tracker_P),
    )


def spread_summary(spread: Spread, *, folds: int, shipped: Predictor | None, data_sha256: str) -> dict[str, Any]:
    """Return everything the report shows, as plain JSON values: None where a method says nothing."""
    return {
        "records": len(spread.ways),
        "architectures": len(set(spread.architectures)),
        "world_sizes": sorted(set(spread.world_sizes)),
        "folds": folds,
        "shipped": None if shipped is None else shipped.version,
        "shipped_world_sizes": [] if shipped is None else list(shipped.coverage.world_sizes),
        "data_sha256": data_sha256,
        "rows": [_plain(row) for row in spread_rows(spread)],
        "luck": luck(spread),
        "worst": worst_of_simulation(spread),
    }


def _plain(row: SpreadRow) -> dict[str, Any]:
    found = asdict(row)
    return {name: None if isinstance(value, dict) and not value["n"] else value for name, value in found.items()}
