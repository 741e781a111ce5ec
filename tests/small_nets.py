"""Four small networks with one training step each: tied weights, batch norm, dropout, attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

VOCABULARY: Final = 32


class Gpt(nn.Module):
    """A causal transformer whose head shares the embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(16, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Return logits."""
        x_BTC = self.embedding(tokens_BT)
        for block in self.blocks:
            x_BTC = block(x_BTC)
        return self.head(x_BTC)


class Block(nn.Module):
    """Attention and a feed-forward layer, both with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.feed = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16), nn.Dropout(0.1))

    def forward(self, x_BTC: Tensor) -> Tensor:
        """Return the residual stream."""
        heads = self.qkv(self.norm(x_BTC)).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        x_BTC = x_BTC + F.dropout(self.out(mixed.transpose(1, 2).flatten(2)), 0.1, training=self.training)
        return x_BTC + self.feed(self.norm2(x_BTC))


class Mlp(nn.Module):
    """Residual layers with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(Layer(24) for _ in range(3)))
        self.head = nn.Linear(24, 4)

    def forward(self, x_BC: Tensor) -> Tensor:
        """Return class scores."""
        return self.head(self.layers(x_BC))


class Layer(nn.Module):
    """Linear, ReLU and dropout, added to the input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(width, width), nn.Dropout(0.2)

    def forward(self, x_BC: Tensor) -> Tensor:
        """Return the sum."""
        return x_BC + self.dropout(torch.relu(self.linear(x_BC)))


class ConvNet(nn.Module):
    """Convolutions with batch norm, whose running statistics are state too."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.Sequential(*(ConvBlock(8) for _ in range(2)))
        self.head = nn.Linear(8, 4)

    def forward(self, image_BCHW: Tensor) -> Tensor:
        """Return class scores."""
        return self.head(self.blocks(self.stem(image_BCHW)).mean((2, 3)))


class ConvBlock(nn.Module):
    """Convolution, batch norm, residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Return the sum."""
        return x_BCHW + torch.relu(self.norm(self.conv(x_BCHW)))


class Mixer(nn.Module):
    """Mixes over positions and channels, with a learned scale kept in a list of bare parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(MixerBlock() for _ in range(2))
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(12)) for _ in range(2))
        self.register_buffer("shift", torch.zeros(12))

    def forward(self, x_BTC: Tensor) -> Tensor:
        """Return one vector a sequence."""
        for block, scale in zip(self.blocks, self.scales, strict=True):
            x_BTC = block(x_BTC) * scale + self.shift
        return x_BTC.mean(1)


class MixerBlock(nn.Module):
    """One layer over positions, one over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.over_T, self.over_C, self.norm = nn.Linear(6, 6), nn.Linear(12, 12), nn.LayerNorm(12)

    def forward(self, x_BTC: Tensor) -> Tensor:
        """Return the sum."""
        x_BTC = x_BTC + F.gelu(self.over_T(self.norm(x_BTC).transpose(1, 2))).transpose(1, 2)
        return x_BTC + F.dropout(F.gelu(self.over_C(x_BTC)), 0.1, training=self.training)


@dataclass(frozen=True, slots=True)
class Net:
    """How to make a model and its optimizer, and what it is trained on: seeded by the step."""

    model: Callable[[], nn.Module]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    batch: Callable[[], tuple[Tensor, Tensor]]

    def make(self, seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Return a freshly initialised model with its optimizer."""
        torch.manual_seed(seed)
        model = self.model()
        return model, self.optimizer(model)


def _classes(*shape: int) -> Callable[[], tuple[Tensor, Tensor]]:
    return lambda: (torch.randn(4, *shape), torch.randint(4, (4,)))


NETS: Final = {
    "gpt": Net(
        Gpt,
        lambda model: torch.optim.AdamW(model.parameters(), lr=3e-3),
        lambda: (torch.randint(VOCABULARY, (2, 8)), torch.randint(VOCABULARY, (2, 8))),
    ),
    "mlp": Net(Mlp, lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), _classes(24)),
    "conv": Net(ConvNet, lambda model: torch.optim.RMSprop(model.parameters(), lr=1e-3), _classes(3, 6, 6)),
    "mixer": Net(
        Mixer,
        lambda model: torch.optim.AdamW(
            [{"params": list(model.blocks.parameters()), "betas": (0.8, 0.95)}, {"params": list(model.scales)}], lr=3e-3
        ),
        lambda: (torch.randn(4, 6, 12), torch.randint(12, (4,))),
    ),
}


def train(net: Net, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    """Run steps on data drawn from torch's random state, and return the losses."""
    losses = []
    for _ in range(steps):
        given, wanted = net.batch()
        loss = F.cross_entropy(model(given).flatten(0, -2), wanted.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
