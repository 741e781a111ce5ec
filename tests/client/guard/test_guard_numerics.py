"""Every plan computes what eager computes: outputs and gradients, within the tolerance of the dtype."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from guarded import Net
from torch import nn

from peakcast.client.guard.plan_backend import PlanBackend
from peakcast.client.guard.plan_switch import PlanSwitch, possible_plans

pytestmark = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf",
    "ignore:.*GRU.*|.*RNN.*:UserWarning",
)
PLANS = ("inductor", "inductor:budget=0.3", "hybrid", "eager:checkpoint")


class Convolutional(nn.Module):
    """Residual convolutions with batch norm, whose statistics are buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        layer = lambda: nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())  # noqa: E731
        self.blocks = nn.ModuleList(layer() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return pooled features."""
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return x.mean((2, 3))


class Attention(nn.Module):
    """Transformer layers. Without dropout: compiled code draws its masks in an order of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True) for _ in range(2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the last layer's output."""
        for block in self.blocks:
            x = block(x)
        return x


class TiedLanguageModel(nn.Module):
    """Embedding and head share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.body = Net(16)
        self.body.head = nn.Linear(16, 16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        return self.body(self.embedding(tokens)) @ self.embedding.weight.T


class Recurrent(nn.Module):
    """GRU layers, which Dynamo leaves eager, between compiled ones."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.GRU(8, 8, batch_first=True) for _ in range(2))
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the head's output of the last layer."""
        for block in self.blocks:
            x = torch.tanh(block(x)[0]) + x
        return self.head(x)


Case = tuple[Callable[[], nn.Module], Callable[[], torch.Tensor], torch.dtype | None]
CASES: dict[str, Case] = {
    "residual": (Net, lambda: torch.randn(8, 32), None),
    "convolutional": (Convolutional, lambda: torch.randn(2, 3, 8, 8), None),
    "attention": (Attention, lambda: torch.randn(2, 5, 16), None),
    "tied": (TiedLanguageModel, lambda: torch.randint(0, 50, (2, 6)), None),
    "recurrent": (Recurrent, lambda: torch.randn(2, 5, 8), None),
    "bfloat16": (Net, lambda: torch.randn(8, 32), torch.bfloat16),
}
# Rounding of a few operations, relative to values around 1: float32 has 24 bits, bfloat16 8.
TOLERANCES = {None: {"rtol": 1e-4, "atol": 1e-5}, torch.bfloat16: {"rtol": 3e-2, "atol": 3e-2}}


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def two_steps(model: nn.Module, x: torch.Tensor, autocast: torch.dtype | None) -> tuple[Any, ...]:
    """Return the second output, the gradients of both passes, and the buffers."""
    torch.manual_seed(7)
    model.zero_grad()
    entered = torch.autocast("cpu", autocast) if autocast else contextlib.nullcontext()
    for _ in range(2):
        with entered:
            output = model(x)
        output.float().square().mean().backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    return output.detach().clone(), gradients, [buffer.clone() for buffer in model.buffers()]


SLOW = tuple(name for name in CASES if name not in {"residual", "convolutional"})


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in CASES]
)
def test_each_plan_gives_eagers_result(name: str) -> None:
    """Outputs, gradients accumulated over two passes, and buffers agree under every plan, one after the other."""
    make, inputs, autocast = CASES[name]
    torch.manual_seed(0)
    model, x = make(), inputs()
    start = {key: value.clone() for key, value in model.state_dict().items()}
    expected = two_steps(model, x, autocast)
    assert any(gradient.abs().max() > 1e-3 for gradient in expected[1])

    def gate(*args: Any) -> Any:
        return switch.call(*args)

    switch = PlanSwitch(model, gate, PlanBackend)
    # The small ones of the fast suite do without two of the plans; the slow ones take all.
    plans = PLANS if name in SLOW else PLANS[1:]
    for plan in possible_plans(model, plans):
        model.load_state_dict(start)
        switch.to(plan)
        torch.testing.assert_close(two_steps(model, x, autocast), expected, **TOLERANCES[autocast])
    switch.close()
