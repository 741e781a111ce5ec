"""A collection of peaks: many processes side by side, resumable, within a time budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from peakcast.training import journal
from peakcast.training.jobs import Job, plan_jobs
from peakcast.training.measure_job import base_record
from peakcast.training.pool import Worker, listen
from peakcast.training.schedule import Schedule

MEASURING: Final = "peakcast.training.measure_job:measure_job"
MEASURING_RANKS: Final = "peakcast.training.measure_ranks:measure_ranks_job"
# The card of the first measurements has 139 GiB; every context takes about 0.75 GiB of it.
MEMORY_BYTES: Final = 118 << 30
_MOST_ATTEMPTS: Final = 2
_START_TIMEOUT_S: Final = 180.0
_TICK_S: Final = 0.5

Watcher = Callable[["Progress", Mapping[str, Any]], None]


@dataclass(slots=True)
class Progress:
    """How far a collection is."""

    planned: int = 0
    skipped: int = 0
    measured: int = 0
    out_of_memory: int = 0
    failed: int = 0
    crashed_workers: int = 0
    left: int = 0
    elapsed_seconds: float = 0.0
    interrupted: bool = False
    failures: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Give the fields as JSON values."""
        return asdict(self)


def finished_keys(paths: Iterable[Path], *, retry_failed: bool = False) -> set[str]:
    """Collect the keys of records that exist already; failures count as finished unless they are to be retried."""
    return {
        str(record["key"])
        for path in paths
        for record in journal.read(path)
        if "key" in record and record.get("source") != "replayed" and not (retry_failed and "error" in record)
    }


def collect(
    out: Path,
    *,
    jobs: Sequence[Job] | None = None,
    workers: int = 4,
    budget_seconds: float | None = None,
    done: Iterable[Path] = (),
    retry_failed: bool = False,
    record_timeout_seconds: float = 300.0,
    memory_bytes: int = MEMORY_BYTES,
    measuring: str = MEASURING,
    cards: Sequence[str] = (),
    watch: Watcher | None = None,
) -> Progress:
    """Measure jobs and append a JSON line for each to `out/records.jsonl`.

    Args:
        out: folder of the records. What it or `done` (files or folders) holds already is skipped.
        jobs: what to measure, in order; all of `plan_jobs()` by default.
        workers: processes side by side.
        budget_seconds: starts nothing that will hardly end in this time, and stops at its end; None has no end.
        retry_failed: measure again what failed before.
        record_timeout_seconds: a job that takes longer is killed and recorded as failed.
        memory_bytes: bound on the sum of the expected peaks of what runs at a time on one card.
        measuring: "module:function" that turns a job into a record, run in the workers.
        cards: the cards that workers are dealt out to, as CUDA_VISIBLE_DEVICES names them; none: each sees all.
        watch: called after every finished job, and once a tick with an empty record.
    """
    chosen = list(plan_jobs() if jobs is None else jobs)
    finished = finished_keys([out, *done], retry_failed=retry_failed)
    todo = [job for job in chosen if job.key not in finished]
    progress = Progress(planned=len(chosen), skipped=len(chosen) - len(todo), left=len(todo))
    run = _Run(
        out=out / "records.jsonl",
        schedule=Schedule.of(todo, memory_bytes=memory_bytes),
        progress=progress,
        watch=watch or (lambda _progress, _record: None),
        deadline=None if budget_seconds is None else time.monotonic() + budget_seconds,
        record_timeout_s=record_timeout_seconds,
    )
    started = time.monotonic()
    crew = [
        Worker(number, measuring, run.out, cards[number % len(cards)] if cards else "")
        for number in range(min(workers, len(todo)))
    ]
    try:
        for worker in crew:
            worker.start()
        run.loop(crew, started)
    except KeyboardInterrupt:
        progress.interrupted = True
    finally:
        for worker in crew:
            if worker.process is not None and worker.process.is_alive():
                worker.kill()
    progress.left = len(run.schedule.waiting) + len(run.schedule.running)
    progress.elapsed_seconds = round(time.monotonic() - started, 1)
    return progress


