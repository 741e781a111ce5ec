"""What a training step changes, recorded before it and put back after it failed, so that it can run again.

Recording must not raise the peak of the step that it protects. So gradients, optimizer state and inputs are held by
weak reference with their version counters: a step that drops its gradients first must find them dropped. What the step
then changed in place cannot be put back, unless copies on the host were asked for (`keep="host"`).
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import torch
from torch import nn

from peakcast.client.rescue.buffers import BufferCopies, BufferCopy
from peakcast.client.rescue.rng import RngState
from peakcast.client.rescue.step_record import OptimizerRecord, TensorRecord, updates_show

Keep = Literal["references", "host"]

# A longer or deeper container in a step's closure is a data set, no batch.
_LONGEST_CONTAINER: Final = 64
_DEEPEST_CONTAINER: Final = 4


class StepRecorder:
    """Record the state before each step of one model and optimizer.

    Args:
        model: its parameters, gradients and buffers are recorded; None: the optimizer's parameters alone.
        optimizer: its parameters, state and groups are recorded.
        keep: "references" costs next to nothing; "host" copies parameters, gradients and optimizer state to the host
            before each step, and can put back whatever a step did to them.

    Raises:
        ValueError: for another `keep`.
    """

    def __init__(
        self, model: nn.Module | None, optimizer: torch.optim.Optimizer | None, *, keep: Keep = "references"
    ) -> None:
        if keep not in get_args(Keep):
            raise ValueError(f"keep must be 'references' or 'host', got {keep!r}")
        self.model = model
        # A wrapper such as accelerate's has the real one inside, and that is the one that is stepped.
        self.optimizer: torch.optim.Optimizer | None = getattr(optimizer, "optimizer", optimizer)
        self.copies = keep == "host"
        self.updates_begun = 0
        self.parameters = dict(_parameters(model, self.optimizer))
        self._buffers = BufferCopies(model)
        self._hook: Any = None
        if self.optimizer is not None and not updates_show(self.optimizer):
            self._hook = self.optimizer.register_step_pre_hook(self._begin_update)

    def record(self, step: Callable[..., Any]) -> StepStart:
        """Record everything now, right before `step`, whose closure holds its inputs."""
        leaves = list(_leaves(step))
        copy = self.copies
        gradients = (parameter.grad for parameter in self.parameters.values())
        inputs = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        return StepStart(
            recorder=self,
            rng=RngState(leaf for leaf in leaves if isinstance(leaf, torch.Generator)),
            updates_begun=self.updates_begun,
            parameters=[TensorRecord(parameter, copy=copy) for parameter in self.parameters.values()],
            gradients=[None if gradient is None else TensorRecord(gradient, copy=copy) for gradient in gradients],
            inputs=[(tuple(leaf.shape), TensorRecord(leaf, copy=False)) for leaf in inputs],
            buffers=self._buffers.record(),
            optimizer=None if self.optimizer is None else OptimizerRecord(self.optimizer, copy=copy),
        )

    def close(self) -> None:
        """Take the hook off the optimizer."""
        if self._hook is not None:
            self._hook.remove()

    def _begin_update(self, *_: Any) -> None:
        self.updates_begun += 1

    def replaced(self) -> bool:
        """Say whether the model or the optimizer has other parameters than when this was made."""
        now = [id(parameter) for _, parameter in _parameters(self.model, self.optimizer)]
        return now != [id(parameter) for parameter in self.parameters.values()]


@dataclass(frozen=True, slots=True)
class StepStart:
    """The state before one step."""

    recorder: StepRecorder
    rng: RngState
    updates_begun: int
    parameters: list[TensorRecord]
    gradients: list[TensorRecord | None]
    inputs: list[tuple[tuple[int, ...], TensorRecord]]
    buffers: list[BufferCopy]
    optimizer: OptimizerRecord | None

    def put_back(self) -> list[str]:
        """Put back what the step changed, apart from the random generators; return the names of what could not be.

        A gradient or an input that the step itself dropped stays dropped: it will drop it again.
        """
        # Before the optimizer's record drops the entries that were made since: they count.
        lost = self._begun_update()
        if self.recorder.replaced():
            lost.append("which parameters there are")
        named = self.recorder.parameters.items()
        for (name, parameter), record, gradient in zip(named, self.parameters, self.gradients, strict=True):
            if record.put_back() is None:
                lost.append(name)
            dropped = gradient is None or gradient.gone
            parameter.grad = None if dropped else gradient.put_back()  # type: ignore[union-attr]
            if parameter.grad is None and not dropped:
                lost.append(f"the gradient of {name}")
        for shape, record in self.inputs:
            if not record.gone and record.put_back() is None:
                lost.append(f"an input of shape {shape}")
        if self.optimizer is not None:
            lost.extend(self.optimizer.put_back())
        for each in self.buffers:
            each.put_back()
        self._reset_scalers()
        return lost

    def _begun_update(self) -> list[str]:
        """Name the optimizer where it has begun an update that version counters do not show and no copy undoes."""
        begun = self.recorder.updates_begun > self.updates_begun
        if self.recorder.copies or not (begun or (self.optimizer is not None and self.optimizer.counted())):
            return []
        return [f"the parameters, which {type(self.recorder.optimizer).__name__} had begun to update"]

    def _reset_scalers(self) -> None:
        """Make gradient scalers forget that they unscaled this optimizer's gradients: new ones will come scaled."""
        for each in gc.get_objects():
            # Not isinstance: it would ask lazy proxies for their class.
            if issubclass(type(each), torch.amp.GradScaler):
                each._per_optimizer_states.pop(id(self.recorder.optimizer), None)


def _parameters(model: nn.Module | None, optimizer: torch.optim.Optimizer | None) -> Iterator[tuple[str, torch.Tensor]]:
    """Walk the parameters, each once: the model's by name, then those that only the optimizer knows."""
    seen: set[int] = set()
    for name, parameter in model.named_parameters() if model is not None else ():
        seen.add(id(parameter))
        yield name, parameter
    for group_number, group in enumerate(optimizer.param_groups if optimizer is not None else ()):
        for number, parameter in enumerate(group["params"]):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield f"parameter {number} of group {group_number}", parameter


def _leaves(step: Any) -> Iterator[Any]:
    """Walk what a step's closure, defaults and bound arguments hold, containers of a batch's size opened."""
    if isinstance(step, functools.partial):
        yield from _leaves(step.func)
        yield from _opened([*step.args, *step.keywords.values()], 0)
        return
    function = getattr(step, "__func__", step)
    for cell in getattr(function, "__closure__", None) or ():
        try:
            yield from _opened(cell.cell_contents, 0)
        except ValueError:  # named in the step, not yet assigned
            continue
    yield from _opened(getattr(function, "__defaults__", None) or (), 0)
    yield from _opened(getattr(function, "__kwdefaults__", None) or {}, 0)


def _opened(value: Any, depth: int) -> Iterator[Any]:
    container = isinstance(value, Mapping | Sequence) and not isinstance(value, str | bytes)
    if not container:
        yield value
    elif depth < _DEEPEST_CONTAINER and len(value) <= _LONGEST_CONTAINER:
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _opened(each, depth + 1)
