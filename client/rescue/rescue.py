"""Rescue a training step that ran out of memory: free what it held, fall back, and run it once more.

The step is run again only where that is the same step: random generators, gradients, buffers and optimizer state are
put back first, and memory must have come back to where it was. Otherwise the error says to restore a checkpoint.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import torch
from torch import nn

from peakcast.client.rescue.out_of_memory import collect, is_host_out_of_memory, is_out_of_memory, let_go
from peakcast.client.rescue.step_state import Keep, StepRecorder, StepStart

T = TypeVar("T")
_log = logging.getLogger(__name__)

# What libraries keep of a first step even after `collect` (handles, constants of compiled graphs). What a lost step
# keeps alive is its activations: gigabytes.
SLACK_BYTES: Final = 32 << 20


class MemoryNotReturnedError(RuntimeError):
    """After an out-of-memory error the memory did not come back: restore from the last checkpoint."""


class StepNotRepeatableError(RuntimeError):
    """The step that ran out of memory had changed what cannot be put back: restore from the last checkpoint."""


class NothingSmallerError(torch.OutOfMemoryError):
    """Out of memory, and there is no plan to fall back to that may need less."""


@dataclass(frozen=True, slots=True)
class _Finished(Generic[T]):
    value: T


@dataclass(frozen=True, slots=True)
class _RanOut:
    message: str
    where: str


class Rescue:
    """Run steps, and rescue those that run out of memory.

    Args:
        on_out_of_memory: falls back to a plan that needs less, and returns whether there was one. Called outside the
            `except` block, with the memory back.
        model: its gradients and buffers are put back before the step runs again, and its parameters must be unchanged.
        optimizer: its state and parameters likewise.
        keep: "references", or "host" to undo even a half-done optimizer update: see `StepRecorder`.
        live_bytes: tells the bytes alive; default: allocated on the model's CUDA devices, 0 without CUDA.
        slack_bytes: so many more than before the step may stay alive.
        reruns: how often one step is run again, 1 or more; each time falls back once more.

    Raises:
        ValueError: for a value out of its range.
    """

    def __init__(
        self,
        on_out_of_memory: Callable[[], bool],
        *,
        model: nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        keep: Keep = "references",
        live_bytes: Callable[[], int] | None = None,
        slack_bytes: int = SLACK_BYTES,
        reruns: int = 1,
    ) -> None:
        if reruns < 1:
            raise ValueError(f"reruns must be 1 or more, got {reruns}")
        if slack_bytes < 0:
            raise ValueError(f"slack_bytes must be 0 or more, got {slack_bytes}")
        self.rescues = 0
        self._on_out_of_memory = on_out_of_memory
        self._recorder = StepRecorder(model, optimizer, keep=keep)
        self._live_bytes = live_bytes or self._allocated_bytes
        self._slack_bytes = slack_bytes
        self._reruns = reruns
        self._remembered: set[Hashable] = set()

    def run(self, step: Callable[[], T], *, signature: Hashable = None) -> T:
        """Run a step and return what it returns; after an out-of-memory error fall back and run it again.

        Args:
            step: one whole step. It gets its batch from outside: what it draws from an iterator is drawn again.
            signature: names the graph, for `remembers`; the warning comes once for each.

        Raises:
            MemoryNotReturnedError: if the memory did not come back.
            StepNotRepeatableError: if the step had changed what cannot be put back, or other ranks take part in it.
            NothingSmallerError: if there is nothing to fall back to. It is a `torch.OutOfMemoryError`.
            Exception: whatever else the step raises, untouched; so an out-of-memory error of its last run.
        """
        for _ in range(self._reruns):
            start = self._recorder.record(step)
            baseline_bytes = self._live_bytes()
            ended = _attempt(step)
            if isinstance(ended, _Finished):
                return ended.value
            self._recover(ended, start, baseline_bytes, signature)
        return step()

    def remembers(self, signature: Hashable) -> bool:
        """Say whether a step of this signature has run out of memory before."""
        return signature in self._remembered

    def close(self) -> None:
        """Leave the optimizer as it was."""
        self._recorder.close()

    def _recover(self, ran_out: _RanOut, start: StepStart, baseline_bytes: int, signature: Hashable) -> None:
        """Make everything as it was before the step, and fall back. Runs outside any `except` block."""
        first = signature not in self._remembered
        self._remembered.add(signature)
        lost = start.put_back()
        self._check_returned(ran_out, baseline_bytes)
        if _other_ranks():
            raise _explained(
                StepNotRepeatableError(
                    "this rank ran out of memory, and the others wait for it in the middle of the step: restore all "
                    f"ranks from the last checkpoint, under a plan that needs less ({ran_out.message})"
                ),
                ran_out,
            )
        if not self._on_out_of_memory():
            raise _explained(NothingSmallerError(f"no other plan is left: {ran_out.message}"), ran_out)
        if lost:
            more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
            raise _explained(
                StepNotRepeatableError(
                    f"the step that ran out of memory had already changed {', '.join(lost[:3])}{more}: restore from "
                    f"the last checkpoint (keep='host' would have undone it; {ran_out.message})"
                ),
                ran_out,
            )
        self.rescues += 1
        if first:
            _log.warning("a step ran out of memory (%s): it is run again under another plan", ran_out.message)
        # Last: compiling under the new plan may have drawn.
        start.rng.put_back()

    def _check_returned(self, ran_out: _RanOut, baseline_bytes: int) -> None:
        collect()
        if self._live_bytes() <= baseline_bytes + self._slack_bytes:
            return
        # Compiled code may hold what it was called with; the plan that comes now compiles anew anyway.
        torch.compiler.reset()
        collect()
        held_bytes = self._live_bytes() - baseline_bytes
        if held_bytes > self._slack_bytes:
            raise _explained(
                MemoryNotReturnedError(
                    f"after the step ran out of memory, {held_bytes:,} bytes more than before it stay alive: restore "
                    f"from the last checkpoint, in a new process ({ran_out.message})"
                ),
                ran_out,
            )

    def _allocated_bytes(self) -> int:
        if not torch.cuda.is_initialized():
            return 0
        model = self._recorder.model
        used = {parameter.device for parameter in model.parameters()} if model is not None else set()
        devices = [device for device in used if device.type == "cuda"] or [torch.device("cuda")]
        return sum(torch.cuda.memory_allocated(device) for device in devices)


def _attempt(step: Callable[[], T]) -> _Finished[T] | _RanOut:
    """Run the step; of an out-of-memory error only its text is kept, since its traceback holds the step's tensors."""
    try:
        return _Finished(step())
    except Exception as error:
        if not (is_out_of_memory(error) or is_host_out_of_memory(error)):
            raise
        text = str(error).strip().partition("\n")[0][:300]
        ran_out = _RanOut(f"{type(error).__name__}: {text}", "".join(traceback.format_exception(error)))
        let_go(error)
    return ran_out


def _explained(error: Exception, ran_out: _RanOut) -> Exception:
    """Attach where the memory ran out; the error itself is gone, with the tensors that it held."""
    error.add_note(f"The step ran out of memory here:\n{ran_out.where}")
    return error


def _other_ranks() -> bool:
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
