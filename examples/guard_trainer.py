"""`transformers.Trainer` under the guard: one line, `guard_trainer(trainer)`."""

from __future__ import annotations

import argparse
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import peakcast
from peakcast.client.integrations.transformers import guard_trainer

SEQUENCE = 16


class Tokens(Dataset[dict[str, torch.Tensor]]):
    """Random tokens, always the same."""

    def __init__(self, rows: int, vocabulary: int) -> None:
        self._tokens = torch.randint(0, vocabulary, (rows, SEQUENCE), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._tokens[index], "labels": self._tokens[index]}


def main() -> None:
    """Train a tiny GPT-2 for three steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", help="URL of a peakcast service; default: predict in this process")
    parser.add_argument(
        "--plans", default=",".join(peakcast.Policy().plans), help="the plan wanted, and others allowed"
    )
    options = parser.parse_args()
    policy = peakcast.Policy(plans=tuple(options.plans.split(",")))
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=2,
        n_head=2,
        n_embd=32,
        vocab_size=100,
        n_positions=SEQUENCE,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, max_steps=3, per_device_train_batch_size=4, report_to=[], save_strategy="no"
        )
        trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Tokens(12, config.vocab_size))
        callback = guard_trainer(trainer, server=options.server, policy=policy)
        result = trainer.train()
    assert callback.guard is not None
    print(f"loss {result.training_loss:.4f}, decision: {callback.guard.decision.action} {callback.guard.decision.plan}")


if __name__ == "__main__":
    main()
