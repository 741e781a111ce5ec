"""Small compiled workloads whose buffers can be counted by hand. float32."""

from __future__ import annotations

from typing import Any

import torch
from replay_of import BATCH, CHANNELS, HEADS_BATCH, HIDDEN, INNER, ODD, OUT, ROWS, TOKENS, WIDTH
from torch import nn

from peakcast import Workload


def two_layers() -> Workload:
    """Linear, ReLU, Linear, trained by plain SGD."""
    model = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, OUT))
    return Workload(
        model, torch.randn(BATCH, WIDTH), loss=torch.sum, optimizer=torch.optim.SGD(model.parameters(), 0.1)
    )


class Attention(nn.Module):
    """One head over tokens, with the softmax written out and a bias that keeps it from being taken for a known one."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(CHANNELS, 3 * CHANNELS, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:  # noqa: D102
        query, key, value = self.project(tokens).chunk(3, dim=-1)
        scores = torch.tanh(query @ key.transpose(1, 2))
        return torch.softmax(scores, dim=-1) @ value


def attention() -> Workload:
    """Inference of one head."""
    return Workload(Attention(), torch.randn(HEADS_BATCH, TOKENS, CHANNELS))


def odd_product() -> Workload:
    """Return a product with 513 columns in half precision, which inductor may pad to 520."""
    return Workload(nn.Linear(INNER, ODD, bias=False).bfloat16(), torch.randn(ROWS, INNER, dtype=torch.bfloat16))


def odd_float_product() -> Workload:
    """Return the same in float32, which is not rounded to TF32 unless one asks."""
    return Workload(nn.Linear(INNER, ODD, bias=False), torch.randn(ROWS, INNER))


class Block(nn.Module):
    """A layer whose activation a budget of 0 recomputes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, values: torch.Tensor) -> torch.Tensor:  # noqa: D102
        return torch.sin(self.linear(values))


def stack() -> Workload:
    """Four like blocks."""
    model = nn.Sequential(*(Block() for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return Workload(model, torch.randn(1024, WIDTH), loss=torch.sum, optimizer=optimizer)


class Unlowerable(nn.Module):
    """Calls an operator whose lowering is broken."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:  # noqa: D102
        return torch.ops.replay_test.twice(values) + 1


def broken_lowering() -> Workload:
    """Call a custom operator of the user's own, with a lowering that raises."""
    from torch._inductor.lowering import register_lowering

    if not hasattr(torch.ops.replay_test, "twice"):

        @torch.library.custom_op("replay_test::twice", mutates_args=())
        def twice(values: torch.Tensor) -> torch.Tensor:
            return values * 2

        @twice.register_fake
        def _(values: torch.Tensor) -> torch.Tensor:
            return torch.empty_like(values)

        @register_lowering(torch.ops.replay_test.twice.default)  # type: ignore[untyped-decorator]
        def _(*_: Any) -> Any:
            raise RuntimeError("this operator has no kernel yet")

    return Workload(Unlowerable(), torch.randn(BATCH, WIDTH))


def small_class() -> Workload:
    """Call a user's own module, whose lines are known."""
    return Workload(Block(), torch.randn(BATCH, WIDTH))
