"""A capturing process kept ready, so that a capture does not wait for torch to be imported."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

from peakcast.client.guard.capture_server import read_frame, write_frame
from peakcast.featurizer.capture.isolated import CaptureError, environment
from peakcast.featurizer.spec import GraphSpec

_LOG_TAIL_CHARACTERS = 800


@dataclass(frozen=True, slots=True)
class Captured:
    """A graph, and in words what the capture had to assume about the step."""

    spec: GraphSpec
    assumed: tuple[str, ...]
    traced_on: str


class SpareProcess:
    """Start a capturing process now, and use it later. Not for several threads at once.

    On a host with a GPU a process that has traced holds a CUDA context, half a gigabyte of the card: `renew` after the
    captures for one decision ends it and starts the next one.

    Args:
        modules: names of those that the workload will need, imported while the process waits.
    """

    def __init__(self, modules: Sequence[str] = ()) -> None:
        self._modules = tuple(modules)
        self._process: subprocess.Popen[bytes] | None = None
        self._frames: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._log: IO[bytes] | None = None
        self._traced_on = ""
        self._has_captured = False
        self._end: weakref.finalize[Any, Any] | None = None

    def start(self) -> None:
        """Start the process, unless there is one."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        self._log = tempfile.TemporaryFile(prefix="peakcast-")  # noqa: SIM115  (closed with the process)
        # The script's own folder is first on the path of the parent only.
        path = os.pathsep.join([*(entry or os.getcwd() for entry in sys.path), os.environ.get("PYTHONPATH", "")])  # noqa: PTH109
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "peakcast.client.guard.capture_server", *self._modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**environment(), "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C at the terminal is for the training
        )
        self._frames = queue.SimpleQueue()
        self._traced_on = ""
        self._has_captured = False
        threading.Thread(target=_read_all, args=(self._process.stdout, self._frames), daemon=True).start()
        # However this object goes, the process goes too.
        self._end = weakref.finalize(self, _end, self._process)

    def capture(self, packed: bytes, plans: Sequence[str], *, timeout_s: float) -> Captured:
        """Capture a packed workload.

        Raises:
            CaptureError: if the capture fails, or takes longer than `timeout_s`, the start of the process included.
        """
        self.start()
        assert self._process is not None
        assert self._process.stdin is not None
        deadline_s = time.monotonic() + timeout_s
        try:
            if not self._traced_on:
                self._traced_on = json.loads(self._frame(deadline_s, timeout_s))["traced_on"]
            self._has_captured = True
            write_frame(self._process.stdin, json.dumps({"plans": list(plans)}).encode())
            write_frame(self._process.stdin, packed)
            reply = json.loads(self._frame(deadline_s, timeout_s))
            graph = self._frame(deadline_s, timeout_s)
        except (CaptureError, OSError) as error:
            details = self._log_tail()
            self.close()
            raise error if isinstance(error, CaptureError) else CaptureError(str(error), details) from None
        if "error" in reply:
            raise CaptureError(reply["error"], reply["traceback"])
        return Captured(GraphSpec.from_json(graph), tuple(reply["assumed"]), self._traced_on)

    def renew(self) -> None:
        """Replace a process that has captured by a fresh one."""
        if self._has_captured:
            self.close()
            self.start()

    def close(self) -> None:
        """End the process."""
        if self._end is not None:
            self._end()
            self._end = None
        if self._log is not None:
            self._log.close()
            self._log = None
        self._process = None

    def _frame(self, deadline_s: float, timeout_s: float) -> bytes:
        try:
            frame = self._frames.get(timeout=max(deadline_s - time.monotonic(), 0.001))
        except queue.Empty:
            raise CaptureError(f"the capture did not end within {timeout_s:g} s") from None
        if frame is None:
            raise CaptureError(f"the capturing process died: {self._log_tail()}")
        return frame

    def _log_tail(self) -> str:
        if self._log is None:
            return ""
        self._log.seek(0)
        return self._log.read().decode(errors="replace").strip()[-_LOG_TAIL_CHARACTERS:]


def _read_all(stream: Any, frames: queue.SimpleQueue[bytes | None]) -> None:
    try:
        while (frame := read_frame(stream)) is not None:
            frames.put(frame)
    except (OSError, ValueError):  # closed under the reader
        pass
    frames.put(None)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):  # unsent bytes to a process that is gone
                stream.close()
