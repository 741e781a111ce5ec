"""Fake tensors for a whole step: values code asks for, optimizers that look at types, shapes that depend on data."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.optim import optimizer as optimizers

aten = torch.ops.aten
_HOLDS = "_peakcast_holds"  # the answer to a bool that is known
_DRAWN = "_peakcast_drawn"  # a scalar that a random generator drew


class Guesses:
    """Answers what code asks about the data, and counts the answers that may turn out otherwise."""

    def __init__(self) -> None:
        self.conditions = 0
        self.integers = 0
        self.sizes = 0
        self.in_optimizer = False

    def as_text(self) -> dict[str, str]:
        """Return the counts as `captured_with` entries; what was never guessed is left out."""
        counts = {
            "guessed_conditions": self.conditions,
            "guessed_integers": self.integers,
            "guessed_sizes": self.sizes,
        }
        return {name: str(count) for name, count in counts.items() if count}

    def scalar(self, func: Any, tensor: torch.Tensor) -> Any:
        """Answer `.item()`: zero, and false unless it asks whether all of something holds, or a count is full.

        A GradScaler then finds no overflow and takes its step, LayerDrop drops no layer, a mask masks nothing.
        What an optimizer reads is its step counter or a norm to compute with: that decides nothing, and is not zero.
        A float is for a log or a factor, hardly ever for a size or a branch: it is no guess.
        """
        if tensor.dtype.is_floating_point:
            return 1.0 if self.in_optimizer else 0.0
        if tensor.dtype is torch.bool:
            known = getattr(tensor, _HOLDS, None)
            self.conditions += known is None
            return bool(known)
        self.integers += 1
        return 0

    def all_of(self, func: Any, tensor: torch.Tensor) -> torch.Tensor:
        """Mark the result of `all()`, for `scalar`."""
        return _known(tensor, holds=True)

    def any_of(self, func: Any, tensor: torch.Tensor) -> torch.Tensor:
        """Mark the result of `any()`, for `scalar`."""
        return _known(tensor, holds=False)

    def equal(self, func: Any, tensor: torch.Tensor, other: Any) -> Any:
        """Mark a scalar that was compared for equality (`mask.sum() == mask.numel()`), for `scalar`."""
        if tensor.dim() or (isinstance(other, torch.Tensor) and other.dim()):
            return NotImplemented
        return _known(tensor, holds=True)

    def drawn(self, func: Any, size: Any, **options: Any) -> Any:
        """Mark a scalar that is drawn (`torch.rand([])`), for `compared`."""
        if size:
            return NotImplemented
        result = torch.empty((), **options)
        setattr(result, _DRAWN, True)
        return result

    def compared(self, func: Any, tensor: torch.Tensor, other: Any) -> Any:
        """Mark a drawn scalar that was compared with a probability, for `scalar`: the layer is not dropped."""
        if tensor.dim() or (isinstance(other, torch.Tensor) and other.dim()):
            return NotImplemented
        is_draw = getattr(tensor, _DRAWN, False) or getattr(other, _DRAWN, False)
        return _known(tensor, holds=False) if is_draw else NotImplemented

    def nonzero(self, func: Any, tensor: torch.Tensor) -> torch.Tensor:
        """Answer `nonzero` as if every element were: the upper bound."""
        self.sizes += 1
        return tensor.new_empty((tensor.numel(), tensor.dim()), dtype=torch.int64)

    def masked_select(self, func: Any, tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Answer `masked_select` as if the mask kept everything."""
        self.sizes += 1
        return tensor.new_empty((torch.broadcast_shapes(tensor.shape, mask.shape).numel(),))


def _known(tensor: torch.Tensor, *, holds: bool) -> torch.Tensor:
    # Not `new_empty`: of a constant it would be a constant with a value of its own.
    result = torch.empty((), dtype=torch.bool, device=tensor.device)
    setattr(result, _HOLDS, holds)
    return result


def new_fake_mode() -> FakeTensorMode:
    """Return a fake mode in which tensors made elsewhere may be used too."""
    # No unbacked symbols: no later size could be made of one. What depends on data is guessed instead.
    shapes = ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=shapes)
    # A cached result is a new tensor: what `Guesses` noted on the first one would be lost.
    mode.cache_enabled = False
    return mode


@contextlib.contextmanager
def whole_steps_on_fake_tensors() -> Iterator[Guesses]:
    """Let a whole training step run: data-dependent results are guessed, fake parameters taken for real ones."""
    guesses = Guesses()
    table = fake_impls.op_implementations_dict
    answers: dict[Any, Callable[..., Any]] = {
        aten._local_scalar_dense.default: guesses.scalar,
        aten.all.default: guesses.all_of,
        aten.any.default: guesses.any_of,
        aten.rand.default: guesses.drawn,
        aten.eq.Scalar: guesses.equal,
        aten.eq.Tensor: guesses.equal,
        aten.nonzero.default: guesses.nonzero,
        aten.masked_select.default: guesses.masked_select,
    }
    for name in ("lt", "gt", "le", "ge"):
        packet = getattr(aten, name)
        answers |= {packet.Scalar: guesses.compared, packet.Tensor: guesses.compared}
    originals = {func: table.get(func) for func in answers}
    for func, answer in answers.items():
        table[func] = _or_guess(originals[func], answer)
    # "foreach" is the default only for tensor types that torch.optim knows; a fake parameter stands for a plain one.
    optimizers._foreach_supported_types.append(FakeTensor)
    # A step counter is made on the default device, which is the CPU where a real step runs.
    counters_on_cpu = torch.device("cpu")

    def enter_optimizer(*_: Any) -> None:
        guesses.in_optimizer = True
        counters_on_cpu.__enter__()

    def leave_optimizer(*_: Any) -> None:
        guesses.in_optimizer = False
        counters_on_cpu.__exit__(None, None, None)

    hooks = (
        optimizers.register_optimizer_step_pre_hook(enter_optimizer),
        optimizers.register_optimizer_step_post_hook(leave_optimizer),
    )
    try:
        yield guesses
    finally:
        for hook in hooks:
            hook.remove()
        if guesses.in_optimizer:  # the step failed inside
            leave_optimizer()
        optimizers._foreach_supported_types.remove(FakeTensor)
        for func, original in originals.items():
            if original is None:
                del table[func]
            else:
                table[func] = original


@contextlib.contextmanager
def not_looking_like_tracing() -> Iterator[None]:
    """Hide fake tensors from libraries that run other code when they are traced.

    transformers builds an explicit [B, 1, T, T] attention mask under tracing, and none when it really runs eagerly.
    """
    module: Any = sys.modules.get("transformers.utils.import_utils")
    original = getattr(module, "is_fake_tensor", None)
    if original is None:
        yield
        return
    module.is_fake_tensor = lambda _: False
    try:
        yield
    finally:
        module.is_fake_tensor = original


def _or_guess(original: Callable[..., Any] | None, guess: Callable[..., Any]) -> Callable[..., Any]:
    def implementation(fake_mode: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        if original is not None:
            with contextlib.suppress(DataDependentOutputException, DynamicOutputShapeException):
                return original(fake_mode, func, *args, **kwargs)
        with fake_mode:
            return guess(func, *args, **kwargs)

    return implementation
