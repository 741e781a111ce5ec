"""Send a live workload to a process of our own: its code and its tensors' shapes, never their contents."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import cloudpickle
import torch
from torch import nn

from peakcast.featurizer.capture.product_padding import rounds_to_tf32
from peakcast.featurizer.capture.ship_distributed import optimizers_follow, taken_apart
from peakcast.featurizer.capture.workload import Workload


class _Skeleton(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles tensors as shapes. One tensor that many hold stays one tensor: pickle remembers identities."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor):
            is_parameter = isinstance(obj, nn.Parameter)
            on_cpu_scalar = obj.device.type == "cpu" and obj.dim() == 0  # an optimizer's step counter
            value = obj.item() if on_cpu_scalar and not is_parameter else None
            return _rebuild, (is_parameter, tuple(obj.size()), obj.stride(), obj.dtype, obj.requires_grad, value)
        apart = taken_apart(obj) if isinstance(obj, nn.Module) else None
        return apart or super().reducer_override(obj)


def _rebuild(
    is_parameter: bool,  # noqa: FBT001  (called by pickle)
    size: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    requires_grad: bool,  # noqa: FBT001
    value: Any,
) -> torch.Tensor:
    if value is not None:
        with torch._subclasses.fake_tensor.unset_fake_temporarily():
            return torch.full((), value, dtype=dtype, device="cpu")
    made = torch.empty_strided(size, stride, dtype=dtype)  # on the default device, fake: the receiver sets both
    return nn.Parameter(made, requires_grad=requires_grad) if is_parameter else made.requires_grad_(requires_grad)


class _Bounded(io.BytesIO):
    """Ends a pickle that grows past a limit: a closure may hold a whole dataset, which is no shape."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__()
        self._most_bytes = most_bytes

    def write(self, data: Any, /) -> int:
        if self.tell() + memoryview(data).nbytes > self._most_bytes:
            raise OverflowError(f"the workload takes more than {self._most_bytes:,} bytes without its tensors")
        return super().write(data)


def pack(workload: Workload, *, most_bytes: int | None = None) -> bytes:
    """Serialize a workload for `unpack` in a child process of this one.

    Raises:
        OverflowError: if it takes more than `most_bytes`.
        Exception: whatever pickling the user's objects raises.
    """
    buffer = io.BytesIO() if most_bytes is None else _Bounded(most_bytes)
    _Skeleton(buffer).dump((rounds_to_tf32(), workload))
    return buffer.getvalue()


def unpack(data: bytes, main: ModuleType | None = None) -> Workload:
    """Rebuild a workload in the current fake mode. Only for data that a parent process packed itself.

    Args:
        main: takes the globals of functions that were defined in the parent's `__main__`. Dynamo looks globals up in
            the module that a function names; cloudpickle gives such functions a bare dict.
    """
    workload: Workload
    with _globals_in(main) if main is not None else contextlib.nullcontext(), optimizers_follow() as follow:
        is_tf32, workload = cloudpickle.loads(data)
        follow(workload.optimizer)
    if is_tf32 != rounds_to_tf32():  # decides which products are padded
        torch.set_float32_matmul_precision("high" if is_tf32 else "highest")
    return workload


@contextlib.contextmanager
def _globals_in(main: ModuleType) -> Iterator[None]:
    original = cloudpickle.cloudpickle._make_function

    def make_function(code: Any, globals_: dict[str, Any], *rest: Any) -> Any:
        if globals_.get("__name__") == "__main__":
            vars(main).update(globals_)
            globals_ = vars(main)
        return original(code, globals_, *rest)

    cloudpickle.cloudpickle._make_function = make_function
    try:
        yield
    finally:
        cloudpickle.cloudpickle._make_function = original
