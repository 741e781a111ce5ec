"""A small model and its training step, for the tests of the guard."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from peakcast.featurizer.run import DeviceSpec


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add what two layers make of `x`."""
        return x + self.down(nn.functional.gelu(self.up(x)))


class Net(nn.Module):
    def __init__(self, width: int = 32, depth: int = 2) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Training:
    """A model, its optimizer, and steps on seeded batches."""

    def __init__(self, width: int = 32, depth: int = 2) -> None:
        torch.manual_seed(0)
        self.model = Net(width, depth)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.width = width

    def step_on(self, batch: int, seed: int = 0) -> Callable[[], float]:
        """Return one whole step; it returns its loss."""
        random = torch.Generator().manual_seed(seed)
        x = torch.randn(batch, self.width, generator=random)
        y = torch.randint(0, 10, (batch,), generator=random)
        model, optimizer = self.model, self.optimizer

        def step() -> float:
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.item()

        return step

    def losses(self, run: Callable[[Callable[[], float]], float], steps: int = 3, batch: int = 16) -> list[float]:
        """Return the losses of some steps, each given to `run`."""
        return [run(self.step_on(batch, seed)) for seed in range(steps)]


def eager_losses(steps: int = 3, batch: int = 16) -> list[float]:
    """Return the losses of the same training without any guard."""
    return Training().losses(lambda step: step(), steps, batch)


def card(total_bytes: int) -> DeviceSpec:
    """Return an otherwise empty card of a size."""
    return DeviceSpec(total_bytes=total_bytes)
