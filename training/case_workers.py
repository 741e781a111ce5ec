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
    reader: threading.Thread | None = None
    answers: queue.Queue[str] = field(default_factory=queue.Queue)
    cases: int = 0
    folder: tempfile.TemporaryDirectory[str] | None = None

    def ask(self, request: Mapping[str, Any], timeout_sec: float) -> dict[str, Any]:
        """Return the answer, or an object with an `error`."""
        if self.process is None:
            self._start()
            if self._hear(_START_TIMEOUT_S) is None:
                self.stop()
                return {"error": f"the process did not start within {_START_TIMEOUT_S:.0f} s"}
        process = self.process
        assert process is not None
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            self.stop()
            return {"error": "the process died"}
        answer = self._hear(timeout_sec)
        self.cases += 1
        if answer is None:
            ended = process.poll()
            self.stop()
            return {
                "error": f"no result within {timeout_sec:.0f} s" if ended is None else f"died with exit status {ended}"
            }
        if self.cases >= _CASES_OF_A_PROCESS:
            self.stop()
        return answer

    def _start(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="peakcast-cases-", ignore_cleanup_errors=True)
        variables = {
            **environment(),
            "TORCHINDUCTOR_CACHE_DIR": str(Path(self.folder.name, "inductor")),
            "TRITON_CACHE_DIR": str(Path(self.folder.name, "triton")),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        command = [sys.executable, "-W", "ignore", "-m", "peakcast.training.case_worker", *self.arguments]
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
            answer = {"error": f"{type(error).__name__}: {error}"}
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
            one.stop()
        pool.shutdown(wait=True)


__all__ = ["ask_workers"]
