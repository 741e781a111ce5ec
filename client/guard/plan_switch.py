"""Switch a model between plans, in place: one gate in front, and behind it the plan in use."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from peakcast.featurizer.capture.plans import Undo, blocks, install
from peakcast.featurizer.plans import Plan, parse_plan

_NEEDS_BLOCKS = ("hybrid", "eager:checkpoint")


class PlanSwitch:
    """Run a model under one plan after the other. State-dict keys stay as they are.

    What was compiled under a plan is used again when the plan comes back: the backends of equal plans are equal, and
    Dynamo keeps compiled code by backend.

    Args:
        model: calls of it go through `gate` from now on.
        gate: called as the model is; it ends in `call`.
        backend: gives the Dynamo backend of a plan that compiles.
    """

    def __init__(self, model: nn.Module, gate: Callable[..., Any], backend: Callable[[Plan], Any]) -> None:
        self.plan = "eager"
        self._model = model
        self._gate = gate
        self._backend = backend
        self._before = vars(model).get("_compiled_call_impl")
        self._undo: Undo = _nothing
        self.call: Callable[..., Any] = model._call_impl
        self._open_gate()

    def to(self, plan: str) -> None:
        """Put a plan on the model.

        Raises:
            ValueError: if the model has no blocks, and the plan needs them.
        """
        if plan == self.plan:
            return
        self._take_off()
        parsed = parse_plan(plan)
        if parsed.compiled:
            # Mode and budget are the backend's: a budget set for the whole process would reach other compiles.
            self._undo = install(self._model, parsed.compiler, backend=self._backend(parsed))
        else:
            self._undo = install(self._model, plan)
        self.plan = plan
        self.call = vars(self._model).get("_compiled_call_impl") or self._model._call_impl
        self._open_gate()

    @contextlib.contextmanager
    def bare(self) -> Iterator[None]:
        """Show the model as its user made it, for the time of the block."""
        plan = self.plan
        self._take_off()
        self._set(self._before)
        try:
            yield
        finally:
            self._set(None)
            self._open_gate()
            self.to(plan)

    def close(self) -> None:
        """Leave the model as it was found."""
        self._take_off()
        self._set(self._before)

    def _take_off(self) -> None:
        self._set(None)
        self._undo()
        self._undo = _nothing
        self.plan = "eager"
        self.call = self._model._call_impl

    def _open_gate(self) -> None:
        self._set(self._gate)

    def _set(self, call: Callable[..., Any] | None) -> None:
        self._model._compiled_call_impl = call
        if call is None:
            del self._model._compiled_call_impl  # the class's own None shows again


def possible_plans(model: nn.Module, plans: tuple[str, ...]) -> tuple[str, ...]:
    """Return the plans that this model has the blocks for.

    Raises:
        ValueError: if none is left.
    """
    try:
        blocks(model)
    except ValueError as error:
        left = tuple(plan for plan in plans if plan not in _NEEDS_BLOCKS)
        if not left:
            raise ValueError(f"none of the plans {', '.join(plans)} can be put on the model: {error}") from None
        return left
    return plans


def _nothing() -> None: ...
