"""accelerate under the guard: guard what `prepare` returned."""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import peakcast


def main() -> None:
    """Train a tiny network for three steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", help="URL of a peakcast service; default: predict in this process")
    parser.add_argument(
        "--plans", default=",".join(peakcast.Policy().plans), help="the plan wanted, and others allowed"
    )
    options = parser.parse_args()
    policy = peakcast.Policy(plans=tuple(options.plans.split(",")))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters())
    data = DataLoader(TensorDataset(torch.randn(24, 16), torch.randint(0, 10, (24,))), batch_size=8)
    accelerator = Accelerator()
    model, optimizer, data = accelerator.prepare(model, optimizer, data)

    with peakcast.guard(model, optimizer, server=options.server, policy=policy) as guard:
        for x, y in data:

            def step(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                return loss.detach()

            loss = guard.step(step)
        print(f"loss {loss.item():.4f}, decision: {guard.decision.action} {guard.decision.plan}")


if __name__ == "__main__":
    main()
