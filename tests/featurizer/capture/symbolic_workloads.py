"""Workloads for captures with the batch as a symbol. What takes `batch` is called with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from small_nets import Gpt
from torch import nn
from torch.nn import functional

from peakcast import Workload

WIDTH, LENGTH = 64, 12


def gpt(batch: int = 4) -> Workload:
    """Train a causal transformer under autocast; the loss holds targets of the batch's size."""
    model = Gpt()
    tokens = torch.randint(32, (batch, 8))
    return Workload(
        model,
        tokens,
        loss=lambda logits: functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()),
        optimizer=torch.optim.AdamW(model.parameters()),
        autocast=torch.bfloat16,
    )


class Attention(nn.Module):
    """Attention with its T by T scores written out, and a mask of that shape as second input."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Mix [B, T, C]."""
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        out: torch.Tensor = (query @ key.mT + mask).softmax(-1) @ value
        return out


def attention() -> Workload:
    """Inference: the leading dimension of the first input is the batch, the mask has another one."""
    return Workload(Attention(), (torch.randn(5, LENGTH, WIDTH), torch.zeros(LENGTH, LENGTH)))


class Contrast(nn.Module):
    """Every sample against every other one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [B, B]."""
        return x @ x.mT


def contrast() -> Workload:
    """Quadratic in the batch."""
    return Workload(Contrast(), torch.randn(6, WIDTH))


class Conditional(nn.Module):
    """Both branches of a `torch.cond` make something of the batch's size."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Double it, or add it to itself and take the sine."""
        out: torch.Tensor = torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: (x + x).sin(), (x,))
        return out


def conditional() -> Workload:
    """Branches have sizes of their own."""
    return Workload(Conditional(), torch.randn(6, WIDTH))


class Chunked(nn.Module):
    """Goes through the batch four samples at a time."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Take the sine of each part."""
        return torch.cat([part.sin() for part in x.split(4)])


def chunked() -> Workload:
    """More operators at a larger batch."""
    return Workload(Chunked(), torch.randn(8, WIDTH))


class Doubling(nn.Module):
    """Does one thing more with few samples."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Take the sine, of the double where there are fewer than four."""
        return (x * 2 if x.shape[0] < 4 else x).sin()


def doubling() -> Workload:
    """Run other operators at small batches, as a compiler decides by size what to recompute."""
    return Workload(Doubling(), torch.randn(6, WIDTH))


class Padded(nn.Module):
    """Rounds the batch up to a multiple of 8."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Copy into a larger buffer."""
        buffer = x.new_zeros(-(-x.shape[0] // 8) * 8, WIDTH)
        buffer[: x.shape[0]] = x
        return buffer


def padded() -> Workload:
    """Bytes that are a staircase."""
    return Workload(Padded(), torch.randn(6, WIDTH))


def targets() -> Workload:
    """Hold targets of 6 samples in the loss, whatever the batch is."""
    wanted = torch.zeros(6, WIDTH)
    model = nn.Linear(WIDTH, WIDTH)
    return Workload(
        model,
        torch.randn(6, WIDTH),
        loss=lambda out: functional.mse_loss(out, wanted),
        optimizer=torch.optim.SGD(model.parameters()),
    )


def step() -> Workload:
    """Hide the batch in a step."""
    return Workload(step=torch.randn(6, WIDTH).sin)


def scalars() -> Workload:
    """Have no dimension that could be the batch."""
    return Workload(nn.Identity(), torch.tensor(1.0))


def no_default(batch: int) -> Workload:
    """Do not say how large the batch is."""
    return Workload(nn.Identity(), torch.randn(batch, WIDTH))


# Function, range, plans.
SYMBOLIC: dict[str, tuple[Callable[..., Any], str, list[str]]] = {
    "gpt": (gpt, "batch", ["eager", "inductor"]),
    "attention": (attention, "batch=1:300", ["eager"]),
    "contrast": (contrast, "batch", ["eager"]),
    "conditional": (conditional, "batch", ["eager"]),
    "chunked": (chunked, "batch", ["eager"]),
    "doubling": (doubling, "batch", ["eager"]),
    "doubling_too": (doubling, "batch=2:64", ["eager"]),
    "padded": (padded, "batch", ["eager"]),
    "targets": (targets, "batch", ["eager"]),
    "step": (step, "batch", ["eager"]),
    "scalars": (scalars, "batch", ["eager"]),
    "no_default": (no_default, "batch", ["eager"]),
    "outside": (gpt, "batch=5:9", ["eager"]),
}
