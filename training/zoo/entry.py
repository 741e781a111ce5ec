"""What the zoo knows of one model: how to build it, what it eats, and at which sizes it is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Criterion = Callable[[Any], torch.Tensor]
# Batch size -> (inputs of the model, what turns its output into a loss; None where the model returns the loss itself).
Feed = Callable[[int], tuple[Any, Criterion | None]]


@dataclass(frozen=True, slots=True)
class Entry:
    """Describe one model of the zoo.

    `architecture` is the name of the implementing class, the unit of hold-out. `make` builds the model with random
    weights and `feed` its batch, both on the default device, without a download.
    """

    name: str
    architecture: str
    kind: str
    make: Callable[[], nn.Module]
    feed: Feed
    batches: tuple[int, ...]
