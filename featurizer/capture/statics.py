"""What is alive before a step begins, in the order a training script allocates it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves

from peakcast.featurizer.capture.tape import Tape
from peakcast.featurizer.capture.workload import Workload
from peakcast.featurizer.vocabulary import BUFFER, GRADIENT, INPUT, OPTIMIZER_STATE, PARAMETER


def hold_statics(tape: Tape, workload: Workload, others: list[Any]) -> None:
    """Note parameters, buffers, inputs, whatever else the workload holds, old gradients and optimizer state."""
    model = workload.model
    if model is not None:
        tape.hold(model.parameters(), PARAMETER)
        tape.hold(model.buffers(), BUFFER)
    for group in workload.optimizer.param_groups if workload.optimizer is not None else ():
        tape.hold(group["params"], PARAMETER)
    tape.hold(tree_leaves(workload.inputs), INPUT)
    tape.hold((other() for other in others), BUFFER)
    tape.hold(gradients(workload), GRADIENT)
    if workload.optimizer is not None:
        tape.hold(tree_leaves(list(workload.optimizer.state.values())), OPTIMIZER_STATE)


def gradients(workload: Workload) -> Iterator[torch.Tensor]:
    """Yield the gradients that are there now."""
    for parameter in _parameters(workload):
        if parameter.grad is not None:
            yield parameter.grad


def _parameters(workload: Workload) -> Iterator[torch.Tensor]:
    if workload.model is not None:
        yield from workload.model.parameters()
    for group in workload.optimizer.param_groups if workload.optimizer is not None else ():
        yield from group["params"]


def other_fake_tensors(mode: FakeTensorMode) -> list[Any]:
    """Return weak references to the live fake tensors of `mode`: what closures hold (a teacher, an old loss).

    Call it before anything is compiled: later, compilers keep fake tensors of their own.
    """
    gc.collect()
    return [weakref.ref(found) for found in gc.get_objects() if type(found) is FakeTensor and found.fake_mode is mode]
