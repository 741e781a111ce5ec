"""Turn a case into a workload: model, batch, loss, optimizer, and the loop around them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from peakcast.featurizer.capture.autocast import cuda_autocast
from peakcast.featurizer.capture.workload import Workload
from peakcast.training.zoo.case import ACCUMULATION_STEPS, Case
from peakcast.training.zoo.catalogue import entry
from peakcast.training.zoo.trained import train_only

_LEARNING_RATES = {"adamw": 1e-4, "sgd": 1e-3, "sgd_momentum": 1e-3, "adafactor": 1e-3}


def build(case: Case, *, place: Callable[[nn.Module], nn.Module] | None = None) -> Workload:
    """Build the case on the default device, which may be a real GPU, the CPU, or fake tensors of either.

    `place` is applied to the model before the batch and the optimizer are made, e.g. to move it to a GPU.

    Raises:
        KeyError: if the zoo has no such model.
    """
    # As all labels were measured: fp32 products run as TF32, which also decides what inductor pads.
    torch.set_float32_matmul_precision("high")
    known = entry(case.model)
    model = known.make()
    model.train(case.task == "training")
    if place is not None:
        model = place(model)
    if case.trained != "all":
        model = train_only(model, case.trained)
    if case.parallel != "none":
        from peakcast.training.zoo.parallel import spread

        model = spread(model, case.parallel)
    optimizer = None if case.optimizer is None else make_optimizer(case.optimizer, case.implementation, _trained(model))
    inputs, loss = known.feed(case.batch)
    dtype = None if case.autocast == "none" else torch.bfloat16
    whole = Workload(model=model, inputs=inputs, loss=loss, optimizer=optimizer, autocast=dtype)
    if case.loop == "standard":
        return whole
    assert optimizer is not None
    step = _clipped(whole) if case.loop == "clip" else _accumulated(whole, known.feed(case.batch))
    return Workload(model=model, optimizer=optimizer, step=step)


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def make_optimizer(name: str, implementation: str | None, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Make an optimizer with its implementation said outright.

    PyTorch's own choice (foreach on a GPU) looks at real tensors and would differ under fake ones.
    """
    rate = _LEARNING_RATES[name]
    foreach, fused = implementation in (None, "foreach"), implementation == "fused"
    if name == "adafactor":
        if fused:
            raise ValueError("Adafactor has no fused implementation: use foreach or loop")
        return torch.optim.Adafactor(parameters, rate, foreach=foreach)
    if name == "adamw":
        return torch.optim.AdamW(parameters, rate, foreach=foreach, fused=fused)
    momentum = 0.9 if name == "sgd_momentum" else 0.0
    return torch.optim.SGD(parameters, rate, momentum=momentum, foreach=foreach, fused=fused)


def _autocast(dtype: torch.dtype | None) -> contextlib.AbstractContextManager[Any]:
    """Autocast for CUDA, with and without a GPU: without one, `torch.autocast("cuda")` would turn itself off."""
    if dtype is None:
        return contextlib.nullcontext()
    return torch.autocast("cuda", dtype) if torch.cuda.is_available() else cuda_autocast(dtype)


def _loss_of(part: Workload) -> Any:
    """Compute the loss in a frame of its own, so that the model's output is dropped before the backward."""
    output = part.call_model()
    return output["loss"] if part.loss is None else part.loss(output)


def _clipped(whole: Workload) -> Callable[[], None]:
    """Clip the gradients' norm before the optimizer step."""
    model, optimizer = whole.model, whole.optimizer
    assert model is not None
    assert optimizer is not None

    def step() -> None:
        with _autocast(whole.autocast):
            loss = _loss_of(whole)
        loss.backward()
        # foreach outright, for the reason that `make_optimizer` gives
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _accumulated(whole: Workload, second: tuple[Any, Any]) -> Callable[[], None]:
    """Add up the gradients of micro-batches before the optimizer step."""
    optimizer = whole.optimizer
    assert optimizer is not None
    parts = (whole, Workload(model=whole.model, inputs=second[0], loss=second[1], optimizer=optimizer))
    assert len(parts) == ACCUMULATION_STEPS

    def step() -> None:
        for part in parts:
            with _autocast(whole.autocast):
                loss = _loss_of(part) / ACCUMULATION_STEPS
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
