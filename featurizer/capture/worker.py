"""The process that captures: `python -m peakcast.featurizer.capture.worker REQUEST.json`.

It is a process of its own because the fake CUDA device must be loaded before torch, and changes torch for good.
"""

from __future__ import annotations

import gc
import importlib
import importlib.metadata
import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from peakcast.featurizer.capture import shim

if TYPE_CHECKING:
    from peakcast.featurizer.capture.workload import Workload
    from peakcast.featurizer.spec import GraphSpec


def main(request_path: str, serve: Callable[[dict[str, Any]], bytes] | None = None) -> int:
    """Do as the request says, by default capture; write what comes of it, or an error with its traceback."""
    request = json.loads(Path(request_path).read_text())
    try:
        document = (serve or _capture)(request)
    except BaseException as error:  # noqa: BLE001  (the parent must learn of everything, SystemExit of user code too)
        failure = {"kind": type(error).__name__, "message": _message(error), "traceback": traceback.format_exc()}
        Path(request["error"]).write_text(json.dumps(failure))
        return 1
    Path(request["output"]).write_bytes(document)
    return 0


def _message(error: BaseException) -> str:
    if "torch" not in sys.modules:
        return str(error)
    from peakcast.featurizer.capture.limits import one_message

    return one_message(error)[:4000]


def _capture(request: dict[str, Any]) -> bytes:
    traced_on = prepare_host(allow_cpu=request["allow_cpu"], world_size=request.get("world_size"))
    factory, plans = workload_factory(request), request["plans"]
    gc.freeze()  # collections during the capture need not go through all that was imported
    if not request.get("symbolic"):
        return capture_here(factory, plans, traced_on, progress=_say).to_json()
    from peakcast.featurizer.capture.sizes import BatchRange
    from peakcast.featurizer.capture.symbolic import capture_at_sizes

    def capture(made: Callable[[], Any]) -> GraphSpec:
        return capture_here(made, plans, traced_on, progress=_say)

    return capture_at_sizes(capture, factory, BatchRange.parse(request["symbolic"])).to_json()


def capture_here(
    factory: Callable[[], Workload],
    plans: Sequence[str],
    traced_on: str,
    *,
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> GraphSpec:
    """Capture what `factory` returns in this process, which `prepare_host` made ready. Call it as often as you like.

    `options` are those of `record`: what stands for the compiler.
    """
    import torch

    from peakcast.featurizer.capture.fake_step import new_fake_mode
    from peakcast.featurizer.capture.isolated import CaptureError
    from peakcast.featurizer.capture.limits import refuse_what_cannot_be_captured
    from peakcast.featurizer.capture.record import record
    from peakcast.featurizer.capture.stage import build_on_fake_tensors, placed
    from peakcast.featurizer.capture.workload import Workload
    from peakcast.featurizer.plans import parse_plan

    for plan in plans:
        parse_plan(plan)  # raises before anything is built
    mode = new_fake_mode()
    device = torch.device("cpu") if traced_on == "cpu" else torch.device("cuda", 0)

    def checked() -> Workload:
        made = factory()
        if not isinstance(made, Workload):
            got = "None (is a return missing?)" if made is None else type(made).__name__
            raise CaptureError(f"WORKLOAD() must return peakcast.Workload, got {got}")
        refuse_what_cannot_be_captured(made, plans)
        return made

    workload = build_on_fake_tensors(checked, mode, device)
    with placed(workload, mode, device), mode:
        return record(workload, plans, mode=mode, device=device, traced_on=traced_on, progress=progress, **options)


def _say(plan: str) -> None:
    print(f"capturing {plan}", flush=True)  # noqa: T201  (read by the parent, line by line)


def prepare_host(*, allow_cpu: bool, world_size: int | None = None) -> str:
    """Find or fake a CUDA device, once per process and before torch is imported.

    Returns what traces are made on: cuda, cuda-shim or cpu.

    Args:
        allow_cpu: go on without a device.
        world_size: be rank 0 of so many; default: as a launcher says, in WORLD_SIZE.

    Raises:
        ShimUnavailable: if there is no CUDA device, none can be faked, and `allow_cpu` is off.
    """
    traced_on = _prepare_host(allow_cpu=allow_cpu)
    import torch

    from peakcast.featurizer.capture.conversions import let_fake_tensors_be_pinned
    from peakcast.featurizer.capture.torchvision_ops import define_missing_operators

    define_missing_operators()
    let_fake_tensors_be_pinned()
    torch.set_num_threads(1)
    if torch.distributed.is_available():
        from peakcast.featurizer.capture import process_group

        ranks = world_size or int(os.environ.get("WORLD_SIZE") or 0)
        if ranks:
            process_group.join(ranks)
        else:
            process_group.refuse_to_join()
    return traced_on


def _prepare_host(*, allow_cpu: bool) -> str:
    is_cpu_build = "+cpu" in importlib.metadata.version("torch") or not _has_cuda_library()
    if not is_cpu_build:
        import torch

        if torch.cuda.is_available():
            from peakcast.featurizer.capture.product_padding import decide_without_timing

            decide_without_timing()
            return "cuda"
    try:
        if not is_cpu_build:
            raise shim.ShimUnavailable("a CUDA build of torch without a usable GPU: the fake device needs a CPU build")
        shim.load()
    except shim.ShimUnavailable:
        if allow_cpu:
            return "cpu"
        raise
    from peakcast.featurizer.capture import cuda_host

    cuda_host.pretend()
    return "cuda-shim"


def _has_cuda_library() -> bool:
    found = importlib.util.find_spec("torch")
    return found is not None and found.origin is not None and any(Path(found.origin).parent.glob("lib/libtorch_cuda*"))


def workload_factory(request: dict[str, Any]) -> Callable[[], Any]:
    """Return the function that builds the workload: a user's, or the unpacking of one shipped here."""
    if request.get("packed"):
        data = Path(request["packed"]).read_bytes()

        def shipped() -> Any:
            from peakcast.featurizer.capture.ship import unpack

            # This module was "__main__" so far; here the name means the parent's script.
            sys.modules["__main__"] = main = ModuleType("__main__")
            return unpack(data, main)

        return shipped
    from peakcast.featurizer.capture.target import load_target

    return load_target(request["target"])


if __name__ == "__main__":
    exit_code = main(sys.argv[1])
    sys.stdout.flush()
    # Past torch's teardown: with the fake device its autograd threads can abort a process that has done its work.
    os._exit(exit_code)
