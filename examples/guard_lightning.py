"""Lightning under the guard: one callback."""

from __future__ import annotations

import argparse

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import peakcast
from peakcast.client.integrations.lightning import PeakcastCallback


class Classifier(lightning.LightningModule):
    """Two hidden layers."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """Return the loss of a batch."""
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters())


def main() -> None:
    """Fit a tiny classifier for three steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", help="URL of a peakcast service; default: predict in this process")
    parser.add_argument(
        "--plans", default=",".join(peakcast.Policy().plans), help="the plan wanted, and others allowed"
    )
    options = parser.parse_args()
    policy = peakcast.Policy(plans=tuple(options.plans.split(",")))
    lightning.seed_everything(0, verbose=False)
    data = TensorDataset(torch.randn(24, 16), torch.randint(0, 10, (24,)))
    callback = PeakcastCallback(server=options.server, policy=policy)
    trainer = lightning.Trainer(
        max_steps=3,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(), DataLoader(data, batch_size=8))
    loss, decision = trainer.callback_metrics["loss"], callback.guard.decision
    print(f"loss {loss.item():.4f}, decision: {decision.action} {decision.plan}")


if __name__ == "__main__":
    main()
