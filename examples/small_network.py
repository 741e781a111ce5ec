"""A small classifier, for a first try: captured in seconds. The service's OpenAPI example is its graph."""

from __future__ import annotations

import torch
from torch import nn

from peakcast import Workload


class Classifier(nn.Module):
    """Two linear layers: 64 features to 10 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(64, 256)
        self.head = nn.Linear(256, 10)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        return self.head(torch.relu(self.hidden(features)))  # type: ignore[no-any-return]


def workload(batch: int = 32) -> Workload:
    """Train it with SGD on a batch of samples."""
    model = Classifier()
    target = torch.randint(0, 10, (batch,))

    def loss(logits: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(logits, target)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Workload(model, torch.randn(batch, 64), loss=loss, optimizer=optimizer)