@dataclass(slots=True)
class _Run:
    """The state of one collection: what waits, what runs, what came of it."""

    out: Path
    schedule: Schedule[Job]
    progress: Progress
    watch: Watcher
    deadline: float | None
    record_timeout_s: float
    attempts: dict[str, int] = field(default_factory=dict)
    failed_starts: int = 0

    def loop(self, crew: list[Worker], started: float) -> None:
        while self.schedule.waiting or self.schedule.running:
            seconds_left = self._seconds_left()
            if seconds_left <= 0:
                return
            self._hand_out(crew, seconds_left)
            if not self.schedule.running and all(worker.ready for worker in crew):
                return  # what waits does not fit into the time that is left
            for worker, report in listen(crew, min(_TICK_S, seconds_left)):
                self._hear(worker, report)
            for worker in crew:
                self._check_time(worker)
            self.progress.elapsed_seconds = round(time.monotonic() - started, 1)
            self.progress.left = len(self.schedule.waiting) + len(self.schedule.running)
            self.watch(self.progress, {})

    def _seconds_left(self) -> float:
        return 1e9 if self.deadline is None else self.deadline - time.monotonic()

    def _hand_out(self, crew: list[Worker], seconds_left: float) -> None:
        for worker in crew:
            if worker.ready and worker.order is None:
                job = self.schedule.take(seconds_left=seconds_left, card=worker.card)
                if job is None:
                    continue
                worker.give({"job": job.to_dict(), "base": base_record(job)})

    def _hear(self, worker: Worker, report: dict[str, Any] | None) -> None:
        if report is None:
            self._lost(worker, _how_it_died(worker))
        elif "ready" in report:
            worker.ready, self.failed_starts = True, 0
        else:
            self._finished(worker, report)

    def _finished(self, worker: Worker, report: dict[str, Any]) -> None:
        assert worker.order is not None
        job = Job.from_dict(worker.order["job"])
        worker.order = None
        if report["crowded"]:
            self.schedule.done(job)
            self.schedule.again(job.on_its_own())
        else:
            self.schedule.done(job)
            self._count(report["record"])
        if report["dirty"]:
            worker.kill()
            worker.start()

    def _count(self, record: Mapping[str, Any]) -> None:
        if "error" in record:
            self.progress.failed += 1
            self.progress.failures.append(f"{record['key']}: {record['error']}"[:200])
        else:
            self.progress.measured += 1
            self.progress.out_of_memory += bool(record.get("out_of_memory"))
        self.watch(self.progress, record)

    def _check_time(self, worker: Worker) -> None:
        if not worker.ready and worker.busy_seconds > _START_TIMEOUT_S:
            self._lost(worker, f"worker did not start within {_START_TIMEOUT_S:.0f} s")
        elif worker.order is not None and worker.busy_seconds > self.record_timeout_s:
            # A second attempt would take as long: once is enough.
            self.attempts[Job.from_dict(worker.order["job"]).key] = _MOST_ATTEMPTS
            self._lost(worker, f"no result within {self.record_timeout_s:.0f} s")

    def _lost(self, worker: Worker, why: str) -> None:
        """Replace a worker. Its job is tried once more; a job that takes two workers with it is recorded as failed."""
        self.progress.crashed_workers += 1
        order = worker.order
        worker.kill()
        if order is not None:
            job = Job.from_dict(order["job"])
            self.attempts[job.key] = self.attempts.get(job.key, 0) + 1
            if self._is_recorded(job):
                self.schedule.done(job)
                self.progress.measured += 1
            elif self.attempts[job.key] < _MOST_ATTEMPTS:
                self.schedule.again(job)
            else:
                self.schedule.done(job)
                record = {**order["base"], "error": why}
                journal.append(self.out, record)
                self._count(record)
        elif not worker.ready:
            self.failed_starts += 1
            if self.failed_starts > 3:
                raise RuntimeError(f"workers do not start: {why}")
        worker.start()

    def _is_recorded(self, job: Job) -> bool:
        """Tell whether the worker died between keeping the record and reporting it."""
        return any(record.get("key") == job.key and "error" not in record for record in journal.read(self.out))


def _how_it_died(worker: Worker) -> str:
    worker.process.join(5)
    code = worker.process.exitcode
    return f"worker died: {f'signal {-code}' if code is not None and code < 0 else f'exit status {code}'}"
