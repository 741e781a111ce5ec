"""Capture a workload at several batches, and join what comes of it to one graph with the batch as a symbol."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves, tree_map

from peakcast.featurizer.capture.isolated import CaptureError
from peakcast.featurizer.capture.limits import one_message
from peakcast.featurizer.capture.sizes import BATCH, BatchRange, one_more_size, sizes_to_capture
from peakcast.featurizer.capture.workload import Workload
from peakcast.featurizer.limits import DEFAULT_LIMITS
from peakcast.featurizer.polynomial_fit import UnlikeTracesError, degree, fitted
from peakcast.featurizer.polynomials import Symbol
from peakcast.featurizer.spec import GraphSpec

Factory = Callable[..., Any]
_TAKE_BATCH = "let the function that returns the workload take it, as in `def workload(batch=8)`"


def capture_at_sizes(capture: Callable[[Factory], GraphSpec], factory: Factory, batches: BatchRange) -> GraphSpec:
    """Capture at the workload's own batch and at others, and return the graph for all of them.

    A factory with a keyword `batch` is called with it; otherwise the leading dimension of the inputs is changed. Where
    the step does other things at other sizes, the graph is the one of its own batch, without symbols, and
    `captured_with.not_symbolic` says what differs.

    Args:
        capture: captures what a factory returns.

    Raises:
        ValueError: if the range does not hold the workload's own batch.
        CaptureError: if a capture fails, or the batch can be changed in neither way.
    """
    own = _keyword_default(factory)
    seen: list[int] = []

    def as_it_is() -> Any:
        made = factory()
        if own is None and isinstance(made, Workload):
            seen.append(batch_of(made))
        return made

    base = capture(as_it_is)
    symbol = batches.symbol(seen[-1] if own is None else own)
    specs = {symbol.hint: base}

    def look_at(size: int) -> None:
        other = functools.partial(factory, batch=size) if own is not None else lambda: _resized(factory(), size)
        try:
            specs[size] = capture(other)
        except Exception as error:
            told = f"captured at its own batch, {symbol.hint}, but not at {size}: {one_message(error)}"
            hint = "" if own is not None else f". If more than the inputs depends on the batch, {_TAKE_BATCH}"
            raise CaptureError(told + hint, getattr(error, "details", "")) from error

    def joined(symbol: Symbol) -> GraphSpec:
        sizes = sizes_to_capture(symbol)
        for size in sizes:
            if size not in specs:
                look_at(size)
        found = fitted({size: specs[size] for size in sizes}, BATCH, symbol)
        more = one_more_size(symbol, sizes) if degree(found) > 1 else None
        if more is not None:
            # A parabola goes through any three points: a fourth one says whether it is one.
            sizes.append(more)
            look_at(more)
            found = fitted({size: specs[size] for size in sizes}, BATCH, symbol)
        at = ",".join(map(str, sorted(sizes)))
        return replace(found, captured_with={**found.captured_with, f"captured_{BATCH}": at})

    why = ""
    for tried in batches.narrower(symbol):
        try:
            return joined(tried)
        except UnlikeTracesError as error:
            why = str(error)[: DEFAULT_LIMITS.max_name_characters]
    return replace(base, captured_with={**base.captured_with, "not_symbolic": why})


def _keyword_default(factory: Factory) -> int | None:
    """Return the default of the factory's keyword `batch`; None: it has no such keyword.

    Raises:
        CaptureError: if it has one, but no default that is a size.
    """
    try:
        parameter = inspect.signature(factory).parameters.get(BATCH)
    except (TypeError, ValueError):  # a callable without a signature
        return None
    if parameter is None or parameter.kind not in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD):
        return None
    if type(parameter.default) is not int or parameter.default < 1:
        problem = "no default" if parameter.default is parameter.empty else f"the default {parameter.default!r}"
        raise CaptureError(f"the workload's keyword `batch` has {problem}; it needs its own size there: `batch=8`")
    return parameter.default


def batch_of(workload: Workload) -> int:
    """Return the leading dimension of the first input tensor that has one.

    Raises:
        CaptureError: if there is none, or the batch is inside a `step`.
    """
    if workload.step is not None:
        raise CaptureError(f"the batch of Workload(step=...) is inside the step: {_TAKE_BATCH}")
    for leaf in tree_leaves(workload.inputs):
        if isinstance(leaf, torch.Tensor) and leaf.dim() and leaf.shape[0]:
            return int(leaf.shape[0])
    raise CaptureError(f"no input tensor has a leading dimension that could be the batch: {_TAKE_BATCH}")


def _resized(workload: Any, size: int) -> Any:
    if isinstance(workload, Workload):  # anything else is told as it is at the workload's own batch
        return replace(workload, inputs=resized_inputs(workload.inputs, batch_of(workload), size))
    return workload


def resized_inputs(inputs: Any, own: int, size: int) -> Any:
    """Return the inputs with the leading dimension of each tensor that has it changed from `own` to `size`.

    One tensor that stands there twice stays one; the order of dimensions in memory is kept.
    """
    made: dict[int, torch.Tensor] = {}

    def change(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not leaf.dim() or leaf.shape[0] != own:
            return leaf
        if type(leaf) not in (torch.Tensor, FakeTensor) or leaf.layout != torch.strided:
            raise CaptureError(f"the batch of an input of type {type(leaf).__name__} cannot be changed: {_TAKE_BATCH}")
        if id(leaf) not in made:
            made[id(leaf)] = _like(leaf, size)
        return made[id(leaf)]

    return tree_map(change, inputs)


def _like(tensor: torch.Tensor, size: int) -> torch.Tensor:
    own, *rest = tensor.shape
    # With one row its stride says nothing: the rows follow each other.
    extent = max((length * step for length, step in zip(rest, tensor.stride()[1:], strict=True)), default=1)
    rows = tensor.stride(0) if own > 1 else extent
    strides = [rows, *(step // own * size if step > rows else step for step in tensor.stride()[1:])]
    # Of a real tensor a shape is enough: the capture puts a fake one in its place. A fake one is in place already, and
    # one that had to be put there would be held beside it.
    device = tensor.device if isinstance(tensor, FakeTensor) else torch.device("meta")
    shape = torch.empty_strided((size, *rest), strides, dtype=tensor.dtype, device=device)
    return shape.requires_grad_(tensor.requires_grad)
