"""`aten::linear` as plain tensors run it.

For a bias on an input that is not contiguous ATen adds it in place, but out of place where a dispatch mode is on: the
traced step would then hold the result twice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

_MATRIX_DIMS = 2


@contextlib.contextmanager
def bias_added_in_place() -> Iterator[None]:
    """Run `linear` inside the block as without a dispatch mode. Not for tracing: compilers make their own of it."""
    torch.ops.aten.linear.default._dispatch_cache.clear()
    library = torch.library.Library("aten", "IMPL")
    for key in ("AutogradCUDA", "AutogradCPU"):
        library.impl("linear", _linear, key)
    try:
        yield
    finally:
        library._destroy()
        # The Python dispatcher remembers which kernel it found: it would go on past autograd without one.
        torch.ops.aten.linear.default._dispatch_cache.clear()


def _linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:  # noqa: A002  (the schema's)
    if bias is None or input.dim() <= _MATRIX_DIMS or input.is_contiguous():
        return torch.ops.aten.linear.default.decompose(input, weight, bias)
    return torch.matmul(input, weight.t()).add_(bias)
