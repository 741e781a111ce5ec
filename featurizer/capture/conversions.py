"""`.cuda()`, `.half()`, `.pin_memory()` in code that builds a model, where there is no card to put it on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

_CPU = torch.device("cpu")


@contextlib.contextmanager
def modules_of_fake_tensors_convert() -> Iterator[None]:
    """Let `module.to(...)` work on fake parameters, each of which stays the same object: ties and optimizers hold it.

    torch swaps a fake parameter with the converted one, and refuses where something refers to either weakly, which
    fake tensors' own tables do. A real parameter is given other data instead, and so are fake ones here.
    """
    original: Callable[..., nn.Module] = nn.Module._apply

    def apply(self: nn.Module, fn: Callable[[Any], Any], recurse: bool = True) -> nn.Module:  # noqa: FBT001, FBT002
        if recurse:
            for module in self.children():
                module._apply(fn)
        if not all(isinstance(held, FakeTensor) for held in self._parameters.values() if held is not None):
            return original(self, fn, recurse=False)
        for parameter in self._parameters.values():
            if parameter is None:
                continue
            _take_data(parameter, fn)
            if parameter.grad is not None:
                _take_data(parameter.grad, fn)
        for name, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[name] = fn(buffer)
        return self

    nn.Module._apply = apply  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module._apply = original  # type: ignore[method-assign]


def _take_data(held: Any, fn: Callable[[Any], Any]) -> None:
    with torch.no_grad():
        converted = fn(held)
    if converted is held:
        return
    held.data = converted
    held.fake_device = converted.fake_device


def let_fake_tensors_be_pinned() -> None:
    """Answer `pin_memory()` by another tensor on the host, for good: torch has no answer for a fake one."""
    fake_impls.op_implementations_dict[torch.ops.aten._pin_memory.default] = _pinned


def _pinned(mode: Any, func: Any, tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
    with mode:
        return torch.empty_like(tensor)


class CudaMeansCpu(TorchFunctionMode):
    """Keeps real tensors on the CPU where code sends them to a card that is not there."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func` with the CPU in place of CUDA."""
        kwargs = {name: _on_cpu(value) if name == "device" else value for name, value in (kwargs or {}).items()}
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.to:
            args = (args[0], *map(_on_cpu, args[1:]))
        return func(*args, **kwargs)


def _on_cpu(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return _CPU  # an index is a card's
    is_cuda = isinstance(value, str | torch.device) and torch.device(value).type == "cuda"
    return _CPU if is_cuda else value
