"""`peakcast.capture`: from a live model, or a Workload, to its graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from peakcast.featurizer.capture.fake_step import new_fake_mode
from peakcast.featurizer.capture.isolated import TIMEOUT_SEC, CaptureError, capture_packed
from peakcast.featurizer.capture.limits import one_message, refuse_what_cannot_be_captured
from peakcast.featurizer.capture.process_group import is_distributed
from peakcast.featurizer.capture.record import record
from peakcast.featurizer.capture.ship import pack
from peakcast.featurizer.capture.sizes import BatchRange
from peakcast.featurizer.capture.stage import placed
from peakcast.featurizer.capture.symbolic import batch_of, capture_at_sizes
from peakcast.featurizer.capture.workload import Loss, Workload
from peakcast.featurizer.plans import ALLOWED_PLANS, parse_plan
from peakcast.featurizer.spec import GraphSpec

_AUTOCAST = (None, torch.float16, torch.bfloat16)


def capture(
    model: nn.Module | Workload,
    inputs: Any = None,
    *,
    loss: Loss | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    autocast: torch.dtype | None = None,
    plans: Sequence[str] = ("eager", "inductor"),
    world_size: int | None = None,
    symbolic: str | None = None,
    timeout_sec: float = TIMEOUT_SEC,
    progress: Callable[[str], None] | None = None,
) -> GraphSpec:
    """Capture one step under each plan. No step is run: everything happens on fake tensors.

    The workload's code and shapes go to a process of our own, which traces it as CUDA, with a GPU or without: nothing
    here is changed. What cannot be sent there is traced in this process, and its tensors are put back; without a GPU
    on the CPU, and marked so. A `step` that cannot be sent is refused.

    Args:
        model: the module, or a whole `Workload` (then leave the rest out).
        inputs: see `Workload`; so are `loss`, `optimizer` and `autocast`.
        plans: names as in `peakcast.featurizer.plans`.
        world_size: how many ranks the step runs on; rank 0 is captured. Default: the process group's size, else as a
            launcher says in WORLD_SIZE.
        symbolic: "batch", or "batch=2:256" with its range: capture at three batches, changing the inputs' leading
            dimension, and keep every size as a polynomial of the batch. Where the step does other things at another
            batch, the graph has no symbol, and a warning says what differs.

    Raises:
        ValueError: if the arguments do not make a workload, or a plan is unknown or does not fit the model.
        CaptureError: if the step fails under capture.
    """
    _check_plans(plans)
    batches = None if symbolic is None else BatchRange.parse(symbolic)
    if isinstance(model, Workload):
        if inputs is not None or loss is not None or optimizer is not None or autocast is not None:
            raise ValueError("capture(Workload(...)) takes inputs, loss, optimizer and autocast from the workload")
        workload = model
    else:
        workload = Workload(model, inputs, loss=loss, optimizer=optimizer, autocast=autocast)
    if workload.autocast not in _AUTOCAST:
        raise ValueError(f"autocast is torch.float16, torch.bfloat16 or None, not {workload.autocast!r}")
    refuse_what_cannot_be_captured(workload, plans)
    if batches is not None:
        batches.symbol(batch_of(workload))  # raises before anything is started
    try:
        packed = pack(workload)
    except Exception as error:  # (locks, sockets, generators)
        if workload.step is not None or is_distributed(workload.model):
            # A step of the user's own may change whatever it reaches: lists, a scheduler, counters; one with peers
            # would wait for them.
            raise CaptureError(
                f"this step cannot be sent to another process ({type(error).__name__}: {one_message(error)}), and here "
                "it would change what it reaches: name a function that builds the workload, as in "
                "`peakcast capture path/to/file.py:function`"
            ) from error
        traced_on = "cuda" if torch.cuda.is_available() else "cpu"
        if batches is None:
            return _in_process(workload, plans, traced_on, progress)
        return _told(
            capture_at_sizes(lambda made: _in_process(made(), plans, traced_on, progress), lambda: workload, batches)
        )
    spec = capture_packed(
        packed, plans=plans, world_size=world_size, symbolic=symbolic, timeout_sec=timeout_sec, progress=progress
    )
    return _told(spec)


def _told(spec: GraphSpec) -> GraphSpec:
    why = spec.captured_with.get("not_symbolic")
    if why is not None:
        warnings.warn(f"the graph is of one batch only: {why}", stacklevel=3)
    return spec


def _check_plans(plans: Any) -> None:
    if isinstance(plans, str):
        raise ValueError(f"plans is a sequence of names, not one name: plans=[{plans!r}]")  # noqa: TRY004
    if not isinstance(plans, Sequence) or not plans or not all(isinstance(plan, str) for plan in plans):
        raise ValueError(
            f"plans is a sequence of at least one name, not {plans!r}; allowed: {', '.join(ALLOWED_PLANS)}"
        )
    for plan in plans:
        parse_plan(plan)


def _in_process(
    workload: Workload, plans: Sequence[str], traced_on: str, progress: Callable[[str], None] | None
) -> GraphSpec:
    mode = new_fake_mode()
    device = torch.device("cuda", torch.cuda.current_device()) if traced_on == "cuda" else torch.device("cpu")
    try:
        with torch.random.fork_rng(devices=[]), placed(workload, mode, device), mode:
            return record(workload, plans, mode=mode, device=device, traced_on=traced_on, progress=progress)
    except (ValueError, CaptureError):
        raise
    except Exception as error:
        raise CaptureError(f"{type(error).__name__}: {one_message(error)}") from error
