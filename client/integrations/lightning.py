"""The guard under Lightning: a callback that knows the whole step, since Lightning hands it batch and optimizer."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn

from peakcast.client.guard.guard import Guard, guard

_MIXED = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}


@dataclass(slots=True, eq=False)
class LightningStep:
    """What Lightning's automatic optimization does with one batch. It can be sent to another process."""

    module: LightningModule
    batch: Any
    optimizer: torch.optim.Optimizer
    autocast: torch.dtype | None

    def __call__(self) -> None:
        """Run it."""
        self.optimizer.zero_grad()
        with torch.autocast("cuda", self.autocast, enabled=self.autocast is not None):
            output = self.module.training_step(self.batch, 0)
        loss: Any = output["loss"] if isinstance(output, Mapping) else output
        loss.backward()
        self.optimizer.step()


class PeakcastCallback(Callback):
    """Guard a LightningModule while it is fitted: `Trainer(callbacks=[PeakcastCallback(server=url)])`.

    Args:
        module: name of the submodule to compile, such as "net"; default: the one that holds all parameters, if there is
            one, else the LightningModule, which must then call itself (`self(x)`) in `training_step`.
        options: those of `peakcast.guard`.
    """

    def __init__(self, module: str | None = None, **options: Any) -> None:
        self.guard: Guard | None = None
        self._module = module
        self._options = options
        self._step: LightningStep | None = None
        self._owner: LightningModule | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the guard in front of the module, and between Lightning and its optimizer step."""
        optimizer = trainer.optimizers[0] if len(trainer.optimizers) == 1 else None
        self.guard = guard(_guarded(pl_module, self._module), optimizer, **self._options)
        self._owner = pl_module
        original = pl_module.optimizer_step

        @functools.wraps(original)
        def rescued_step(*args: Any, **kwargs: Any) -> Any:
            if self.guard is None:
                return original(*args, **kwargs)
            return self.guard.step(lambda: original(*args, **kwargs), described_by=self._step)

        pl_module.optimizer_step = rescued_step  # type: ignore[method-assign]

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:  # noqa: ARG002  (Lightning calls it so)
        """Remember the step that is about to run."""
        if self.guard is None or self.guard.optimizer is None or not pl_module.automatic_optimization:
            return
        autocast = _MIXED.get(str(trainer.precision))
        self._step = LightningStep(pl_module, batch, self.guard.optimizer, autocast)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002  (the same)
        """Take the guard away; what it decided stays readable."""
        self._leave()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:  # noqa: ARG002  (the same)
        """Take the guard away."""
        self._leave()

    def _leave(self) -> None:
        if self._owner is not None:
            vars(self._owner).pop("optimizer_step", None)
            self._owner = None
        self._step = None
        if self.guard is not None:
            self.guard.close()


def _guarded(module: LightningModule, name: str | None) -> nn.Module:
    """Return the submodule to compile."""
    if name is not None:
        return module.get_submodule(name)
    own = {id(parameter) for parameter in module.parameters()}
    for child in module.children():
        if {id(parameter) for parameter in child.parameters()} == own:
            return child
    return module
