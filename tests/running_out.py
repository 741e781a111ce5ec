"""Steps that run out of memory where a test says, and what of a model and its optimizer can be compared afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """Give a compiler that has compiled nothing, and let collections walk through the test's own objects only."""
    torch.compiler.reset()
    gc.collect()
    gc.freeze()
    yield
    torch.compiler.reset()


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
    """Return copies of all that a step may change."""
    tensors = [*model.parameters(), *model.buffers()]
    state = [optimizer.state[p] for p in model.parameters() if p in optimizer.state]
    kept = [value for entries in state for value in entries.values() if isinstance(value, torch.Tensor)]
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return [tensor.detach().clone() for tensor in [*tensors, *kept]] + gradients


def equal(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    """Say whether all are the same bit for bit."""
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


class Raising:
    """Raise torch's out-of-memory error at one place of a step, as long as the plan is the big one."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.big = True
        self.times = 0

    def at(self, place: str) -> None:
        """Run out here, if this is the place."""
        if self.big and place == self.place:
            self.times += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    def fall_back(self) -> bool:
        """Take a plan that fits."""
        self.big = False
        return True


class InBackward(torch.autograd.Function):
    """Pass a tensor through; run out of memory in its backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, raising: Raising) -> torch.Tensor:
        """Return the same values."""
        ctx.raising = raising
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Return the same gradient, unless memory runs out here."""
        ctx.raising.at("backward")
        return gradients[0], None


def limited_training(optimizer_type: type[torch.optim.Optimizer], **options: Any) -> Any:
    """Return model, optimizer and step of two layers of 1 MiB each; activations take 2 MiB each."""
    model = nn.Sequential(nn.Linear(512, 512, bias=False), nn.ReLU(), nn.Linear(512, 512, bias=False), nn.ReLU())
    optimizer = optimizer_type(model.parameters(), lr=0.01, **options)  # type: ignore[call-arg]
    x = torch.randn(1024, 512)

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return model, optimizer, step
