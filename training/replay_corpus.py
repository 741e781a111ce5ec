"""Replayed labels: which cases to replay, the processes that do it, and the file they go to."""

from __future__ import annotations

import contextlib
import json
import queue
import random
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from peakcast.featurizer.capture.isolated import environment
from peakcast.training import corpus as store
from peakcast.training import journal
from peakcast.training.jobs import Job
from peakcast.training.zoo import Case, Entry, entries, is_reserved

# What was replayed so far, kept until it is merged: an interrupted run goes on from here.
JOURNAL: Final = "replays.jsonl"
# A process that has done so many cases makes room for a fresh one: the compiler's caches grow.
_CASES_OF_A_PROCESS: Final = 60
_START_TIMEOUT_S: Final = 180.0
# Kinds of models made of repeated blocks, which `hybrid` compiles one by one.
_BLOCKY: Final = frozenset({"decoder", "encoder", "encoder-decoder", "lm", "vit", "mixer", "transformer", "audio"})
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

    In rounds over all models, so that any beginning of the list covers the zoo; quick ones first in each round. A
    variation draws batch, precision, task, optimizer, loop and plan. Reserved architectures are never among them.

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
        rounds += 1
        jobs = sorted((_variation(one, draw) for one in chosen), key=lambda job: job.expected_seconds)
        for job in jobs[: count - len(found)]:
            found.setdefault(job.key, job)
    return list(found.values())


def _variation(one: Entry, draw: random.Random) -> Job:
    low, high = max(one.batches[0] // 2, 1), one.batches[-1]
    batch = round(low * (high / low) ** draw.random())
    autocast = draw.choice(("none", "bfloat16"))
    if draw.random() < 0.25:
        case = Case(one.name, batch, autocast, "inference", None)  # type: ignore[arg-type]
    else:
        optimizer, implementation = draw.choice(_OPTIMIZERS)
        loop = draw.choice(("standard",) * 8 + ("clip", "accumulate"))
        case = Case(one.name, batch, autocast, "training", optimizer, implementation, loop)  # type: ignore[arg-type]
    plans = ["inductor"] * 6
    if case.task == "training":
        plans += [f"inductor:budget={draw.randint(1, 9) / 10:g}"] * 3
    if one.kind in _BLOCKY:
        plans.append("hybrid")
    return Job(case, draw.choice(plans))


@dataclass(slots=True)
class _Replayer:
    """One replaying process, started anew where it died, was too slow, or has done its share."""

    graphs: Path
    process: subprocess.Popen[str] | None = None
    reader: threading.Thread | None = None
    answers: queue.Queue[str] = field(default_factory=queue.Queue)
    cases: int = 0
    folder: tempfile.TemporaryDirectory[str] | None = None

    def ask(self, job: Job, timeout_sec: float) -> dict[str, Any]:
        """Return the job's record, or an object with an `error`."""
        if self.process is None:
            self._start()
            if self._hear(_START_TIMEOUT_S) is None:
                self.stop()
                return {"error": f"the replaying process did not start within {_START_TIMEOUT_S:.0f} s"}
        process = self.process
        assert process is not None
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(job.to_dict()) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            self.stop()
            return {"error": "the replaying process died"}
        answer = self._hear(timeout_sec)
        self.cases += 1
        if answer is None:
            ended = process.poll()
            self.stop()
            why = f"no result within {timeout_sec:.0f} s" if ended is None else f"died with exit status {ended}"
            return {"error": f"the replaying process: {why}"}
        if self.cases >= _CASES_OF_A_PROCESS:
            self.stop()
        return answer

    def _start(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="peakcast-replays-", ignore_cleanup_errors=True)
        variables = {
            **environment(),
            "TORCHINDUCTOR_CACHE_DIR": str(Path(self.folder.name, "inductor")),
            "TRITON_CACHE_DIR": str(Path(self.folder.name, "triton")),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        command = [sys.executable, "-W", "ignore", "-m", "peakcast.training.replay_job", str(self.graphs)]
        self.answers, self.cases = queue.Queue(), 0
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=variables,
        )
        self.reader = threading.Thread(target=self._read, args=(self.process, self.answers), daemon=True)
        self.reader.start()

    @staticmethod
    def _read(process: subprocess.Popen[str], answers: queue.Queue[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            answers.put(line)
        answers.put("")  # it has ended

    def _hear(self, timeout_sec: float) -> dict[str, Any] | None:
        try:
            line = self.answers.get(timeout=timeout_sec)
        except queue.Empty:
            return None
        return json.loads(line) if line else None

    def stop(self) -> None:
        """End the process and remove what its compiler wrote."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            if self.reader is not None:
                self.reader.join()  # the pipe has ended
            for pipe in (self.process.stdin, self.process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()
            self.process = None
        if self.folder is not None:
            self.folder.cleanup()
            self.folder = None


def replay_all(
    corpus: Path,
    jobs: Sequence[Job],
    *,
    workers: int = 1,
    timeout_sec: float = 300.0,
    report: Callable[[Mapping[str, Any]], None] = lambda _: None,
) -> None:
    """Replay what is neither in the journal nor in the corpus, measured or replayed, and note each outcome."""
    have = {str(line["key"]) for line in journal.read(corpus / JOURNAL)}
    have |= {str(record["key"]) for name in _FILES for record in store.read(corpus, name)}
    todo = [job for job in jobs if job.key not in have]
    idle: queue.Queue[_Replayer] = queue.Queue()
    crew = [_Replayer(corpus) for _ in range(workers)]
    for one in crew:
        idle.put(one)

    def run(job: Job) -> dict[str, Any]:
        replayer = idle.get()
        try:
            outcome = {"key": job.key, **replayer.ask(job, timeout_sec)}
        finally:
            idle.put(replayer)
        journal.append(corpus / JOURNAL, outcome)
        return outcome

    pool = ThreadPoolExecutor(workers)
    try:
        for outcome in pool.map(run, todo):
            report(outcome)
    finally:
        for one in crew:
            one.stop()
        pool.shutdown(cancel_futures=True, wait=True)


_FILES: Final = (store.RECORDS, store.REPLAYED_RECORDS)


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
    for name in _FILES:
        yield from store.read(corpus, name)


__all__ = ["JOURNAL", "graphs_in_use", "merge_replays", "replay_all", "replay_jobs"]
