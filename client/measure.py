"""Measure one workload under one plan on the GPU of this process: peaks, durations, and the limit it needs."""

from __future__ import annotations

import contextlib
import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal
from unittest import mock

import torch
from filelock import FileLock  # torch's own requirement
from torch import nn

from peakcast.client.required import smallest_limit_bytes
from peakcast.client.rescue.out_of_memory import is_out_of_memory
from peakcast.featurizer.capture.plans import install
from peakcast.featurizer.capture.workload import Workload

STEADY_STEPS: Final = 3
# Further steps, timed one by one for a duration that can be compared: enough for a median.
_TIMED_STEPS: Final = 5
# A step that needs this long is not repeated a dozen times to find the limit under which it runs.
_SLOWEST_STEP_TO_REPEAT_S: Final = 1.0
_TURN_POLL_S: Final = 0.005


class NoGpuError(RuntimeError):
    """Say that peaks can only be measured on a CUDA device."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What one measurement found. Peaks are the caching allocator's, of this process, without the CUDA context.

    `measured` maps names ending in `_bytes` to numbers: the quantities, and what else was read at the same time. After
    an out-of-memory error it holds what was reached until then. `cache` is "cold" where inductor started without any.
    `step_seconds` is the median of single steps. Those, and what inductor times while it compiles, take turns with
    whatever else is being measured on this card.
    """

    measured: dict[str, int]
    out_of_memory: bool
    cache: Literal["cold", "warm"]
    compile_seconds: float
    first_step_seconds: float
    step_seconds: float
    alloc_retries: int
    message: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Give the fields as JSON values."""
        return {
            "measured": self.measured,
            "out_of_memory": self.out_of_memory,
            "cache": self.cache,
            "compile_seconds": round(self.compile_seconds, 3),
            "first_step_seconds": round(self.first_step_seconds, 4),
            "step_seconds": round(self.step_seconds, 5),
            "alloc_retries": self.alloc_retries,
            "message": self.message,
        }


def measure(
    factory: Callable[[], Workload], plan: str = "eager", *, bisect: bool = False, cold: bool = True
) -> Measured:
    """Build the workload, run four steps under the plan, and read the allocator.

    Args:
        factory: builds the workload; called once, with "cuda" as default device.
        plan: how the step is run, e.g. `eager` or `inductor:budget=0.5`.
        bisect: find `required_bytes` too, the smallest limit under which further steps run (precision 0.5 %).
        cold: give inductor a fresh cache, so that the first step compiles everything; without, it is marked warm.

    Raises:
        NoGpuError: without a CUDA device.
        Exception: whatever the workload raises, apart from running out of memory, which is a result.
    """
    if not torch.cuda.is_available():
        raise NoGpuError("peaks are measured on a GPU, and torch sees no CUDA device here")
    torch.set_float32_matmul_precision("high")
    torch._dynamo.reset()
    clean()
    retries_before = _retries()
    probe = _Probe(before_bytes=torch.cuda.memory_allocated())
    with contextlib.ExitStack() as stack:
        if not plan.startswith("eager"):
            stack.enter_context(trials_in_turn())
            if cold:
                stack.enter_context(_fresh_cache())
        try:
            probe.run(factory, plan, bisect=bisect)
        except Exception as error:
            # Only what leaves this block may be freed: the traceback holds the step's frames and their tensors.
            if not is_out_of_memory(error):
                raise
            probe.message = _first_line(error)
    del stack
    found = probe.result(retries_before, cold=cold)
    torch._dynamo.reset()
    clean()
    return found


def settle(model: nn.Module) -> nn.Module:
    """Lay a model out on the GPU as `model.to("cuda")` does from a CPU model, wherever it was built.

    Initialising on the GPU is fast but leaves its temporaries' holes between the parameters, which count as reserved.
    """
    model.cpu()
    clean()
    return model.to("cuda")


@contextlib.contextmanager
def in_turn() -> Iterator[None]:
    """Hold the turn to run on this card, among the processes of this machine that measure side by side.

    They still build, and take a first step, meanwhile, which takes the card for moments: hence medians. A turn within a
    turn is the same one, in another thread of the process too: threads do not wait for each other.
    """
    # By its own name: processes that see one card each all call it 0.
    card = torch.cuda.get_device_properties().uuid if torch.cuda.is_available() else "cpu"
    # The system gives the lock back when a process dies. Of the process, not of a thread: autograd's compile too.
    lock = FileLock(Path(tempfile.gettempdir(), f"peakcast-card-{card}.turn"), is_singleton=True, thread_local=False)
    with lock.acquire(poll_interval=_TURN_POLL_S):
        yield


def _turn_of_one_process() -> contextlib.AbstractContextManager[None]:
    """Give the turn, but to no rank: ranks of two jobs could hold one each and wait for the other's."""
    return contextlib.nullcontext() if torch.distributed.is_initialized() else in_turn()


