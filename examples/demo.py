"""What `make demo` runs: a real server, a captured GPT-2 small, and its peaks asked for over HTTP."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

import peakcast
from peakcast.client.commands.render import bytes_text, decision_text, explanation_tables, people_console
from peakcast.client.errors import AskError
from peakcast.featurizer.capture import CaptureError, capture_workload

WORKLOAD = f"{Path(__file__).with_name('gpt2_small.py')}:workload"
PLANS = ["eager", "inductor"]
CARD_BYTES = 80 * 2**30
# Between the two measured peaks: here the decision has to change.
SMALL_CARD_BYTES = 5 * 2**30

# `torch.cuda.max_memory_allocated()` over steps 2 to 4 of this workload on an NVIDIA H200 with torch 2.11.0+cu130:
# the record gpt2_small, batch 8, of the measured peaks the predictor is trained on.
MEASURED_BYTES = {"eager": 7_567_027_712, "inductor": 4_554_212_352}

# Loading the model and one small prediction take about a second on two busy cores.
START_TIMEOUT_SECONDS = 60.0


class DemoError(RuntimeError):
    """The demo cannot go on."""


@contextmanager
def server(console: Console, log_path: Path, *, keep: bool) -> Iterator[str]:
    """Run `peakcast serve` on a free port until the block ends, unless it is to be kept; yield its URL."""
    command = [sys.executable, "-m", "peakcast", "serve", "--port", "0", "--log-format", "json"]
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=keep)
    done = False
    try:
        yield _ready_url(process, log_path)
        done = True
    finally:
        if keep and done:
            console.print(f"The server goes on; stop it with: kill {process.pid}")
        else:
            process.send_signal(signal.SIGTERM)
            try:
                code = process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                code = process.wait()
            if done and code != 0:
                raise DemoError(f"the server ended with exit code {code}: see {log_path}")


def _ready_url(process: subprocess.Popen[bytes], log_path: Path) -> str:
    """Wait until the server says that it is ready, and return its URL."""
    url = None
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise DemoError(
                f"the server did not start (exit code {process.returncode}):\n{log_path.read_text()[-2000:]}"
            )
        if url is None:
            url = _listening_url(log_path)
        elif httpx.get(f"{url}/health/ready").is_success:
            return url
        time.sleep(0.1)
    raise DemoError(f"the server was not ready within {START_TIMEOUT_SECONDS:g} s: see {log_path}")


def _listening_url(log_path: Path) -> str | None:
    for line in log_path.read_text().splitlines():
        if line.endswith("}"):
            event = json.loads(line)
            if event["event"] == "listening":
                return str(event["url"])
    return None


def show(console: Console, prediction: peakcast.Prediction) -> None:
    """Print predicted beside measured, the decision, and where the bytes come from."""
    table = Table(title="GPT-2 small, batch 8 x 512, AdamW, bf16 autocast: steady peak of allocated memory")
    for title in ("plan", "expected", "upper bound", "measured", "difference", "confidence"):
        table.add_column(title, justify="left" if title in {"plan", "confidence"} else "right")
    for plan in prediction.plans:
        peak, measured_bytes = plan.steady_allocated, MEASURED_BYTES[plan.plan]
        table.add_row(
            plan.plan,
            bytes_text(peak.expected_bytes),
            bytes_text(peak.upper_bytes),
            bytes_text(measured_bytes),
            f"{peak.expected_bytes / measured_bytes - 1:+.1%}",
            plan.confidence.replace("_", " "),
        )
    table.caption = (
        f"Measured on an NVIDIA H200 with torch 2.11. Upper bounds at risk {prediction.risk:g}. This configuration is "
        "in the training data: for architectures the predictor never saw, see docs/ACCURACY.md."
    )
    console.print(table)
    console.print(f"On a card of {bytes_text(CARD_BYTES)}: ", end="")
    console.print(decision_text(prediction.decision), soft_wrap=True)
    console.print(explanation_tables(prediction.explanation, prediction.plans[0].plan))


def repeat_line(url: str, prediction: peakcast.Prediction) -> str:
    """Return the curl command that asks the same again."""
    question = {"graph_id": prediction.graph_id, "plans": PLANS, "device": {"total_bytes": CARD_BYTES}}
    return f"curl -s {url}/predict -H 'Content-Type: application/json' -d '{json.dumps(question)}'"


def main() -> int:
    """Run the demo; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the server up")
    parser.add_argument("--log", type=Path, default=Path("build/demo-server.log"), help="where the server's log goes")
    options = parser.parse_args()
    options.log.parent.mkdir(parents=True, exist_ok=True)
    console = people_console()
    # One thread is enough for one question, and leaves the other cores to the capture.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        with server(console, options.log, keep=options.keep) as url:
            console.print(f"peakcast serves at {url} (documentation at {url}/docs, log in {options.log})")
            started = time.monotonic()
            with console.status("capturing GPT-2 small: no step is run, no GPU is needed") as status:
                spec = capture_workload(
                    WORKLOAD, plans=PLANS, progress=lambda line: status.update(f"GPT-2 small: {line}")
                )
            nodes = ", ".join(f"{plan} {len(trace):,} nodes" for plan, trace in spec.traces.items())
            console.print(f"captured in {time.monotonic() - started:.0f} s: {nodes}")
            prediction = peakcast.predict(spec, server=url, plans=PLANS, device_memory_bytes=CARD_BYTES)
            show(console, prediction)
            small = peakcast.predict(spec, server=url, plans=PLANS, device_memory_bytes=SMALL_CARD_BYTES)
            console.print(f"\nOn a card of {bytes_text(SMALL_CARD_BYTES)}: ", end="")
            console.print(decision_text(small.decision), soft_wrap=True)
            again = peakcast.predict(spec, server=url, plans=PLANS, device_memory_bytes=CARD_BYTES)
            console.print(f"answered in {prediction.elapsed_ms:.0f} ms; again by graph_id in {again.elapsed_ms:.1f} ms")
            if options.keep:
                console.print(f"ask again:\n{repeat_line(url, prediction)}", soft_wrap=True, markup=False)
            else:
                console.print("leave the server up with: examples/demo.sh --keep; then ask again with:")
                console.print(repeat_line(url, prediction), soft_wrap=True, markup=False)
    except (DemoError, AskError, CaptureError, OSError, httpx.HTTPError) as error:
        Console(stderr=True).print(f"[bold red]the demo failed:[/] {error}", markup=True, soft_wrap=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
