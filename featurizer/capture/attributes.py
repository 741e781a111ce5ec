"""What the simulation must know of an operator beyond the sizes of what it reads and writes."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed

aten = torch.ops.aten
_COLLECTIVES = ("c10d", "_c10d_functional")
# Kernels that make these of their first arguments contiguous before they begin: `layer_norm_cuda` and its backward
# (layer_norm_kernel.cu), `host_softmax` and its backward (SoftMax.cu).
_CONTIGUOUS: dict[Any, int] = {
    aten.native_layer_norm.default: 1,
    aten.native_layer_norm_backward.default: 2,
    aten._softmax.default: 1,
    aten._log_softmax.default: 1,
    aten._softmax_backward_data.default: 2,
    aten._log_softmax_backward_data.default: 2,
}


def attribute_of(func: Any, args: Sequence[Any], *, channels_last: bool = False) -> str:
    """Describe as `key=value` pairs a convolution's geometry, what a scatter reduces, copies, a collective's group.

    Empty for other operators.

    `channels_last` says that the compiler lays the convolutions of this graph out so, whatever the tensors look like.
    """
    if func is aten.convolution.default:
        image, weight = args[0], args[1]
        return _convolution(image, weight, args[3], args[5], transposed=args[6], groups=args[8], last=channels_last)
    if func is aten.convolution_backward.default:
        image, weight = args[1], args[2]
        wanted = "".join(str(int(needed)) for needed in args[10])  # gradients of input, weight, bias
        described = _convolution(
            image, weight, args[4], args[6], transposed=args[7], groups=args[9], last=channels_last
        )
        return f"{described},gradients={wanted}"
    if func in (aten.scatter_reduce.two, aten.scatter_reduce_.two):
        return f"reduce={args[4]}"
    if func in _CONTIGUOUS:
        copied = sum(not value.is_contiguous() for value in args[: _CONTIGUOUS[func]])
        return f"copied={copied}" if copied else ""
    if getattr(func, "namespace", "") in _COLLECTIVES:
        return _group(args)
    return ""


def _group(args: Sequence[Any]) -> str:
    """Name the process group: each has a communicator of its own."""
    for value in args:
        if isinstance(value, torch.ScriptObject):
            with contextlib.suppress(RuntimeError, TypeError):  # the kind of reduction comes boxed too
                return f"group={distributed.ProcessGroup.unbox(value).group_name}"
    names = [value for value in args if isinstance(value, str)]
    return f"group={names[-1]}" if names else ""  # after the kind of reduction


def _convolution(
    image: torch.Tensor,
    weight: torch.Tensor,
    stride: Sequence[int],
    dilation: Sequence[int],
    *,
    transposed: bool,
    groups: int,
    last: bool,
) -> str:
    """Say what cuDNN is given. Its fast kernels want channels last; another layout is converted through a workspace."""
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(image.dim())
    is_contiguous = image.is_contiguous()
    is_last = last or (layout is not None and image.is_contiguous(memory_format=layout) and not is_contiguous)
    pairs = {
        "kernel": _shape(weight.shape[2:]),
        "stride": _shape(stride),
        "dilation": _shape(dilation),
        "groups": int(groups),
        "transposed": int(transposed),
        "channels": _shape((image.shape[1], weight.shape[1] * groups if transposed else weight.shape[0])),
        "image": _shape(image.shape[2:]),
        "layout": "nhwc" if is_last else "nchw",
        # torch copies an input that is contiguous in neither layout before it calls cuDNN.
        "copied": int(not is_last and not is_contiguous),
    }
    return ",".join(f"{key}={value}" for key, value in pairs.items())


def _shape(sizes: Sequence[int]) -> str:
    return "x".join(str(int(size)) for size in sizes)
