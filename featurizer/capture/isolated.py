"""Run a capture in a process of its own, with a time limit, and bring back the graph or a clear error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from peakcast.featurizer.spec import GraphSpec

# A cold compile of the largest models we know takes minutes of tracing; past this something hangs.
TIMEOUT_SEC = 1800.0
CAPTURING: Final = "peakcast.featurizer.capture.worker"
# What the compiler may not do in a capturing process: keep caches, or start processes of its own.
COMPILER_VARIABLES: Final = {
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
    "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
    "TORCHINDUCTOR_ENABLE_CACHING_MODULE": "0",  # it would keep our estimates as results of a benchmark
}


class CaptureError(RuntimeError):
    """The workload could not be captured. `details` holds the traceback of the capturing process.

    `kind` names the class of what was raised there, `TimeoutExpired` where it did not end in time.
    """

    def __init__(self, message: str, details: str = "", kind: str = "") -> None:
        super().__init__(message)
        self.details = details
        self.kind = kind


def capture_workload(
    target: str,
    *,
    plans: Sequence[str],
    allow_cpu: bool = True,
    world_size: int | None = None,
    symbolic: str | None = None,
    timeout_sec: float = TIMEOUT_SEC,
    progress: Callable[[str], None] | None = None,
) -> GraphSpec:
    """Capture `package.module:name` or `path/to/file.py:name` under each plan.

    Args:
        allow_cpu: where no CUDA device can be found or faked, trace on the CPU (marked `traced_on: cpu`) rather
            than fail.
        world_size: how many ranks the step runs on; rank 0 is captured. Default: as a launcher says, in WORLD_SIZE.
        symbolic: capture with a symbol, `batch` or `batch=MIN:MAX`.
        progress: called with a line of text as the capture goes on.

    Raises:
        CaptureError: if the workload or the capture fails, or the time limit passes.
    """
    return _run(
        {"target": target, "world_size": world_size, "symbolic": symbolic}, plans, allow_cpu, timeout_sec, progress
    )


def capture_packed(
    packed: bytes,
    *,
    plans: Sequence[str],
    allow_cpu: bool = True,
    world_size: int | None = None,
    symbolic: str | None = None,
    timeout_sec: float = TIMEOUT_SEC,
    progress: Callable[[str], None] | None = None,
) -> GraphSpec:
    """Capture a workload that `ship.pack` serialized in this process. Raises as `capture_workload` does."""
    with tempfile.NamedTemporaryFile(prefix="peakcast-", suffix=".workload") as file:
        file.write(packed)
        file.flush()
        what = {"packed": file.name, "world_size": world_size, "symbolic": symbolic}
        return _run(what, plans, allow_cpu, timeout_sec, progress)


def _run(
    what: dict[str, Any],
    plans: Sequence[str],
    allow_cpu: bool,  # noqa: FBT001
    timeout_sec: float,
    progress: Callable[[str], None] | None,
) -> GraphSpec:
    request = {**what, "plans": list(plans), "allow_cpu": allow_cpu}
    return GraphSpec.from_json(ask_process(CAPTURING, request, timeout_sec=timeout_sec, progress=progress))


def ask_process(
    module: str, what: dict[str, Any], *, timeout_sec: float, progress: Callable[[str], None] | None = None
) -> bytes:
    """Run `python -m module REQUEST.json` and return the bytes it writes.

    Raises:
        CaptureError: if it fails, dies, or does not end in time.
    """
    with tempfile.TemporaryDirectory(prefix="peakcast-") as folder:
        request: dict[str, Any] = {
            **what,
            "output": str(Path(folder, "output.json")),
            "error": str(Path(folder, "error.json")),
        }
        request_path = Path(folder, "request.json")
        request_path.write_text(json.dumps(request))
        command = [sys.executable, "-W", "ignore", "-m", module, str(request_path)]
        # What a compiler writes is gone with the folder.
        variables = {
            **environment(),
            "TORCHINDUCTOR_CACHE_DIR": str(Path(folder, "inductor")),
            "TRITON_CACHE_DIR": str(Path(folder, "triton")),
        }
        log_path = Path(folder, "log")
        with log_path.open("wb") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=variables)
            code = _wait(process, timeout_sec, progress)
        if code != 0:
            raise _failure(code, Path(request["error"]), log_path)
        return Path(request["output"]).read_bytes()


def environment() -> dict[str, str]:
    """Return the environment of the capturing process: the same packages, no caches, no compile workers."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [*sys.path[1:], os.environ.get("PYTHONPATH", "")])),
        **COMPILER_VARIABLES,
        "TOKENIZERS_PARALLELISM": "false",
        **_place_in_the_job(),
    }


def _place_in_the_job() -> dict[str, str]:
    """Return how many ranks this process is one of, and its card: a capture takes none of another rank's memory."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    place = {}
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        place["WORLD_SIZE"] = str(torch.distributed.get_world_size())
    if torch.cuda.is_initialized() and torch.cuda.device_count() > 1:
        visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        card = torch.cuda.current_device()
        place["CUDA_VISIBLE_DEVICES"] = visible[card] if card < len(visible) else str(card)
    return place


def _wait(process: subprocess.Popen[str], timeout_sec: float, progress: Callable[[str], None] | None) -> int:
    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if progress is not None and line.startswith(("capturing ", "replaying ")):
                progress(line.strip())

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        return process.wait(timeout_sec)
    except subprocess.TimeoutExpired as error:
        message = f"the capture did not end within {timeout_sec:.0f} s"
        raise CaptureError(message, kind=type(error).__name__) from error
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        reader.join(timeout=5)
        if process.stdout is not None:
            process.stdout.close()


def _failure(code: int, error_path: Path, log_path: Path) -> CaptureError:
    if error_path.exists():
        failure = json.loads(error_path.read_text())
        # Ours: the message is a sentence of its own.
        is_told = failure["kind"] in ("ValueError", "CaptureError", "ShimUnavailable", "ReplayUnavailable")
        text = failure["message"] if is_told else f"{failure['kind']}: {failure['message']}"
        return CaptureError(text, failure["traceback"], failure["kind"])
    log = log_path.read_text(errors="replace")
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return CaptureError(f"the capturing process died ({how}): {log.strip()[-800:]}", log)
