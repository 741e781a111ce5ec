"""A training loop of your own under the guard: three lines more than without."""

from __future__ import annotations

import argparse
import logging

import torch
from torch import nn

import peakcast


class Block(nn.Module):
    """A residual block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add what two layers make of `x`."""
        return x + self.down(nn.functional.gelu(self.up(x)))


def main() -> None:
    """Train a few steps on random numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", help="URL of a peakcast service; default: predict in this process")
    parser.add_argument(
        "--plans", default=",".join(peakcast.Policy().plans), help="the plan wanted, and others allowed"
    )
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args()
    policy = peakcast.Policy(plans=tuple(options.plans.split(",")))
    logging.basicConfig(level=logging.INFO)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(*(Block(64) for _ in range(3)), nn.Linear(64, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())

    with peakcast.guard(model, optimizer, server=options.server, policy=policy) as guard:
        for number in range(4):
            x = torch.randn(options.batch, 64, device=device)
            y = torch.randint(0, 10, (options.batch,), device=device)

            def step(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                return loss.detach()

            loss = guard.step(step)
            print(f"step {number}: loss {loss.item():.4f}, plan {guard.plan}")


if __name__ == "__main__":
    main()
