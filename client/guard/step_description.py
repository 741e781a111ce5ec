"""What one step is, as a workload that can travel to a capturing process: the user's own step, or its likely shape."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from peakcast.client.guard.signature import autocast_dtype
from peakcast.featurizer.capture.ship import pack
from peakcast.featurizer.capture.workload import Workload

# A step's code and shapes take kilobytes. A closure that holds a whole dataset is not worth sending.
MOST_PACKED_BYTES = 64 << 20

# Filled in the capturing process, and read there: what was assumed about the step that is captured.
assumed: list[str] = []

NO_LOSS = "the model returns no scalar, so the loss is assumed to be a mean of its outputs"
NO_OPTIMIZER = "no optimizer is known, so its state and its temporaries are not counted"
ONLY_FORWARD = "the step itself cannot be sent, so it is assumed to be forward, loss, backward and optimizer"


class CannotDescribeError(RuntimeError):
    """The step cannot travel to another process."""


@dataclass(frozen=True, slots=True)
class Described:
    """A packed workload, and in words what is not known of the step."""

    packed: bytes
    assumptions: tuple[str, ...] = ()
    is_whole_step: bool = False


@dataclass(frozen=True, slots=True)
class UnderAutocast:
    """A step that is run inside an autocast, as it is where the step is sent from."""

    step: Callable[[], Any]
    dtype: torch.dtype

    def __call__(self) -> Any:
        """Run the step. On the capturing host "cuda" is there, or stands for what is."""
        with torch.autocast("cuda", self.dtype):
            return self.step()


def describe(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    optimizer: torch.optim.Optimizer | None,
    step: Callable[[], Any] | None,
    takes_gradients: bool,
) -> Described:
    """Pack the whole step if it can be sent, else the standard loop around this call of the model.

    Raises:
        CannotDescribeError: if not even the model and its inputs can be sent.
    """
    assumptions: tuple[str, ...] = ()
    if step is not None and takes_gradients:
        whole = Workload(step=step, model=model, optimizer=optimizer)
        try:
            return Described(_packed(whole), () if optimizer is not None else (NO_OPTIMIZER,), is_whole_step=True)
        except Exception:  # noqa: BLE001  (whatever pickling raises: a lock, a generator, a logger)
            assumptions = (ONLY_FORWARD,)
    workload = Workload(model, bound_inputs(model, args, kwargs), autocast=autocast_dtype())
    if takes_gradients:
        if optimizer is None:
            assumptions += (NO_OPTIMIZER,)
            learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
            optimizer = torch.optim.SGD(learning, lr=0.0)  # keeps no state and makes no temporaries
        workload.loss, workload.optimizer = likely_loss, optimizer
    try:
        return Described(_packed(workload), assumptions)
    except Exception as error:
        raise CannotDescribeError(f"{type(error).__name__}: {error}") from error


def modules_of(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> tuple[str, ...]:
    """Return the names of the modules that unpacking a step of this model will import, but for torch's own."""
    names = dict.fromkeys(type(part).__module__ for part in (*model.modules(), optimizer))
    return tuple(name for name in names if name.split(".")[0] not in ("torch", "builtins", "__main__"))


def bound_inputs(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the arguments of a call in the form that `Workload` takes: a tuple, or a mapping.

    Raises:
        CannotDescribeError: if positional and keyword arguments cannot be joined.
    """
    if not kwargs:
        return tuple(args)
    if not args:
        return dict(kwargs)
    try:
        parameters = list(inspect.signature(model.forward).parameters.values())
    except (TypeError, ValueError) as error:
        raise CannotDescribeError(f"the signature of {type(model).__name__}.forward cannot be read: {error}") from None
    named = [p.name for p in parameters if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    if len(named) < len(args):
        raise CannotDescribeError(f"{type(model).__name__} is called with positional arguments that have no name")
    return {**dict(zip(named, args, strict=False)), **kwargs}


def likely_loss(output: Any) -> torch.Tensor:
    """Return the scalar that the model made, or a mean of its outputs. Runs in the capturing process."""
    candidates = [getattr(output, "loss", None), output.get("loss") if isinstance(output, Mapping) else None, output]
    if isinstance(output, tuple | list) and output:
        candidates.append(output[0])
    for candidate in candidates:
        if isinstance(candidate, torch.Tensor) and candidate.numel() == 1 and candidate.requires_grad:
            return candidate
    if NO_LOSS not in assumed:
        assumed.append(NO_LOSS)
    learning = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if not learning:
        raise ValueError(f"no output of the model takes gradients (it returned {type(output).__name__})")
    return torch.stack([leaf.float().mean() for leaf in learning]).sum()


def _packed(workload: Workload) -> bytes:
    return pack(workload, most_bytes=MOST_PACKED_BYTES)
