"""DDP and FSDP2 modules of a running job: taken apart for shipping, and put together again around what they wrap."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed._composable.contract import REGISTRY_KEY, STATE_KEY
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from peakcast.featurizer.capture.isolated import CaptureError

Reduced = tuple[Callable[..., Any], tuple[Any, ...]]
_MARKS = (STATE_KEY, REGISTRY_KEY, "_is_fsdp_managed_module", "_fsdp_use_orig_params")
# Parameters that sharding replaced while a workload is unpacked: the optimizer still holds the old ones.
_replaced: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}


def taken_apart(module: nn.Module) -> Reduced | None:
    """Return how to make a distributed module again, as `reducer_override` does; None for any other.

    Raises:
        CaptureError: for a module that is distributed in a way that cannot be told from outside.
    """
    if isinstance(module, DistributedDataParallel):
        return _wrap, (module.module, _ddp_options(module))
    if isinstance(module, FSDPModule):
        original = type(module).__mro__[getattr(type(module), "_orig_cls_mro_index", 2)]
        return _shard, (original, _bare_state(module), _fsdp_options(module))
    if getattr(module, "_is_fsdp_managed_module", False):
        return _bare, (type(module), _bare_state(module))  # what a sharded module above it sharded along
    return None


def _ddp_options(module: DistributedDataParallel) -> dict[str, Any]:
    is_default = getattr(module, "bucket_bytes_cap_default", False)
    return {
        "broadcast_buffers": module.broadcast_buffers,
        "bucket_cap_mb": None if is_default else module.bucket_bytes_cap / 2**20,
        "find_unused_parameters": module.find_unused_parameters,
        "gradient_as_bucket_view": module.gradient_as_bucket_view,
        "static_graph": module.static_graph,
    }


def _wrap(module: nn.Module, options: dict[str, Any]) -> nn.Module:
    return DistributedDataParallel(module, **options)


def _fsdp_options(module: nn.Module) -> dict[str, Any]:
    state: Any = fully_shard.state(module)  # type: ignore[attr-defined]
    groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
    held = [group for group in groups if group is not None]
    if len(held) > 1:
        raise CaptureError("a module with several FSDP parameter groups cannot be sent to another process")
    options: dict[str, Any] = {"mp_policy": state._mp_policy}
    if held:
        group = held[0]
        if group.mesh_info.mesh.ndim != 1 or group._use_post_forward_mesh:
            raise CaptureError("FSDP over a mesh of several dimensions cannot be sent to another process")
        is_own_choice = not state._auto_reshard_after_forward
        options["reshard_after_forward"] = group._reshard_after_forward if is_own_choice else None
        options["offload_policy"] = group.offload_policy
    return options


def _bare_state(module: nn.Module) -> dict[str, Any]:
    """Return a module's attributes without what FSDP added: its marks and hooks."""
    state = {name: value for name, value in vars(module).items() if name not in _MARKS}
    for name, hooks in state.items():
        if name.endswith("_hooks") and isinstance(hooks, dict):
            kept = {key: hook for key, hook in hooks.items() if not _is_torchs_own(hook)}
            state[name] = type(hooks)(kept)
    return state


def _is_torchs_own(hook: Any) -> bool:
    function = getattr(hook, "hook", hook)  # state-dict hooks come wrapped
    function = getattr(function, "func", function)
    return str(getattr(function, "__module__", "")).startswith("torch.distributed")


def _bare(kind: type[nn.Module], state: dict[str, Any]) -> nn.Module:
    module = kind.__new__(kind)
    module.__setstate__(state)
    return module


def _shard(kind: type[nn.Module], state: dict[str, Any], options: dict[str, Any]) -> nn.Module:
    module = _bare(kind, state)
    before = [(owner, name, held) for owner in module.modules() for name, held in owner._parameters.items()]
    fully_shard(module, **options)
    for owner, name, held in before:
        now = owner._parameters[name]
        if held is not None and now is not None and now is not held:
            _replaced[id(held)] = (held, now)
    return module


@contextmanager
def optimizers_follow() -> Any:
    """Give optimizers that are unpacked in the block the parameters that sharding put in the place of theirs.

    Yields a function to call with the optimizer. Its state is dropped where that happened: the shards are made anew.
    """
    _replaced.clear()

    def follow(optimizer: torch.optim.Optimizer | None) -> None:
        if optimizer is None or not _replaced:
            return
        for group in optimizer.param_groups:
            group["params"] = [_replaced.get(id(held), (held, held))[1] for held in group["params"]]
        optimizer.state.clear()

    try:
        yield follow
    finally:
        _replaced.clear()
