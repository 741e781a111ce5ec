"""A workload: the model, its inputs and how one step of it runs, as the user wrote it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Loss = Callable[[Any], torch.Tensor]


@dataclass(slots=True, eq=False)
class Workload:
    """Describe one step: either the parts of a standard loop, or `step`, a function that runs a whole one.

    Args:
        model: the module that is trained or called.
        inputs: positional arguments (tuple, list, or one tensor) or keyword arguments (mapping) of the model.
        loss: takes the model's output and returns a scalar; None where the model returns one, or for inference.
        optimizer: None means inference under `torch.no_grad()`.
        autocast: dtype of `torch.autocast` around forward and loss; None runs without.
        step: runs one whole step in place of the standard loop (clipping, scaler, accumulation, zero_grad where
            the user puts them); `inputs`, `loss` and `autocast` must then be left out.

    Raises:
        ValueError: if neither `step` nor `model` with `inputs` is given, or both are.
    """

    model: nn.Module | None = None
    inputs: Any = None
    loss: Loss | None = None
    optimizer: torch.optim.Optimizer | None = None
    autocast: torch.dtype | None = None
    step: Callable[[], Any] | None = None

    def __post_init__(self) -> None:
        if self.step is not None and (self.inputs is not None or self.loss is not None or self.autocast is not None):
            raise ValueError("Workload(step=...) runs the whole step itself: leave out inputs, loss and autocast")
        if self.step is None and (self.model is None or self.inputs is None):
            raise ValueError("Workload needs model and inputs, or step=")

    @property
    def is_training(self) -> bool:
        """Tell whether the standard loop trains. With `step`, an optimizer says so."""
        return self.optimizer is not None

    def call_model(self) -> Any:
        """Call the model on the inputs."""
        assert self.model is not None
        if isinstance(self.inputs, Mapping):
            return self.model(**self.inputs)
        if isinstance(self.inputs, Sequence) and not isinstance(self.inputs, str):
            return self.model(*self.inputs)
        return self.model(self.inputs)

    def run(self, *, autocast: Callable[[torch.dtype], contextlib.AbstractContextManager[Any]] | None = None) -> None:
        """Run one step. `autocast` replaces `torch.autocast("cuda", ...)`, for hosts without a GPU."""
        if self.step is not None:
            self.step()
            return
        enter = autocast or (lambda dtype: torch.autocast("cuda", dtype))
        with contextlib.ExitStack() as stack:
            if not self.is_training:
                stack.enter_context(torch.no_grad())
            if self.autocast is not None:
                stack.enter_context(enter(self.autocast))
            loss = self._loss()
        if self.optimizer is None:
            return
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def _loss(self) -> Any:
        """Run the model and its loss. A function of its own, so that the output is dropped before the backward."""
        output = self.call_model()
        if self.loss is not None:
            return self.loss(output)
        return _scalar_loss(output) if self.is_training else output


def _scalar_loss(output: Any) -> torch.Tensor:
    """Find the scalar in what the model returned: itself, `.loss`, or the first element."""
    loss = getattr(output, "loss", None)
    if loss is None and isinstance(output, Mapping):
        loss = output.get("loss")
    if loss is None:
        loss = output[0] if isinstance(output, tuple | list) and output else output
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise ValueError(
            f"the model did not return a scalar loss (got {type(output).__name__}): give Workload(loss=...)"
        )
    return loss
