"""Gradient accumulation with a changing batch: what recompiling leaves behind, and what padding does about it.

Run it as `python examples/changing_batch.py`; with a GPU it runs there, and none is needed. As many models do, this one
keeps an attention mask for each length it has seen, and Dynamo compiles each length anew until it reaches its limit and
goes on eager.
"""

from __future__ import annotations

import torch
from torch import nn

from peakcast.client.recompiles.live_bytes import tensor_bytes
from peakcast.client.recompiles.watch import RecompileWatch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LENGTHS = [40, 72, 56, 88, 104, 48, 96, 64, 120, 80, 112, 128]
WIDTH = 64


class Attention(nn.Module):
    """One head of causal attention, which makes its masks when it first needs them and keeps them."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.masks: dict[int, torch.Tensor] = {}

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch of shape [rows, length, width]."""
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        weights = (query @ key.mT / WIDTH**0.5 + mask).softmax(dim=-1)
        return (weights @ value).square().mean()

    def mask(self, length: int) -> torch.Tensor:
        """Return the mask of a length: minus infinity above the diagonal."""
        if length not in self.masks:
            self.masks[length] = torch.full((length, length), -torch.inf, device=DEVICE).triu(1)
        return self.masks[length]


def train(lengths: list[int], *, padded_to: int | None) -> None:
    """Train one step a length, each accumulated over two micro-batches, and print what the watch saw."""
    torch.compiler.reset()
    torch.manual_seed(0)
    model = Attention().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    compiled = torch.compile(model, backend="aot_eager", dynamic=False)
    # On the card the allocator says what is alive; elsewhere the tensors are counted.
    with RecompileWatch(live_bytes=None if DEVICE == "cuda" else tensor_bytes) as watch:
        for length in lengths:
            size = padded_to or length
            for _ in range(2):
                x = torch.zeros(4, size, WIDTH, device=DEVICE)
                x[:, :length] = torch.randn(4, length, WIDTH, device=DEVICE)
                compiled(x, model.mask(size)).backward()
            optimizer.step()
            optimizer.zero_grad()
            del x
            watch.step()
    print(f"--- {'as they come' if padded_to is None else f'padded to {padded_to}'}")
    print(watch.report())


if __name__ == "__main__":
    train(LENGTHS, padded_to=None)
    train(LENGTHS, padded_to=max(LENGTHS))
