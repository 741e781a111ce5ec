"""The process that records a step for `peakcast explain --measure`: `python -m ...history_worker REQUEST.json`."""

from __future__ import annotations

import os
import sys
from typing import Any, Final

from peakcast.featurizer.capture.target import load_target
from peakcast.featurizer.capture.worker import main

# As peaks are measured: steps 2 to 4 are steady; one of them is enough to explain.
_STEPS_BEFORE: Final = 2
_MAX_EVENTS: Final = 1_000_000


def record_step(request: dict[str, Any]) -> bytes:
    """Run the workload under a plan and return the allocator's history of one steady step, as JSON.

    Raises:
        NoGpuError: without a CUDA device.
    """
    import torch

    from peakcast.client.comparing.allocator_history import history_document
    from peakcast.client.measure import NoGpuError, clean
    from peakcast.featurizer.capture.plans import install

    if not torch.cuda.is_available():
        raise NoGpuError("a step is measured on a CUDA GPU, and torch sees none here")
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    with torch.device("cuda"):
        workload = load_target(request["target"])()
    clean()
    undo = install(workload.model, request["plan"]) if workload.model is not None else (lambda: None)
    try:
        for _ in range(_STEPS_BEFORE):
            workload.run()
        torch.cuda.synchronize()
        # torch's own viewer reads the same; there is no public name for it.
        torch.cuda.memory._record_memory_history(stacks="python", max_entries=_MAX_EVENTS)  # noqa: SLF001
        workload.run()
        torch.cuda.synchronize()
        snapshot = torch.cuda.memory._snapshot()  # noqa: SLF001
        torch.cuda.memory._record_memory_history(enabled=None)  # noqa: SLF001
    finally:
        undo()
    index = torch.cuda.current_device()
    history = history_document(
        snapshot,
        device_index=index,
        device=torch.cuda.get_device_name(index),
        torch=str(torch.__version__),
        plan=request["plan"],
    )
    return history.model_dump_json().encode()


if __name__ == "__main__":
    exit_code = main(sys.argv[1], record_step)
    sys.stdout.flush()
    os._exit(exit_code)
