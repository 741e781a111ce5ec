"""The guard under `transformers.Trainer`: a callback asks and acts; `guard_trainer` rescues steps as well."""

from __future__ import annotations

import functools
from typing import Any

from transformers import Trainer, TrainerCallback

from peakcast.client.guard.guard import Guard, guard


class PeakcastCallback(TrainerCallback):
    """Guard the model for the time of a training: `Trainer(..., callbacks=[PeakcastCallback(server=url)])`.

    The Trainer's step cannot be sent to a capturing process, so the standard loop around the model's call stands for
    it: forward, the model's own loss, backward, optimizer.

    Args:
        options: those of `peakcast.guard`.
    """

    def __init__(self, **options: Any) -> None:
        self.guard: Guard | None = None
        self._options = options

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002  (its names)
        """Put the guard in front of the model."""
        self.guard = guard(kwargs["model"], kwargs.get("optimizer"), **self._options)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002  (the same)
        """Take it away; what it decided stays readable."""
        if self.guard is not None:
            self.guard.close()


def guard_trainer(trainer: Trainer, **options: Any) -> PeakcastCallback:
    """Guard a Trainer's model, and rescue its training steps that run out of memory.

    Args:
        trainer: before `train()`.
        options: those of `peakcast.guard`.

    Returns:
        The callback, whose `guard` is there while the training runs.
    """
    callback = PeakcastCallback(**options)
    trainer.add_callback(callback)
    training_step = trainer.training_step

    @functools.wraps(training_step)
    def rescued_step(*args: Any, **kwargs: Any) -> Any:
        if callback.guard is None:
            return training_step(*args, **kwargs)
        return callback.guard.step(lambda: training_step(*args, **kwargs), described_by=None)

    trainer.training_step = rescued_step  # type: ignore[method-assign]
    return callback
