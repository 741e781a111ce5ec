"""Put a plan on a model, in place, and take it off again: the same way for capture, measuring and a user's run."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch._dynamo.external_utils import wrap_inline
from torch._functorch import config as functorch_config
from torch.utils.checkpoint import checkpoint

from peakcast.featurizer.plans import parse_plan

Undo = Callable[[], None]


def blocks(model: nn.Module) -> list[nn.Module]:
    """Return the repeated children of the model's longest ModuleList or Sequential.

    Raises:
        ValueError: if the model repeats nothing.
    """
    found: list[nn.Module] = []
    for container in model.modules():
        if not isinstance(container, nn.ModuleList | nn.Sequential):
            continue
        children = list(container.children())
        if not children:
            continue
        repeated, _ = Counter(map(type, children)).most_common(1)[0]
        alike = [child for child in children if type(child) is repeated and any(True for _ in child.parameters())]
        if len(alike) > max(len(found), 1):
            found = alike
    if not found:
        raise ValueError("the model has no repeated blocks (no ModuleList or Sequential of like children)")
    return found


def install(model: nn.Module, plan: str, *, backend: Any = "inductor") -> Undo:
    """Make `model` run under `plan` and return a function that restores it. State-dict keys stay as they were.

    Compiling happens at the first call; a budget holds from here to the undo, so compile in between.

    Raises:
        ValueError: if the plan is unknown, or needs repeated blocks the model does not have.
    """
    parsed = parse_plan(plan)
    if parsed.mode == "checkpoint":
        return _checkpoint(blocks(model))
    if parsed.compiler == "eager":
        return lambda: None
    targets = blocks(model) if parsed.compiler == "hybrid" else [model]
    # Modes are options of inductor alone; a dry run takes the graph as it is.
    options = {"mode": parsed.mode} if parsed.mode is not None and backend == "inductor" else {}
    budget_before = functorch_config.activation_memory_budget
    calls_before = [vars(target).get("_compiled_call_impl") for target in targets]
    if parsed.budget is not None:
        functorch_config.activation_memory_budget = parsed.budget
    for target in targets:
        _compile(target, backend, options)

    def undo() -> None:
        functorch_config.activation_memory_budget = budget_before
        for target, call in zip(targets, calls_before, strict=True):
            target._compiled_call_impl = call
            if call is None:
                del target._compiled_call_impl  # the class's own None shows again

    return undo


def _compile(target: nn.Module, backend: Any, options: dict[str, Any]) -> None:
    """Compile a module in place. A bare `nn.Sequential` or other layer of torch's own needs a frame around it.

    Dynamo passes over torch's frames: `torch.compile(module)` adds one for such modules, `module.compile()` does not
    and would compile nothing.
    """
    if type(target).forward.__module__.startswith("torch.nn."):
        framed = wrap_inline(target._call_impl)
        target._compiled_call_impl = torch.compile(framed, backend=backend, **options)
    else:
        target.compile(backend=backend, **options)


def _checkpoint(targets: list[nn.Module]) -> Undo:
    for target in targets:
        contexts = functools.partial(_contexts, target)
        target.forward = functools.partial(checkpoint, target.forward, use_reentrant=False, context_fn=contexts)

    def undo() -> None:
        for target in targets:
            del target.forward  # the instance attribute; the class's own shows again

    return undo


def _contexts(
    block: nn.Module,
) -> tuple[contextlib.AbstractContextManager[None], contextlib.AbstractContextManager[None]]:
    """Return what surrounds a block's forward, and its second run in the backward."""
    return contextlib.nullcontext(), _statistics_kept(block)


@contextlib.contextmanager
def _statistics_kept(block: nn.Module) -> Iterator[None]:
    """Keep batch norms from counting a batch again when it is only recomputed: eager counts it once."""
    norms = [each for each in block.modules() if isinstance(each, nn.modules.batchnorm._BatchNorm)]
    before = [(each.momentum, each._buffers.get("num_batches_tracked")) for each in norms]
    for each in norms:
        each.momentum = 0.0
        each._buffers["num_batches_tracked"] = None
    try:
        yield
    finally:
        for each, (momentum, count) in zip(norms, before, strict=True):
            each.momentum = momentum
            each._buffers["num_batches_tracked"] = count
