"""`peakcast serve` as a process: starting, refusing to start, stopping."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from once import compile_loops
from serving import Served, serving

from peakcast.models.registry import PRETRAINED
from peakcast.service.examples import example_request
from peakcast.service.serve import _listen
from peakcast.service.settings import Settings


def serve(*options: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a serve that is expected to end by itself."""
    environment = {**os.environ, **{f"PEAKCAST_{key.upper()}": value for key, value in settings.items()}}
    command = [sys.executable, "-m", "peakcast", "serve", *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_request_under_way_is_answered_before_the_process_ends(number: signal.Signals) -> None:
    """Asked to stop in the middle of a request, the service answers it, takes no more, and exits with 0."""
    with serving() as served:
        body = httpx.Request("POST", served.url, json=example_request()).content
        with socket.create_connection(("127.0.0.1", served.port), timeout=60) as connection:
            head = f"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body[:100])
            # The metrics say when the service has begun to read: only then is the request under way.
            while "peakcast_pending_requests 1.0" not in httpx.get(f"{served.url}/metrics").text:
                pass
            served.process.send_signal(number)
            connection.sendall(body[100:])
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        assert served.process.wait(timeout=60) == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{served.url}/health/live")
        assert served.events()[-1]["event"] == "stopped"


def _logged_request(served: Served, request_id: str) -> dict[str, Any]:
    """Return the log line of a request; it may be written just after the caller has the reply."""
    for _ in range(100):
        for event in served.events():
            if event["event"] == "request" and event["request_id"] == request_id:
                return event
        time.sleep(0.05)
    raise AssertionError(f"no log line for request {request_id}")


def test_stopping_does_not_wait_for_loops_that_are_being_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Filling numba's cache takes a minute of CPU after the service is ready: asked to stop, it ends without."""
    pytest.importorskip("numba")
    compile_loops()  # into the cache that other services use, before this one gets an empty one
    with monkeypatch.context() as empty_cache:
        empty_cache.setenv("NUMBA_CACHE_DIR", str(tmp_path))
        with serving() as served:
            served.process.send_signal(signal.SIGTERM)
            assert served.process.wait(timeout=60) == 0
            assert "warm" not in {event["event"] for event in served.events()}


def test_each_request_is_one_line_of_json_without_secrets() -> None:
    """The log has route, status and time of each request under the id the caller was told, and no token."""
    with serving(token="open-sesame-1") as served:  # noqa: S106 - of this test's own server
        reply = httpx.get(f"{served.url}/metrics", headers={"Authorization": "Bearer open-sesame-1"})
        line = _logged_request(served, reply.headers["x-request-id"])
        assert (line["method"], line["route"], line["status"]) == ("GET", "/metrics", 200)
        assert line["elapsed_ms"] > 0
        assert "open-sesame" not in served.log_path.read_text()


def test_an_altered_model_is_not_served(tmp_path: Path) -> None:
    """One byte changed in one file: the process ends with 1 and names the file."""
    root = shutil.copytree(PRETRAINED, tmp_path / "models")
    in_use = root / (root / "current").read_text().split()[0]
    victim = next(path for path in sorted(in_use.rglob("*.txt")) if path.stat().st_size > 100)
    content = bytearray(victim.read_bytes())
    content[50] ^= 1
    victim.write_bytes(bytes(content))
    ran = serve("--port", "0", "--model", str(root), "--log-format", "json")
    assert ran.returncode == 1
    assert victim.name in ran.stderr
    assert "sha256" in ran.stderr


def test_a_port_in_use_is_said() -> None:
    """Where the port is taken the process ends with 1, names it and says what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = serve("--port", str(port))
    assert ran.returncode == 1
    assert f"127.0.0.1:{port}" in ran.stderr
    assert "--port" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("name", "value"), [("workers", "many"), ("token", "short"), ("max_body_bytes", "lots"), ("log_level", "loud")]
)
def test_a_wrong_setting_is_named(name: str, value: str) -> None:
    """A setting that cannot be read ends with 2, names the variable, and never shows a token."""
    ran = serve("--port", "0", **{name: value})
    assert ran.returncode == 2
    assert f"PEAKCAST_{name.upper()}" in ran.stderr
    assert (value in ran.stderr.replace("PEAKCAST_", "")) == (name != "token")


@pytest.mark.parametrize(
    ("header", "allowed"),
    [
        ("api.example", True),
        ("API.example:8400", True),
        ("evil.example", False),
        ("", False),
        ("[::1]:8400", True),
        ("[::2]", False),
    ],
)
def test_hosts_are_compared_without_case_and_port(header: str, allowed: bool) -> None:
    """`Host` may carry a port and capitals; what is not listed is refused, nothing listed allows all."""
    assert Settings(allowed_hosts=("api.example", "[::1]")).host_is_allowed(header) == allowed
    assert Settings().host_is_allowed(header)


def test_replies_do_not_wait_for_acknowledgements() -> None:
    """The listening socket names TCP, or asyncio would leave Nagle's delay of 40 ms on every reply."""
    with _listen(Settings(port=0)) as listening:
        assert listening.proto == socket.IPPROTO_TCP
        assert listening.getsockname()[1] > 0
