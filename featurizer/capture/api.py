"""`peakcast.capture`: from a live model, or a Workload, to its graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from peakcast.featurizer.capture.fake_step import new_fake_mode
from peakcast.featurizer.capture.isolated import TIMEOUT_SEC, CaptureError, capture_packed
from peakcast.featurizer.capture.record import record
from peakcast.featurizer.capture.ship import pack
from peakcast.featurizer.capture.stage import placed
from peakcast.featurizer.capture.workload import Loss, Workload
from peakcast.featurizer.spec import GraphSpec


def capture(
    model: nn.Module | Workload,
    inputs: Any = None,
    *,
    loss: Loss | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    autocast: torch.dtype | None = None,
    plans: Sequence[str] = ("eager", "inductor"),
    timeout_sec: float = TIMEOUT_SEC,
    progress: Callable[[str], None] | None = None,
) -> GraphSpec:
    """Capture one step under each plan. No step is run: everything happens on fake tensors.

    With a GPU it is traced in this process, as CUDA. Without one the workload's code and shapes go to a process of
    our own, which traces it as CUDA would; where that cannot be, it is traced here on the CPU and marked so.

    Args:
        model: the module, or a whole `Workload` (then leave the rest out).
        inputs: see `Workload`; so are `loss`, `optimizer` and `autocast`.
        plans: names as in `peakcast.featurizer.plans`.

    Raises:
        ValueError: if the arguments do not make a workload, or a plan is unknown or does not fit the model.
        CaptureError: if the step fails under capture.
    """
    if isinstance(model, Workload):
        if inputs is not None or loss is not None or optimizer is not None or autocast is not None:
            raise ValueError("capture(Workload(...)) takes inputs, loss, optimizer and autocast from the workload")
        workload = model
    else:
        workload = Workload(model, inputs, loss=loss, optimizer=optimizer, autocast=autocast)
    if torch.cuda.is_available():
        return _in_process(workload, plans, "cuda", progress)
    try:
        packed = pack(workload)
    except Exception:  # noqa: BLE001  (locks, sockets, generators: what cannot be sent is traced where it is)
        return _in_process(workload, plans, "cpu", progress)
    return capture_packed(packed, plans=plans, timeout_sec=timeout_sec, progress=progress)


def _in_process(
    workload: Workload, plans: Sequence[str], traced_on: str, progress: Callable[[str], None] | None
) -> GraphSpec:
    mode = new_fake_mode()
    device = torch.device("cuda", torch.cuda.current_device()) if traced_on == "cuda" else torch.device("cpu")
    try:
        with placed(workload, mode, device), mode:
            return record(workload, plans, mode=mode, device=device, traced_on=traced_on, progress=progress)
    except ValueError:
        raise
    except Exception as error:
        raise CaptureError(f"{type(error).__name__}: {error}") from error
