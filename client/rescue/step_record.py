"""Tensors and optimizer state as they were before a step, held so weakly that the step's peak stays what it was."""

from __future__ import annotations

import weakref
from typing import Any

import torch


class TensorRecord:
    """A tensor before a step: a weak reference, its version counter, and its values on the host if `copy`."""

    __slots__ = ("_copy", "_device", "_reference", "_version")

    # A thousand are made for each step of a model of some hundred parameters: nothing here that is not needed.
    def __init__(self, tensor: torch.Tensor, *, copy: bool) -> None:
        self._reference = weakref.ref(tensor)
        self._version = version(tensor)
        self._copy = None
        if copy:
            self._copy = tensor.detach().to("cpu", copy=True)
            self._device = tensor.device

    @property
    def gone(self) -> bool:
        """Say whether nobody holds the tensor any more."""
        return self._reference() is None

    def put_back(self) -> torch.Tensor | None:
        """Return the tensor with the values it had, made again where it is gone; None where it changed without copy."""
        tensor = self._reference()
        if tensor is not None:
            # What torch asks of whoever dereferences a weak reference: its own TensorWeakRef does so.
            tensor._fix_weakref()  # type: ignore[attr-defined]
        if self._copy is None:
            return tensor if tensor is not None and version(tensor) == self._version else None
        if tensor is None:
            return self._copy.to(self._device, copy=True)
        # Whether or not the version counter moved: fused updates leave it alone.
        with torch.no_grad():
            tensor.detach().copy_(self._copy)
        return tensor


class OptimizerRecord:
    """An optimizer's groups and state before a step: entries, tensors by `TensorRecord`, other values themselves."""

    __slots__ = ("_entries", "_groups", "_optimizer")

    def __init__(self, optimizer: torch.optim.Optimizer, *, copy: bool) -> None:
        self._optimizer = optimizer
        self._groups = [dict(group) for group in optimizer.param_groups]
        self._entries: dict[Any, dict[str, Any]] = {
            parameter: {
                key: TensorRecord(value, copy=copy) if isinstance(value, torch.Tensor) else value
                for key, value in entries.items()
            }
            for parameter, entries in optimizer.state.items()
        }

    def counted(self) -> bool:
        """Say whether a step counter moved that is no tensor or was made since: an update counts itself first."""
        for parameter, entries in self._optimizer.state.items():
            before = self._entries.get(parameter, {}).get("step", 0)
            now = entries.get("step", before)
            if isinstance(now, torch.Tensor):
                now = now.max().item()
            # A counter that was a tensor before has a version, which `put_back` looks at.
            if isinstance(before, int | float) and now != before:
                return True
        return False

    def put_back(self) -> list[str]:
        """Put groups and state back, drop entries made since, and return the names of what is lost."""
        lost = []
        for group, before in zip(self._optimizer.param_groups, self._groups, strict=False):
            group.clear()
            group.update(before)
        state = self._optimizer.state
        for parameter in [parameter for parameter in state if parameter not in self._entries]:
            del state[parameter]
        for number, (parameter, before) in enumerate(self._entries.items()):
            entries = {}
            for key, value in before.items():
                if not isinstance(value, TensorRecord):
                    entries[key] = value
                    continue
                tensor = value.put_back()
                entries[key] = state[parameter].get(key) if tensor is None else tensor
                if tensor is None:
                    lost.append(f"the optimizer's {key} of parameter {number}")
            state[parameter].clear()
            state[parameter].update(entries)
        return lost


def updates_show(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether a begun update shows in version counters or step counters.

    So with torch's own optimizers, but for fused SGD, which has no step counter, and L-BFGS, which keeps lists. Others
    may write to `.data`, which no version counter tells.
    """
    if not type(optimizer).__module__.startswith("torch.optim") or isinstance(optimizer, torch.optim.LBFGS):
        return False
    return not (isinstance(optimizer, torch.optim.SGD) and any(group.get("fused") for group in optimizer.param_groups))


def version(tensor: torch.Tensor) -> int:
    """Return the version counter, which every change in place moves; -1 for an inference tensor, which has none."""
    try:
        return tensor._version
    except RuntimeError:
        return -1
