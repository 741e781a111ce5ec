"""Replayed labels: which cases to replay, and where their records and graphs go."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from peakcast.training import corpus as store
from peakcast.training import journal
from peakcast.training.case_workers import ask_workers
from peakcast.training.jobs import Job
from peakcast.training.zoo import Case, Entry, entries, is_reserved

# What was replayed so far, kept until it is merged: an interrupted run goes on from here.
JOURNAL: Final = "replays.jsonl"
# Kinds of models made of repeated blocks, which `hybrid` compiles one by one.
_BLOCKY: Final = frozenset({"decoder", "encoder", "encoder-decoder", "lm", "vit", "mixer", "transformer", "audio"})
# How many of the cases that allow it are replayed under a budget too, or as hybrid.
_BUDGET_SHARE: Final = 0.7
_HYBRID_SHARE: Final = 0.2
_OPTIMIZERS: Final = (
    *(("adamw", None),) * 6,
    ("adamw", "fused"),
    ("adamw", "loop"),
    ("sgd", None),
    ("sgd_momentum", None),
    ("adafactor", None),
)


def replay_jobs(count: int, *, seed: int = 0, models: Iterable[str] | None = None) -> list[Job]:
    """Draw cases of the zoo and random variations of them, each key once, the same for equal arguments.

    In rounds, the first over all models, so that any beginning of the list covers the zoo; later ones leave out more
    often what compiles slower than half of the models. Quick ones first in each round. A variation draws batch,
    precision, task, optimizer and loop, and one plan or several, which share a graph. Reserved architectures are never
    among them.

    Raises:
        KeyError: if a model is not in the zoo.
    """
    known = entries()
    chosen = [known[name] for name in (known if models is None else models)]
    chosen = [one for one in chosen if not is_reserved(one.name) and not is_reserved(one.architecture)]
    draw = random.Random(seed)
    found: dict[str, Job] = {}
    rounds = 0
    # A model of few batches runs out of variations: many rounds that find nothing new end it.
    while chosen and len(found) < count and rounds < 4 * count:
        drawn = [_variation(one, draw) for one in chosen]
        if rounds:
            usual_s = statistics.median(jobs[0].expected_seconds for jobs in drawn)
            drawn = [jobs for jobs in drawn if draw.random() < usual_s / jobs[0].expected_seconds]
        rounds += 1
        in_order = [job for jobs in sorted(drawn, key=lambda jobs: jobs[0].expected_seconds) for job in jobs]
        for job in in_order[: count - len(found)]:
            found.setdefault(job.key, job)
    return list(found.values())


def _variation(one: Entry, draw: random.Random) -> list[Job]:
    low, high = max(one.batches[0] // 2, 1), one.batches[-1]
    batch = round(low * (high / low) ** draw.random())
    autocast = draw.choice(("none", "bfloat16"))
    plans = ["inductor"]
    if draw.random() < 0.25:
        case = Case(one.name, batch, autocast, "inference", None)  # type: ignore[arg-type]
    else:
        optimizer, implementation = draw.choice(_OPTIMIZERS)
        loop = draw.choice(("standard",) * 8 + ("clip", "accumulate"))
        case = Case(one.name, batch, autocast, "training", optimizer, implementation, loop)  # type: ignore[arg-type]
        if draw.random() < _BUDGET_SHARE:
            plans.append(f"inductor:budget={draw.randint(1, 9) / 10:g}")
    if one.kind in _BLOCKY and draw.random() < _HYBRID_SHARE:
        plans.append("hybrid")
    return [Job(case, plan) for plan in plans]


def replay_all(
    corpus: Path,
    jobs: Sequence[Job],
    *,
    workers: int = 1,
    timeout_sec: float = 300.0,
    report: Callable[[Mapping[str, Any]], None] = lambda _: None,
) -> None:
    """Replay what is neither in the journal nor in the corpus, measured or replayed, and note each outcome.

    The graphs that labels are of go into the corpus.
    """
    have = {str(record["key"]) for name in FILES for record in store.read(corpus, name)}
    todo = [job for job in jobs if job.key not in have]
    replay_into(corpus / JOURNAL, todo, graphs=corpus, workers=workers, timeout_sec=timeout_sec, report=report)


def replay_into(
    out: Path,
    jobs: Sequence[Job],
    *,
    graphs: Path | None = None,
    workers: int = 1,
    timeout_sec: float = 300.0,
    report: Callable[[Mapping[str, Any]], None] = lambda _: None,
) -> None:
    """Replay each job that the journal `out` does not hold yet, and append what came of it.

    A process replays the plans of a case together. `graphs` is the corpus that takes the ordinary graphs.
    """
    have = {str(line["key"]) for line in journal.read(out)}
    plans: dict[Case, list[str]] = {}
    for job in jobs:
        if job.key not in have:
            plans.setdefault(job.case, []).append(job.plan)
    todo = [{"case": case.to_dict(), "plans": names} for case, names in plans.items()]
    arguments = ["replay"] if graphs is None else ["replay", str(graphs)]
    for request, answer in ask_workers(todo, arguments, workers=workers, timeout_sec=timeout_sec):
        case = Case.from_dict(request["case"])
        failed = [{"plan": plan, "error": answer["error"]} for plan in request["plans"]] if "error" in answer else []
        for record in failed or answer["records"]:
            outcome = {"key": Job(case, record["plan"]).key, **record}
            journal.append(out, outcome)
            report(outcome)


FILES: Final = (store.RECORDS, store.REPLAYED_RECORDS)


def merge_replays(corpus: Path) -> tuple[int, int]:
    """Move what the journal holds into the file of replayed labels. Returns the labels there now, and the failures."""
    outcomes = list(journal.read(corpus / JOURNAL))
    labels = [line for line in outcomes if "error" not in line]
    records = store.merge(store.read(corpus, store.REPLAYED_RECORDS), labels)
    store.write(corpus, records, store.REPLAYED_RECORDS)
    (corpus / JOURNAL).unlink(missing_ok=True)
    return len(records), len(outcomes) - len(labels)


def graphs_in_use(corpus: Path) -> Iterator[store.Record]:
    """Yield every record, measured or replayed, that names a graph."""
    for name in FILES:
        yield from store.read(corpus, name)


__all__ = ["FILES", "JOURNAL", "graphs_in_use", "merge_replays", "replay_all", "replay_into", "replay_jobs"]
