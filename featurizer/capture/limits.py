"""What cannot be captured is refused in one sentence, and what torch says about it is cut to one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from peakcast.featurizer.capture.isolated import CaptureError
from peakcast.featurizer.capture.workload import Workload
from peakcast.featurizer.plans import parse_plan

_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
_BACKEND = re.compile(r"^backend='[^']*' raised:\s*")


def refuse_what_cannot_be_captured(workload: Workload, plans: Sequence[str]) -> None:
    """Look for layers and tensors that fake tensors cannot stand for.

    Raises:
        CaptureError: if there is one; it names the module.
    """
    is_compiled = any(parse_plan(plan).compiled for plan in plans)
    for name, module in workload.model.named_modules() if workload.model is not None else ():
        where = f"{type(module).__name__} at {name!r}" if name else type(module).__name__
        if ".quantized" in type(module).__module__ and type(module).__module__.startswith("torch."):
            raise CaptureError(f"quantized modules cannot be captured ({where}): give the model in floating point")
        if is_compiled and isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            raise CaptureError(
                f"sparse gradients cannot be captured under a compiled plan ({where}): use sparse=False or plan eager"
            )
        _refuse_tensors(_held(module), where)
    _refuse_tensors((leaf for leaf in tree_leaves(workload.inputs)), "the inputs")


def _held(module: nn.Module) -> Iterator[Any]:
    yield from module._parameters.values()
    yield from module._buffers.values()
    yield from tree_leaves({name: value for name, value in vars(module).items() if name[:1] != "_"})


def _refuse_tensors(values: Iterator[Any], where: str) -> None:
    for value in values:
        if not isinstance(value, torch.Tensor):
            continue
        if value.is_quantized:
            raise CaptureError(f"quantized tensors cannot be captured ({where}): give them in floating point")
        if value.layout in _COMPRESSED:
            layout = str(value.layout).removeprefix("torch.")
            raise CaptureError(f"{layout} tensors cannot be captured ({where}): give them dense, or as COO")


def one_message(error: BaseException) -> str:
    """Return what an error says without the dispatcher's list of kernels and the compiler's wrapping."""
    text = _BACKEND.sub("", str(error))
    return text.split(" This could be because", 1)[0].strip()
