"""How right replay is: the plans of measured records replayed again, beside what was measured."""

from __future__ import annotations

import random
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from peakcast.featurizer.plans import parse_plan
from peakcast.training.corpus import Record
from peakcast.training.jobs import Job
from peakcast.training.zoo import Case

_QUANTITY: Final = "steady_allocated_bytes"
# Plans whose kernels and buffers replay takes from the compiler itself, CUDA graphs and tuning aside.
_KINDS: Final = ("inductor", "inductor:budget", "hybrid")


@dataclass(frozen=True, slots=True)
class ExactRow:
    """Errors of replay on the records of one kind of plan, percent of the measured steady allocated bytes."""

    kind: str
    n: int
    median_percent: float
    mean_percent: float
    p95_percent: float
    median_seconds: float
    mean_seconds: float


def exact_jobs(records: Iterable[Record], count: int, *, seed: int = 0) -> list[Job]:
    """Draw measured records of compiled plans on one rank: all the same likely, the same for equal arguments."""
    cases = [(Case.from_dict(record["case"]), str(record["plan"])) for record in records if _is_judged(record)]
    jobs = sorted((Job(case, plan) for case, plan in cases if _kind(plan) in _KINDS), key=lambda job: job.key)
    return random.Random(seed).sample(jobs, min(count, len(jobs)))


def exact_rows(records: Iterable[Record], outcomes: Iterable[Mapping[str, Any]]) -> list[ExactRow]:
    """Compare replays with the measured records of the same keys. What failed to replay is in no line."""
    measured = {record["key"]: record["measured"][_QUANTITY] for record in records if _is_judged(record)}
    errors: dict[str, list[float]] = defaultdict(list)
    seconds: dict[str, list[float]] = defaultdict(list)
    for outcome in outcomes:
        if "error" in outcome or outcome["key"] not in measured:
            continue
        kind = _kind(outcome["plan"])
        errors[kind].append(100 * abs(outcome["measured"][_QUANTITY] / measured[outcome["key"]] - 1))
        seconds[kind].append(float(outcome["seconds"]))
    return [
        ExactRow(
            kind,
            len(errors[kind]),
            statistics.median(errors[kind]),
            statistics.fmean(errors[kind]),
            float(np.percentile(errors[kind], 95)),
            statistics.median(seconds[kind]),
            statistics.fmean(seconds[kind]),
        )
        for kind in _KINDS
        if errors[kind]
    ]


def _is_judged(record: Mapping[str, Any]) -> bool:
    measured = record.get("source") in {"measured", "seed"} and not record.get("out_of_memory")
    return measured and Case.from_dict(record["case"]).ranks == 1


def _kind(plan: str) -> str:
    return "inductor:budget" if parse_plan(plan).budget is not None else plan