@contextlib.contextmanager
def trials_in_turn() -> Iterator[None]:
    """Let inductor time what it chooses between while nothing else runs steps on the card, for the time of the block.

    Which products it pads, and which kernels it takes, would else depend on what is measured beside it.
    """
    from torch._inductor.runtime.benchmarking import benchmarker

    by_itself = benchmarker.benchmark_gpu

    def benchmark_gpu(*args: Any, **kwargs: Any) -> Any:
        with _turn_of_one_process():
            return by_itself(*args, **kwargs)

    with mock.patch.object(benchmarker, "benchmark_gpu", benchmark_gpu):
        yield


def clean() -> None:
    """Bring the allocator to a known state: garbage collected, workspaces and cached blocks given back, peaks reset."""
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


class _Probe:
    """One measurement in progress, so that what was read survives the error that ends it."""

    def __init__(self, before_bytes: int) -> None:
        self.measured: dict[str, int] = {"base_bytes": before_bytes}
        self.message = ""
        self.first_s = self.step_s = 0.0
        self.retries = 0
        self.finished = False

    def run(self, factory: Callable[[], Workload], plan: str, *, bisect: bool) -> None:
        torch.manual_seed(0)
        with torch.device("cuda"):
            workload = factory()
        self._read_static(workload)
        clean()
        undo = install(workload.model, plan) if workload.model is not None else (lambda: None)
        try:
            self.first_s = self._timed(workload, 1)
            self._read_peaks("first")
            torch.cuda.reset_peak_memory_stats()
            self.step_s = self._timed_in_turn(workload, STEADY_STEPS) / STEADY_STEPS
            self._read_peaks("steady")
            self.measured["after_step_allocated_bytes"] = torch.cuda.memory_allocated()
            self._read_pinned()
            self.retries = _retries()
            self.finished = True
            if self.step_s < _SLOWEST_STEP_TO_REPEAT_S:
                with _turn_of_one_process():
                    self.step_s = statistics.median(self._timed(workload, 1) for _ in range(_TIMED_STEPS))
                if bisect:
                    self._read_required(workload)
        finally:
            undo()

    def _read_static(self, workload: Workload) -> None:
        torch.cuda.synchronize()
        self.measured["static_bytes"] = torch.cuda.memory_allocated() - self.measured["base_bytes"]
        if workload.model is not None:
            self.measured["parameter_bytes"] = sum(p.numel() * p.element_size() for p in workload.model.parameters())
            self.measured["buffer_bytes"] = sum(b.numel() * b.element_size() for b in workload.model.buffers())

    def _timed(self, workload: Workload, steps: int) -> float:
        start = time.perf_counter()
        for _ in range(steps):
            workload.run()
        torch.cuda.synchronize()
        return time.perf_counter() - start

    def _timed_in_turn(self, workload: Workload, steps: int) -> float:
        with _turn_of_one_process():
            return self._timed(workload, steps)

    def _read_peaks(self, name: str) -> None:
        self.measured[f"{name}_allocated_bytes"] = torch.cuda.max_memory_allocated()
        self.measured[f"{name}_reserved_bytes"] = torch.cuda.max_memory_reserved()

    def _read_pinned(self) -> None:
        read = getattr(torch.cuda, "host_memory_stats", None)
        if read is not None:
            pinned = read().get("allocated_bytes.peak")
            if pinned is not None:
                self.measured["pinned_bytes"] = int(pinned)

    def _read_required(self, workload: Workload) -> None:
        found = smallest_limit_bytes(
            lambda: self._timed_in_turn(workload, STEADY_STEPS),
            fresh=lambda: forget_training(workload),
            low_bytes=max(self.measured["steady_allocated_bytes"], 1),
            high_bytes=max(self.measured["steady_reserved_bytes"], self.measured["first_reserved_bytes"]),
        )
        if found is not None:
            self.measured["required_bytes"] = found

    def result(self, retries_before: int, *, cold: bool) -> Measured:
        if not self.finished:
            self._read_peaks("reached")
        return Measured(
            measured=self.measured,
            out_of_memory=not self.finished,
            cache="cold" if cold else "warm",
            compile_seconds=max(0.0, self.first_s - self.step_s) if self.finished else 0.0,
            first_step_seconds=self.first_s,
            step_seconds=self.step_s,
            # Read before a bisection, whose failing probes retry by design.
            alloc_retries=(self.retries if self.finished else _retries()) - retries_before,
            message=self.message,
        )


def forget_training(workload: Workload) -> None:
    """Drop gradients and optimizer state, so that the next step is a first one again, and clean the allocator."""
    if workload.optimizer is not None:
        workload.optimizer.zero_grad(set_to_none=True)
        workload.optimizer.state.clear()
    clean()


@contextlib.contextmanager
def _fresh_cache() -> Iterator[None]:
    """Give inductor, and its memory of earlier compiles in this process, a fresh start for the time of the block."""
    from torch._inductor import utils

    # The longer name is that of older versions. Both clear the caches in memory and use a folder of their own.
    fresh = getattr(utils, "fresh_cache", None) or utils.fresh_inductor_cache
    with tempfile.TemporaryDirectory(prefix="peakcast-", ignore_cleanup_errors=True) as folder, fresh(dir=folder):
        yield


def _retries() -> int:
    return int(torch.cuda.memory_stats().get("num_alloc_retries", 0))


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:300] if str(error).strip() else ''}"
