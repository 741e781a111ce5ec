"""Capture the graphs of a corpus: each case once, under all plans it was measured with, in processes of their own."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from peakcast.featurizer.capture.isolated import CaptureError, capture_workload
from peakcast.featurizer.spec import GraphSpec
from peakcast.training import corpus as store
from peakcast.training import journal
from peakcast.training.zoo import Case

# What was captured so far, kept until it is written into the records: an interrupted run goes on from here.
JOURNAL: Final = "captures.jsonl"

_TARGET: Final = """\
from peakcast.training.zoo import Case, build


def workload():
    return build(Case.from_dict({case!r}))
"""


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

    A plan that cannot be captured does not take the others with it: they are then tried one by one.
    """
    have = {(line["case"], tuple(line["wanted"])) for line in journal.read(corpus / JOURNAL)}
    missing = [one for one in todo if (one.case.key, one.plans) not in have]
    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(_capture, corpus, one, timeout_sec) for one in missing]
        try:
            for future in as_completed(futures):
                report(future.result())
        except BaseException:
            pool.shutdown(cancel_futures=True, wait=False)
            raise


def _capture(corpus: Path, one: Wanted, timeout_sec: float) -> dict[str, Any]:
    started = time.monotonic()
    outcome: dict[str, Any] = {"case": one.case.key, "wanted": list(one.plans), "failed": {}}
    spec = _try(one.case, one.plans, timeout_sec, outcome["failed"])
    if spec is None and len(one.plans) > 1:
        outcome["failed"] = {}
        good = [plan for plan in one.plans if _try(one.case, (plan,), timeout_sec, outcome["failed"]) is not None]
        spec = _try(one.case, tuple(good), timeout_sec, outcome["failed"]) if good else None
    if spec is not None:
        outcome["graph_id"] = store.write_graph(corpus, spec)
        outcome["plans"] = sorted(spec.traces)
    outcome["seconds"] = round(time.monotonic() - started, 1)
    journal.append(corpus / JOURNAL, outcome)
    return outcome


def _try(case: Case, plans: tuple[str, ...], timeout_sec: float, failed: dict[str, str]) -> GraphSpec | None:
    """Capture in a process of its own: the fake device has to be there before torch is, and stays."""
    with TemporaryDirectory(prefix="peakcast-case-") as folder:
        target = Path(folder) / "case.py"
        target.write_text(_TARGET.format(case=case.to_dict()))
        try:
            ranks = case.ranks if case.ranks > 1 else None
            return capture_workload(
                f"{target}:workload", plans=plans, allow_cpu=False, world_size=ranks, timeout_sec=timeout_sec
            )
        except (CaptureError, ValueError) as error:
            failed["|".join(plans)] = " ".join(str(error).split())[:400]
            return None


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
