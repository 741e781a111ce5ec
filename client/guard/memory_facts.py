"""What the card and this process hold right now, as the device of a question."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from peakcast.featurizer.run import DeviceSpec
from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.vocabulary import BUFFER, GPU


def device_now(own_bytes: int, *, device: torch.device | None = None, context_bytes: int = 0) -> DeviceSpec:
    """Describe the current card, so that what is free of it for the step comes out right.

    Args:
        own_bytes: what of the allocated bytes is the step's own (weights, state, inputs): the prediction counts that.
        device: default: the current CUDA device.
        context_bytes: the CUDA context and libraries of this process, which the predictor takes off by itself.
    """
    index = torch.cuda.current_device() if device is None or device.index is None else device.index
    properties = torch.cuda.get_device_properties(index)
    free_bytes, total_bytes = torch.cuda.mem_get_info(index)
    stats = torch.cuda.memory_stats(index)
    reserved_bytes = int(stats.get("reserved_bytes.all.current", 0))
    others_bytes = max(0, total_bytes - free_bytes - reserved_bytes - context_bytes)
    held_bytes = max(0, int(stats.get("allocated_bytes.all.current", 0)) - own_bytes)
    # Holes inside segments that are in use: they cannot be given back, and no large tensor fits into them.
    # Expandable segments give the pages of their holes back.
    if "expandable_segments:true" not in allocator_settings().replace(" ", "").lower():
        held_bytes += int(stats.get("inactive_split_bytes.all.current", 0))
    # `set_per_process_memory_fraction` bounds what this process reserves, whatever the card has.
    limit_bytes = int(memory_fraction(index) * properties.total_memory)
    usable_bytes = min(total_bytes, limit_bytes + others_bytes + context_bytes)
    return DeviceSpec(
        name=properties.name[:128],
        total_bytes=usable_bytes,
        used_by_others_bytes=min(others_bytes, usable_bytes),
        already_allocated_bytes=held_bytes,
    )


def memory_fraction(index: int) -> float:
    """Return what `torch.cuda.set_per_process_memory_fraction` was set to; 1 where torch cannot tell."""
    read = getattr(torch.cuda, "get_per_process_memory_fraction", None)
    return float(read(index)) if read is not None else 1.0


def allocator_settings() -> str:
    """Return the caching allocator's settings, by the older or the newer name of their variable."""
    return os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or os.environ.get("PYTORCH_ALLOC_CONF") or ""


def own_bytes_of(model: nn.Module, optimizer: torch.optim.Optimizer | None, inputs: Any) -> int:
    """Return the bytes on CUDA devices of weights, buffers, gradients, optimizer state and inputs, a storage once."""
    tensors: list[Iterable[Any]] = [model.parameters(), model.buffers(), tree_leaves(inputs)]
    tensors.append(p.grad for p in model.parameters() if p.grad is not None)
    if optimizer is not None:
        tensors.append(tree_leaves(list(optimizer.state.values())))
    return sum(_storages(tensor for group in tensors for tensor in group))


def closure_bytes(spec: GraphSpec, plan: str, model: nn.Module) -> int:
    """Return the bytes that the graph counts as the step's own and that are no buffers of the model.

    What a step function holds besides its model, a teacher or an averaged copy, is captured with it.
    """
    storages = spec.traces[plan].storages
    held = (storages.role == BUFFER) & (storages.device == GPU) & (storages.born < 0)
    return max(0, int(storages.bytes[held].sum()) - sum(_storages(model.buffers(), device_type=None)))


def _storages(tensors: Iterable[Any], device_type: str | None = "cuda") -> Iterator[int]:
    seen: set[int] = set()
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor) or (device_type and tensor.device.type != device_type):
            continue
        try:
            storage = tensor.untyped_storage()
        except NotImplementedError:  # subclasses without storage: their inner tensors are not looked for
            continue
        if storage._cdata not in seen:
            seen.add(storage._cdata)
            yield storage.nbytes()
