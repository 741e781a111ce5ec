"""A real service for tests: `peakcast serve` in a process of its own, on a free port of this host."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from once import compile_loops

_START_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Served:
    """A running service."""

    url: str
    process: subprocess.Popen[bytes]
    log_path: Path

    @property
    def port(self) -> int:
        """Return the port it listens on."""
        return int(self.url.rpartition(":")[2])

    def events(self) -> list[dict[str, Any]]:
        """Return its log so far."""
        return read_events(self.log_path)

    def wait_until_warm(self) -> None:
        """Wait until the loops are compiled or found missing, which goes on after the service is ready."""
        deadline_s = time.monotonic() + 120
        while not any(event["event"] == "warm" for event in self.events()):
            assert time.monotonic() < deadline_s, "the service did not get warm"
            time.sleep(0.1)

    def resident_bytes(self) -> int:
        """Return the most memory the process ever had in use."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024


def read_events(log_path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a JSON log."""
    return [json.loads(line) for line in log_path.read_text().splitlines() if line.endswith("}")]


@contextmanager
def serving(**settings: object) -> Iterator[Served]:
    """Serve with these settings (`max_pending=1` is PEAKCAST_MAX_PENDING=1) until the block ends."""
    compile_loops()
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PEAKCAST_")}
    with tempfile.TemporaryDirectory() as folder:
        # A store of its own, never that of who runs the tests.
        environment |= {
            f"PEAKCAST_{key.upper()}": str(value) for key, value in ({"state_dir": folder} | settings).items()
        }
        log_path = Path(folder, "log")
        with log_path.open("wb") as log:
            command = [sys.executable, "-m", "peakcast", "serve", "--port", "0", "--log-format", "json"]
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            yield Served(_ready_url(process, log_path), process, log_path)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _ready_url(process: subprocess.Popen[bytes], log_path: Path) -> str:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        events = {event["event"]: event for event in read_events(log_path)}
        if "ready" in events:
            url = str(events["listening"]["url"])
            assert httpx.get(f"{url}/health/ready").status_code == 200
            return url
        time.sleep(0.05)
    raise AssertionError(f"the service did not get ready (exit code {process.poll()}):\n{log_path.read_text()}")
