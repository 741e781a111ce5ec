"""A process group of any size with nobody else in it, so that one process can capture rank 0 of a distributed step.

Collectives return at once and move nothing; what a rank allocates for them, it allocates. Everything here changes
module state for good, so it runs in a process of its own (see `worker.py`).
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo import convert_frame
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed import device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import _disable_current_modes

from peakcast.featurizer.capture.isolated import CaptureError

# DDP broadcasts module buffers in flat chunks of at most this size (its own default, `broadcast_bucket_size`).
_BROADCAST_BYTES = 250 * 1024 * 1024


def is_distributed(model: nn.Module | None) -> bool:
    """Tell whether a model is wrapped in DDP or FSDP, or holds distributed tensors."""
    if model is None:
        return False
    wrapped = any(isinstance(module, DistributedDataParallel | FSDPModule) for module in model.modules())
    return wrapped or any(isinstance(parameter, DTensor) for parameter in model.parameters())


def join(world_size: int) -> None:
    """Be rank 0 of `world_size` processes. Scripts may then call `init_process_group` themselves: it is done already.

    Raises:
        ValueError: if `world_size` is below 1.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the backend "fake"

    if world_size < 1:
        raise ValueError(f"world_size must be at least 1, got {world_size}")
    os.environ.update({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": "1"})
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    dist.init_process_group = lambda *_, **__: None
    dist.barrier = lambda *_, **__: None
    _build_meshes_for_real()
    _reduce_without_peers()
    _split_graphs_outside_of_modes()


def refuse_to_join() -> None:
    """Answer a workload that starts a process group of its own with what to do, instead of waiting for peers."""

    def refused(*_: Any, **__: Any) -> None:
        raise CaptureError(
            "the workload calls torch.distributed.init_process_group: say how many ranks there are "
            "(--world-size N, or world_size=N), and rank 0 is captured"
        )

    dist.init_process_group = refused


def _build_meshes_for_real() -> None:
    """Build device meshes outside of the fake mode: a mesh holds the ranks as a tensor and reads it."""
    build = device_mesh.init_device_mesh
    for module in list(sys.modules.values()):
        # Some took the function by name.
        if module.__name__.startswith("torch.distributed") and vars(module).get("init_device_mesh") is build:
            module.init_device_mesh = _for_real(build)  # type: ignore[attr-defined]
    device_mesh.DeviceMesh.__init__ = _for_real(device_mesh.DeviceMesh.__init__)  # type: ignore[method-assign]


def _for_real(build: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(build)
    def built(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily(), torch.device("cpu"):
            return build(*args, **kwargs)

    return built


def _reduce_without_peers() -> None:
    """Let DDP's own reducer fill its buckets, without what needs data or other ranks: sync, timers, bucket order."""
    build = DistributedDataParallel.__init__

    @functools.wraps(build)
    def built(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        build(self, module, *args, **{**kwargs, "init_sync": False})
        DistributedDataParallel.register_comm_hook(self, None, lambda _, bucket: _reduced_at_once(bucket))
        self.register_comm_hook = _no_hooks
        self.reducer = _Reducer(self.reducer)
        self.logger = _Silent()

    DistributedDataParallel.__init__ = built  # type: ignore[method-assign]
    DistributedDataParallel._distributed_broadcast_coalesced = _broadcast_flat  # type: ignore[method-assign]


def _split_graphs_outside_of_modes() -> None:
    """Let Dynamo trace what it splits by buckets without the fake mode around it, as it does everything else.

    Where it splits it leaves modes on, which nobody has on a card; results of an earlier graph then stay in ours.
    """
    frames: Any = convert_frame.ConvertFrame
    with_backend = frames._clone_with_backend.fget

    def cloned(self: Any) -> Callable[[Any], Callable[..., Any]]:
        def converter(backend: Any) -> Callable[..., Any]:
            convert = with_backend(self)(backend)

            def without_modes(*args: Any, **kwargs: Any) -> Any:
                with _disable_current_modes():
                    return convert(*args, **kwargs)

            return without_modes

        return converter

    frames._clone_with_backend = property(cloned)


def _reduced_at_once(bucket: Any) -> Any:
    buffer = bucket.buffer()
    dist.all_reduce(buffer)
    done: Any = torch.futures.Future()
    done.set_result(buffer)
    return done


def _no_hooks(*_: Any, **__: Any) -> None:
    raise CaptureError("DDP's communication hooks cannot be captured: leave out register_comm_hook")


def _broadcast_flat(_: Any, tensors: list[Any], buffer_size: int, *__: Any) -> None:
    """Copy through one flat buffer a chunk, as the coalesced broadcast does, and drop it."""
    for chunk in torch._utils._take_tensors(tensors, min(buffer_size, _BROADCAST_BYTES)):
        flat = torch._utils._flatten_dense_tensors(chunk)
        for tensor, part in zip(chunk, torch._utils._unflatten_dense_tensors(flat, chunk), strict=True):
            tensor.detach().copy_(part)


class _Reducer:
    """DDP's reducer, keeping its first buckets: a new order would be agreed on with peers, and is as large."""

    def __init__(self, reducer: Any) -> None:
        self._reducer = reducer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reducer, name)

    def _rebuild_buckets(self) -> bool:
        return False


class _Silent:
    """DDP's logger reads CUDA timers, which a fake device lacks."""

    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *_, **__: None


@contextlib.contextmanager
def one_bucket_a_block() -> Iterator[None]:
    """Compile blocks inside of DDP whole: its splitting by buckets has nothing to split in graphs that small."""
    with torch._dynamo.config.patch(optimize_ddp=False):
        yield
