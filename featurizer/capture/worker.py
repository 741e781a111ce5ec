"""The process that captures: `python -m peakcast.featurizer.capture.worker REQUEST.json`.

It is a process of its own because the fake CUDA device must be loaded before torch, and changes torch for good.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from peakcast.featurizer.capture import shim


def main(request_path: str) -> int:
    """Capture as the request says; write the graph, or an error with its traceback, where it says."""
    request = json.loads(Path(request_path).read_text())
    try:
        document = _capture(request)
    except BaseException as error:  # noqa: BLE001  (the parent must learn of everything, SystemExit of user code too)
        failure = {"kind": type(error).__name__, "message": str(error)[:4000], "traceback": traceback.format_exc()}
        Path(request["error"]).write_text(json.dumps(failure))
        return 1
    Path(request["output"]).write_bytes(document)
    return 0


def _capture(request: dict[str, Any]) -> bytes:
    traced_on = _prepare_host(allow_cpu=request["allow_cpu"])
    import torch  # noqa: PLC0415  (the shim comes first)

    from peakcast.featurizer.capture.fake_step import new_fake_mode  # noqa: PLC0415
    from peakcast.featurizer.capture.torchvision_ops import define_missing_operators  # noqa: PLC0415

    define_missing_operators()
    from peakcast.featurizer.capture.record import record  # noqa: PLC0415
    from peakcast.featurizer.capture.stage import build_on_fake_tensors, placed  # noqa: PLC0415

    torch.set_num_threads(1)
    mode = new_fake_mode()
    device = torch.device("cpu") if traced_on == "cpu" else torch.device("cuda", 0)
    workload = build_on_fake_tensors(_factory(request), mode, device)
    with placed(workload, mode, device), mode:
        return record(workload, request["plans"], mode=mode, device=device, traced_on=traced_on, progress=_say).to_json()


def _say(plan: str) -> None:
    print(f"capturing {plan}", flush=True)  # noqa: T201  (read by the parent, line by line)


def _prepare_host(*, allow_cpu: bool) -> str:
    """Find or fake a CUDA device. Returns what the trace is made on: cuda, cuda-shim or cpu."""
    is_cpu_build = "+cpu" in importlib.metadata.version("torch") or not _has_cuda_library()
    if not is_cpu_build:
        import torch  # noqa: PLC0415

        if torch.cuda.is_available():
            return "cuda"
    try:
        if not is_cpu_build:
            raise shim.ShimUnavailable("a CUDA build of torch without a usable GPU: the fake device needs a CPU build")
        shim.load()
    except shim.ShimUnavailable:
        if allow_cpu:
            return "cpu"
        raise
    from peakcast.featurizer.capture import cuda_host  # noqa: PLC0415

    cuda_host.pretend()
    return "cuda-shim"


def _has_cuda_library() -> bool:
    found = importlib.util.find_spec("torch")
    return found is not None and found.origin is not None and any(Path(found.origin).parent.glob("lib/libtorch_cuda*"))


def _factory(request: dict[str, Any]) -> Callable[[], Any]:
    """Return the function that builds the workload: a user's, or the unpacking of one shipped here."""
    if request.get("packed"):
        data = Path(request["packed"]).read_bytes()

        def shipped() -> Any:
            from peakcast.featurizer.capture.ship import unpack  # noqa: PLC0415

            return unpack(data)

        return shipped
    from peakcast.featurizer.capture.target import load_target  # noqa: PLC0415

    return load_target(request["target"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
