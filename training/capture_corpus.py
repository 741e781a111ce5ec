"""Capture the graphs of a corpus: each case once, under all plans it was measured with, in processes of their own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from peakcast.training import corpus as store
from peakcast.training import journal
from peakcast.training.case_workers import ask_workers
from peakcast.training.zoo import Case

# What was captured so far, kept until it is written into the records: an interrupted run goes on from here.
JOURNAL: Final = "captures.jsonl"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A case with the plans its graph has to hold."""

    case: Case
    plans: tuple[str, ...]


def wanted(records: Iterable[Mapping[str, Any]], corpus: Path, *, afresh: bool = False) -> list[Wanted]:
    """List the cases whose graph is missing or lacks a plan; with `afresh`, all of them. Small models first."""
    plans: dict[str, set[str]] = defaultdict(set)
    cases: dict[str, Case] = {}
    complete: dict[str, bool] = defaultdict(lambda: True)
    size_bytes: dict[str, int] = {}
    for record in records:
        case = Case.from_dict(record["case"])
        cases[case.key] = case
        plans[case.key].add(record["plan"])
        size_bytes[case.key] = int(record["measured"].get("parameter_bytes", 0))
        graph_id = record.get("graph_id")
        complete[case.key] &= bool(graph_id) and store.graph_path(corpus, str(graph_id)).exists()
    keys = [key for key in sorted(cases, key=lambda key: (size_bytes[key], key)) if afresh or not complete[key]]
    return [Wanted(cases[key], tuple(sorted(plans[key]))) for key in keys]


def capture_all(
    corpus: Path,
    todo: Sequence[Wanted],
    *,
    workers: int = 2,
    timeout_sec: float = 900.0,
    report: Callable[[Mapping[str, Any]], None] = lambda _: None,
) -> None:
    """Capture what is wanted and has not been captured yet, and note each outcome in the journal.

    A process takes one case after another, those of several ranks apart from the others.
    """
    have = {(line["case"], tuple(line["wanted"])) for line in journal.read(corpus / JOURNAL)}
    missing = [one for one in todo if (one.case.key, one.plans) not in have]
    for ranks in sorted({one.case.ranks for one in missing}):
        requests = [
            {"key": one.case.key, "case": one.case.to_dict(), "plans": one.plans}
            for one in missing
            if one.case.ranks == ranks
        ]
        arguments = ["capture", str(corpus), str(ranks)]
        for request, answer in ask_workers(requests, arguments, workers=workers, timeout_sec=timeout_sec):
            outcome = {"case": request["key"], "wanted": list(request["plans"]), **answer}
            if "error" in answer:
                outcome["failed"] = {"|".join(request["plans"]): answer["error"]}
            journal.append(corpus / JOURNAL, outcome)
            report(outcome)


def attach(records: Iterable[store.Record], corpus: Path) -> list[store.Record]:
    """Give records the graphs that the journal names: the latest of their case that holds their plan."""
    found: dict[tuple[str, str], str] = {}
    for line in journal.read(corpus / JOURNAL):
        for plan in line.get("plans", ()):
            found[line["case"], plan] = line["graph_id"]
    return [
        {**record, "graph_id": found.get((Case.from_dict(record["case"]).key, record["plan"]), record.get("graph_id"))}
        for record in records
    ]


def unused_graphs(records: Iterable[Mapping[str, Any]], corpus: Path) -> list[Path]:
    """List the graph files that no record names any more."""
    used = {str(record.get("graph_id")) for record in records}
    files = sorted((corpus / store.GRAPHS).glob("*.json.xz"))
    return [file for file in files if file.name.removesuffix(".json.xz") not in used]
