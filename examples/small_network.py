"""A small classifier, for a first try: captured in seconds. The service's OpenAPI example is its graph."""

from __future__ import annotations

import torch
from torch import nn

from peakcast import Workload


def workload() -> Workload:
    """Train two linear layers with SGD on 32 samples of 64 features."""
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    target = torch.randint(0, 10, (32,))

    def loss(logits: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(logits, target)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Workload(model, torch.randn(32, 64), loss=loss, optimizer=optimizer)
