"""Models of which only a part is trained: the last layer, or low-rank adapters beside frozen weights."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

# As PEFT's default; the adapters' share of the memory is small at any usual rank.
_RANK = 8


class Adapted(nn.Module):
    """A frozen linear layer with a low-rank update beside it: y = W x + B A x (Hu et al., 2021)."""

    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__()
        self.frozen = frozen
        self.down = nn.Parameter(frozen.weight.new_empty(_RANK, frozen.in_features))
        self.up = nn.Parameter(frozen.weight.new_zeros(frozen.out_features, _RANK))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    @property
    def weight(self) -> torch.Tensor:
        """Give the frozen weight to models that look at it beside calling the layer."""
        return self.frozen.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output and the update's."""
        update = functional.linear(functional.linear(x, self.down), self.up)
        output: torch.Tensor = self.frozen(x)
        return output + update


def train_only(model: nn.Module, part: str) -> nn.Module:
    """Leave only a part of a model to be trained, in place: `head`, its last layer with weights, or `lora`.

    Raises:
        ValueError: if the model has no layer of the kind, or `part` is neither.
    """
    if part == "head":
        layers = [module for module in model.modules() if next(module.parameters(recurse=False), None) is not None]
        model.requires_grad_(requires_grad=False)
        layers[-1].requires_grad_(requires_grad=True)
        return model
    if part != "lora":
        raise ValueError(f"part must be head or lora, got {part!r}")
    model.requires_grad_(requires_grad=False)
    found = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear
    ]
    if not found:
        raise ValueError("the model has no linear layer to adapt")
    for parent, name, child in found:
        setattr(parent, name, Adapted(child))
    return model
