"""Watch recompiles while a training runs: how often, why, for how long, and which bytes stay alive after them."""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import statistics
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

import torch
import torch._dynamo.config as dynamo_config
from torch._dynamo.callback import CallbackTrigger, callback_handler

from peakcast.client.recompiles.compile_log import Compile, CompileLog, Frame
from peakcast.client.recompiles.graph_captures import CaptureCap, capped_captures
from peakcast.client.recompiles.live_bytes import allocated_bytes
from peakcast.client.recompiles.report import AfterCompile, FrameReport, RecompileReport
from peakcast.client.recompiles.slope import LEAST_SAMPLES, Slope, SlopeWatch

_log = logging.getLogger(__name__)

# The first recompile often turns a size into a symbol and adds nothing alike after it.
_LEAST_RECOMPILES: Final = 3


class RecompileWatch:
    """Watch compiles while a block runs; call `step()` at the end of each training step.

    Args:
        live_bytes: tells the bytes alive at the end of a step; default: the CUDA allocator's, nothing without CUDA.
        recompile_limit: graphs of one frame after which Dynamo goes on eager, while the block runs; None: as it is.
        capture_limit: sizes of which CUDA graphs are captured, while the block runs; None: all.
        collect: collect garbage after compiles, for a tenth of the time at most, and at the end of steps that compiled:
            compiling leaves cycles, which hold tensors until then.
        on_compile: told of each compile, and of a frame that reached the limit, by the end of the step.

    Raises:
        ValueError: for a limit out of its range.
    """

    def __init__(
        self,
        *,
        live_bytes: Callable[[], int] | None = None,
        recompile_limit: int | None = None,
        capture_limit: int | None = None,
        collect: bool = True,
        on_compile: Callable[[Compile], None] | None = None,
    ) -> None:
        for name, limit, least in (("recompile_limit", recompile_limit, 1), ("capture_limit", capture_limit, 0)):
            if limit is not None and limit < least:
                raise ValueError(f"{name} must be {least} or more, got {limit}")
        self._live_bytes = live_bytes or (allocated_bytes if torch.cuda.is_available() else None)
        self._limits = (recompile_limit, capture_limit)
        self._recompile_limit: int = dynamo_config.recompile_limit if recompile_limit is None else recompile_limit
        self._collect = collect
        self._on_compile = on_compile
        self._undo = contextlib.ExitStack()
        self._cap: CaptureCap | None = None
        self._log = CompileLog()
        self._frames: dict[Frame, FrameReport] = {}
        self._after: list[AfterCompile] = []
        self._slope = SlopeWatch()
        self._steps = self._captures = 0
        self._next_collection_s = 0.0
        self._compiled = False  # since the last step

    def __enter__(self) -> Self:
        recompile_limit, capture_limit = self._limits
        if recompile_limit is not None:
            self._undo.enter_context(dynamo_config.patch(recompile_limit=recompile_limit))
        if capture_limit is not None:
            self._cap = self._undo.enter_context(capped_captures(capture_limit))
        self._log = CompileLog()
        self._listen()
        self._undo.callback(self._deafen)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._read(self._steps + 1)
        self._undo.close()

    def step(self) -> None:
        """Take in that a training step has ended."""
        self._steps += 1
        # `torch.compiler.reset()` drops every callback.
        self._listen()
        self._read(self._steps)
        compiled, self._compiled = self._compiled, False
        if self._live_bytes is None:
            return
        if compiled and self._collect:
            gc.collect()
        live_bytes = self._live_bytes()
        self._slope.add(self._steps, live_bytes)
        if compiled:
            recompiles = sum(each.recompiles for each in self._frames.values())
            self._after.append(AfterCompile(self._steps, recompiles, live_bytes))

    def report(self) -> RecompileReport:
        """Return what was seen until now."""
        self._read(self._steps + 1)
        return RecompileReport(
            steps=self._steps,
            frames=list(self._frames.values()),
            after_compiles=list(self._after),
            bytes_per_recompile=self._bytes_per_recompile(),
            slope=self._sure_slope(),
            captures=self._captures,
            captures_refused=self._cap.refused if self._cap is not None else 0,
            recompile_limit=self._recompile_limit,
        )

    def _read(self, step: int) -> None:
        """Take in the compiles since the last read, which happened in `step`."""
        for compiled in self._log.new():
            self._compiled = True
            report = self._frames.setdefault(compiled.frame, FrameReport(compiled.frame))
            if compiled.gave_up and report.eager_since is None:
                limit = self._recompile_limit
                _log.warning("%s runs eager from here on: it was compiled %d times", compiled.frame, limit)
            report.add(compiled, step)
            if self._on_compile is not None:
                self._on_compile(compiled)

    def _bytes_per_recompile(self) -> int | None:
        """Return what a recompile leaves behind: the median rise, 0 where it does not always rise."""
        again = [each for each in self._after if each.recompiles > 0]
        rises = [
            (later.live_bytes - earlier.live_bytes) / (later.recompiles - earlier.recompiles)
            for earlier, later in itertools.pairwise(again)
            if later.recompiles > earlier.recompiles
        ]
        if len(rises) < _LEAST_RECOMPILES:
            return None
        return int(statistics.median(rises)) if min(rises) > 0 else 0

    def _sure_slope(self) -> Slope | None:
        """Return the slope; where it leaks, after making sure that it is no garbage that waits for its collection."""
        found = self._slope.slope()
        if self._live_bytes is None or found.samples < LEAST_SAMPLES:
            return None
        if not found.leaks:
            return found
        gc.collect()
        first_step, first_bytes = self._slope.first
        kept_bytes = self._live_bytes() - first_bytes
        grown_bytes = found.sure_bytes_per_step * (self._steps - first_step)
        # Half: the collection may free some of a leak's garbage with it.
        return found if kept_bytes >= grown_bytes / 2 else Slope(0.0, 0.0, found.samples)

    def _listen(self) -> None:
        if self._started not in callback_handler.start_callbacks:
            callback_handler.register_start_callback(self._started)
        if self._ended not in callback_handler.end_callbacks:
            callback_handler.register_end_callback(self._ended)

    def _deafen(self) -> None:
        if self._started in callback_handler.start_callbacks:
            callback_handler.remove_start_callback(self._started)
        if self._ended in callback_handler.end_callbacks:
            callback_handler.remove_end_callback(self._ended)

    def _started(self, told: Any) -> None:
        # Read on before Dynamo's own list of 64 entries runs over.
        self._read(self._steps + 1)
        self._captures += told.callback_trigger is CallbackTrigger.CUDAGRAPH_RECORDING

    def _ended(self, told: Any) -> None:
        if not self._collect or told.callback_trigger is CallbackTrigger.CUDAGRAPH_RECORDING:
            return
        began_s = time.perf_counter()
        # A hundred small graphs one after another: a tenth of the time is enough for collecting.
        if began_s >= self._next_collection_s:
            gc.collect()
            ended_s = time.perf_counter()
            self._next_collection_s = ended_s + 9 * (ended_s - began_s)
