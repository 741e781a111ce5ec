"""Bring a workload onto fake tensors of the traced device: built there, or put there for the time of a capture."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves, tree_map

from peakcast.featurizer.capture.conversions import CudaMeansCpu, modules_of_fake_tensors_convert
from peakcast.featurizer.capture.isolated import CaptureError
from peakcast.featurizer.capture.ship import pack, unpack
from peakcast.featurizer.capture.workload import Workload


def build_on_fake_tensors(factory: Callable[[], Workload], mode: FakeTensorMode, device: torch.device) -> Workload:
    """Call `factory` under fake tensors, so that a model of any size costs no memory; for real where that fails.

    Model code that reads its own tensors while it is built needs real ones. What it built is then made again of
    fake tensors, those that closures and plain attributes hold too.
    """
    try:
        with modules_of_fake_tensors_convert(), mode, device:
            return factory()
    except CaptureError:
        raise
    except Exception as error:  # noqa: BLE001  (whatever it was, the real build raises it again if it is the user's)
        print(f"the build on fake tensors failed, so it is done for real: {error!r}", file=sys.stderr)  # noqa: T201
    # A CPU build has no card, whatever the fake device says.
    with contextlib.nullcontext() if torch._C._has_cuda else CudaMeansCpu():
        built = factory()
    try:
        packed = pack(built)
    except Exception:  # noqa: BLE001  (locks, sockets, generators: `placed` then does what it can)
        return built
    with mode, device:
        return unpack(packed)


# Attributes of a module that are tables of their own here.
_OWN_TABLES = ("_parameters", "_buffers")


@contextlib.contextmanager
def placed(workload: Workload, mode: FakeTensorMode, device: torch.device) -> Iterator[Workload]:
    """Swap every tensor of model, optimizer and inputs for a fake one on `device`, and restore them after the block.

    Ties survive: one tensor becomes one fake tensor. Tensors that are there already are left alone.
    """
    swap = _Swap(mode, device)
    restore: list[Callable[[], None]] = []
    inputs_before = workload.inputs
    try:
        for module in workload.model.modules() if workload.model is not None else ():
            restore += [_swap_dict(held, swap) for held in (module._parameters, module._buffers, vars(module))]
        if workload.optimizer is not None:
            restore.append(_swap_optimizer(workload.optimizer, swap))
        workload.inputs = tree_map(swap, workload.inputs)
        yield workload
    finally:
        workload.inputs = inputs_before
        for undo in reversed(restore):
            undo()


class _Swap:
    def __init__(self, mode: FakeTensorMode, device: torch.device) -> None:
        self._mode, self._device = mode, device
        self._made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # keeps the original: its id must stay taken

    def __call__(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if self._is_there(value):
            return value
        if id(value) not in self._made:
            self._made[id(value)] = (value, self._fake(value))
        return self._made[id(value)][1]

    def _is_there(self, value: torch.Tensor) -> bool:
        """Tell whether a tensor is a fake one on the device, or a wrapper (DTensor) around fake ones.

        A wrapper knows its place: shards are offloaded to the CPU on purpose.
        """
        if is_traceable_wrapper_subclass(value) and not isinstance(value, FakeTensor):
            parts = [getattr(value, name) for name in value.__tensor_flatten__()[0]]  # a DTensor's mesh is one too
            return all(isinstance(part, FakeTensor) for part in parts if isinstance(part, torch.Tensor))
        return isinstance(value, FakeTensor) and value.device == self._device

    def _fake(self, value: torch.Tensor) -> torch.Tensor:
        with self._mode:
            fake = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=self._device)
            if isinstance(value, nn.Parameter):
                return nn.Parameter(fake, requires_grad=value.requires_grad)
            return fake.requires_grad_(value.requires_grad)


def _swap_dict(holder: dict[str, Any], swap: _Swap) -> Callable[[], None]:
    """Swap the tensors among the values, and in lists, tuples and dicts there. Other values are left alone."""
    before = dict(holder)
    for name, value in before.items():
        if name not in _OWN_TABLES and _holds(value, torch.Tensor):
            holder[name] = tree_map(swap, value)

    def undo() -> None:
        # What the step itself put there since, a cache of position indices or a counter, is of no use outside.
        for name in [*holder.keys() - before.keys()]:
            del holder[name]
        holder.update(before)

    return undo


def _holds(value: Any, kind: type) -> bool:
    return any(isinstance(leaf, kind) for leaf in tree_leaves(value))


def _swap_optimizer(optimizer: torch.optim.Optimizer, swap: _Swap) -> Callable[[], None]:
    groups_before = [dict(group) for group in optimizer.param_groups]
    state_before = dict(optimizer.state)
    for group in optimizer.param_groups:
        # A learning rate may be a tensor, and a scheduler writes to it: the step works on a copy.
        group.update({name: _own(value, swap) for name, value in group.items() if name != "params"})
        group["params"] = [swap(parameter) for parameter in group["params"]]
    optimizer.state.clear()
    for parameter, state in state_before.items():
        optimizer.state[swap(parameter)] = {name: _own(value, swap) for name, value in state.items()}

    def undo() -> None:
        for group, before in zip(optimizer.param_groups, groups_before, strict=True):
            group.clear()
            group.update(before)
        optimizer.state.clear()
        optimizer.state.update(state_before)

    return undo


def _own(value: Any, swap: _Swap) -> Any:
    """Swap a tensor; a scalar on the CPU ("step") is copied and stays real: optimizers read it, and count on in it."""
    is_counter = isinstance(value, torch.Tensor) and not value.dim() and value.device.type == "cpu"
    if is_counter and not isinstance(value, FakeTensor):
        return value.detach().clone()
    return value if is_counter else swap(value)
