"""A model spread over the ranks of the current process group, in the ways that are measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from peakcast.featurizer.capture.plans import blocks


def spread(model: nn.Module, parallel: str) -> nn.Module:
    """Wrap a model that is on its device.

    `ddp` with the default buckets, `ddp_view` with gradients as views of them; `fsdp2` shards each block and the rest,
    `fsdp2_keep` does not reshard after the forward, `fsdp2_bf16` gathers and computes in bfloat16 and reduces in
    float32.

    Raises:
        KeyError: if `parallel` is none of these.
    """
    return _WAYS[parallel](model)


def _ddp(model: nn.Module, **options: Any) -> nn.Module:
    on_card = next(model.parameters()).device
    devices = [on_card] if on_card.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=devices, **options)


def _fsdp2(model: nn.Module, **options: Any) -> nn.Module:
    try:
        parts = blocks(model)
    except ValueError:
        parts = []  # nothing repeats: the model is one shard
    for part in parts:
        fully_shard(part, **options)
    fully_shard(model, **options)  # in place
    return model


_WAYS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "ddp": _ddp,
    "ddp_view": lambda model: _ddp(model, gradient_as_bucket_view=True),
    "fsdp2": _fsdp2,
    "fsdp2_keep": lambda model: _fsdp2(model, reshard_after_forward=False),
    "fsdp2_bf16": lambda model: _fsdp2(
        model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    ),
}
