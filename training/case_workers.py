"""Processes that replay or capture one case of the zoo after another: imports and the fake device are paid for once."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from peakcast.featurizer.capture.isolated import environment

# A process that has done so many cases makes room for a fresh one: the compiler's caches grow.
_CASES_OF_A_PROCESS: Final = 60
_START_TIMEOUT_S: Final = 180.0


@dataclass(slots=True)
class _Worker:
    """One process of `case_worker`, started anew where it died, was too slow, or has done its share."""

    arguments: Sequence[str]
    process: subprocess.Popen[str] | None = None
    answers: queue.Queue[str] = field(default_factory=queue.Queue)
    cases: int = 0
    folder: tempfile.TemporaryDirectory[str] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_closed: bool = False

    def ask(self, request: Mapping[str, Any], timeout_sec: float) -> dict[str, Any]:
        """Return the answer.

        Raises:
            _NoAnswerError: if there is none: the process did not start, died, was too slow, or was stopped.
            OSError: if it died while it was asked.
        """
        if self.process is not None and self.process.poll() is not None:
            self.stop()  # it died after its last answer, which is nothing to do with this request
        if self.process is None:
            self._start()
            self._hear(_START_TIMEOUT_S, "it did not start")
        process = self.process
        if process is None or process.stdin is None:
            raise _NoAnswerError("it was stopped")
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        answer = self._hear(timeout_sec, "no result")
        self.cases += 1
        if self.cases >= _CASES_OF_A_PROCESS:
            self.stop()
        return answer

    def _start(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="peakcast-cases-", ignore_cleanup_errors=True)
        variables = {
            **environment(),
            "TORCHINDUCTOR_CACHE_DIR": str(Path(folder.name, "inductor")),
            "TRITON_CACHE_DIR": str(Path(folder.name, "triton")),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        command = [sys.executable, "-W", "ignore", "-m", "peakcast.training.case_worker", *self.arguments]
        with self.lock:
            if self.is_closed:
                folder.cleanup()
                return
            self.folder, self.answers, self.cases = folder, queue.Queue(), 0
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=variables,
            )
            threading.Thread(target=self._read, args=(self.process, self.answers), daemon=True).start()

    @staticmethod
    def _read(process: subprocess.Popen[str], answers: queue.Queue[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                answers.put(line)
        answers.put("")  # it has ended

    def _hear(self, timeout_sec: float, failure: str) -> dict[str, Any]:
        try:
            line = self.answers.get(timeout=timeout_sec)
        except queue.Empty:
            raise _NoAnswerError(f"{failure} within {timeout_sec:.0f} s") from None
        if not line:
            process = self.process
            ended = "" if process is None else f", exit status {process.wait()}"
            raise _NoAnswerError(f"{failure}: it ended{ended}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def stop(self, *, for_good: bool = False) -> None:
        """End the process and remove what its compiler wrote; `for_good`: and start no other. From any thread."""
        with self.lock:
            self.is_closed |= for_good
            process, self.process = self.process, None
            folder, self.folder = self.folder, None
        if process is not None:
            process.kill()
            process.wait()
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
        if folder is not None:
            folder.cleanup()


class _NoAnswerError(RuntimeError):
    """A process gave no answer; the message says why."""


def ask_workers(
    requests: Sequence[Mapping[str, Any]], arguments: Sequence[str], *, workers: int, timeout_sec: float
) -> Iterator[tuple[Mapping[str, Any], dict[str, Any]]]:
    """Have each request answered by one of the processes; yields it with its answer, as answers come.

    `arguments` are those of `case_worker`. An answer is what it gave, or an object with an `error`.
    """
    idle: queue.Queue[_Worker] = queue.Queue()
    crew = [_Worker(arguments) for _ in range(workers)]
    for one in crew:
        idle.put(one)
    done: queue.Queue[tuple[Mapping[str, Any], dict[str, Any]]] = queue.Queue()

    def run(request: Mapping[str, Any]) -> None:
        worker = idle.get()
        try:
            answer = worker.ask(request, timeout_sec)
        except Exception as error:  # noqa: BLE001 - or whoever waits for the answer would wait for ever
            answer = {"error": f"the process of this case: {error}"}
            worker.stop()
        finally:
            idle.put(worker)
        done.put((request, answer))

    pool = ThreadPoolExecutor(workers)
    try:
        for request in requests:
            pool.submit(run, request)
        for _ in requests:
            yield done.get()
    finally:
        pool.shutdown(cancel_futures=True, wait=False)
        for one in crew:
            one.stop(for_good=True)
        pool.shutdown(wait=True)


__all__ = ["ask_workers"]
