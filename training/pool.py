"""Worker processes that run jobs side by side, each record durable before it is reported.

A worker is a long-lived process: imports and a CUDA context cost more than most records. It dies with its parent, it
is killed when a job outlasts its time, and a new one takes its place when it crashes.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final

from peakcast.training import journal

MeasureJob = Callable[[Mapping[str, Any]], dict[str, Any]]

# One compiling thread and one arithmetic thread a worker: the workers are the parallelism.
_ENVIRONMENT: Final = {
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
_PR_SET_PDEATHSIG: Final = 1
# What a worker may keep allocated between jobs before it makes room for a fresh process.
_DIRTY_BYTES: Final = 1 << 20


def resolve(name: str) -> MeasureJob:
    """Import "package.module:function"."""
    module, _, attribute = name.partition(":")
    found: MeasureJob = getattr(importlib.import_module(module), attribute)
    return found


def serve(connection: Connection, measuring: str, out: Path, parent: int) -> None:
    """Be a worker: take jobs from the pipe, append each record to `out`, say so. Ends when the pipe closes."""
    die_with_parent(parent)
    with tempfile.TemporaryDirectory(prefix="peakcast-worker-", ignore_cleanup_errors=True) as cache_dir:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache_dir
        os.environ["TRITON_CACHE_DIR"] = str(Path(cache_dir) / "triton")
        with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
            measure_job = resolve(measuring)
            connection.send({"ready": True})
            while True:
                order = connection.recv()
                report = _one(measure_job, order["job"], order["base"], out, alone=order["job"].get("alone", False))
                connection.send(report)
                if report["dirty"]:
                    return


def _one(
    measure_job: MeasureJob, job: Mapping[str, Any], base: Mapping[str, Any], out: Path, *, alone: bool
) -> dict[str, Any]:
    """Run one job, keep its record or its failure, and say what became of it."""
    try:
        record = measure_job(job)
    except Exception as error:  # noqa: BLE001 - a failure is a result: it is kept, and the next job runs
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = " ".join(f"{type(error).__name__}: {error}".split())
        record = {**base, "error": text[:600], "where": f"{Path(where.filename).name}:{where.lineno}"}
    # Beside other jobs on the card, running out or close to it says nothing about this job.
    crowded = not alone and (bool(record.get("out_of_memory")) or record.get("alloc_retries", 0) > 0)
    if not crowded:
        journal.append(out, record)
    return {"record": record, "crowded": crowded, "dirty": _is_dirty()}


def _is_dirty() -> bool:
    """Tell whether this process holds GPU memory that no job owns any more, or lost its CUDA context."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
        return int(torch.cuda.memory_allocated()) > _DIRTY_BYTES
    except RuntimeError:
        return True


def die_with_parent(parent: int) -> None:
    """Ask Linux to kill this process when its parent dies, even by SIGKILL; elsewhere the closed pipe ends it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


@contextlib.contextmanager
def _environment(card: str) -> Iterator[None]:
    """Set the worker's variables where they are inherited from: they must be there before torch is imported."""
    wanted = {**_ENVIRONMENT, **({"CUDA_VISIBLE_DEVICES": card} if card else {})}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@dataclass(slots=True, eq=False)
class Worker:
    """One worker process as its parent sees it. `card` is the one that it sees; empty: all that there are."""

    number: int
    measuring: str
    out: Path
    card: str = ""
    process: Any = None
    connection: Connection = field(init=False)
    order: dict[str, Any] | None = None
    started_at: float = 0.0
    ready: bool = False

    def start(self) -> None:
        """Start the process (again). Spawned, not forked: a CUDA context does not survive a fork."""
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.order, self.ready = None, False
        self.process = context.Process(
            target=serve, args=(theirs, self.measuring, self.out, os.getpid()), name=f"peakcast-worker-{self.number}"
        )
        with _environment(self.card):
            self.process.start()
        theirs.close()
        self.started_at = time.monotonic()

    def give(self, order: dict[str, Any]) -> None:
        """Hand over a job. A worker that has died in the meantime is noticed at the next `listen`."""
        self.order, self.started_at = order, time.monotonic()
        with contextlib.suppress(BrokenPipeError):
            self.connection.send(order)

    @property
    def busy_seconds(self) -> float:
        """How long the current job, or the start of the process, has been going on."""
        return time.monotonic() - self.started_at

    def kill(self) -> None:
        """End the process at once, whatever it is doing, and wait until it has gone."""
        self.process.kill()
        self.process.join()
        self.connection.close()


def listen(workers: list[Worker], timeout_sec: float) -> list[tuple[Worker, dict[str, Any] | None]]:
    """Wait for reports. A worker that died without one reports None."""
    by_handle: dict[Any, Worker] = {}
    for worker in workers:
        by_handle[worker.connection] = worker
        by_handle[worker.process.sentinel] = worker
    heard: dict[int, tuple[Worker, dict[str, Any] | None]] = {}
    for handle in wait(list(by_handle), timeout_sec):
        worker = by_handle[handle]
        if worker.number in heard:
            continue
        report: dict[str, Any] | None = None
        with contextlib.suppress(EOFError, OSError):
            if worker.connection.poll():
                report = worker.connection.recv()
        heard[worker.number] = (worker, report)
    return list(heard.values())
