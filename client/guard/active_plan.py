"""The plan that a guard has put on a model, for the time of a call: handed to backends further inside."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass

from torch import fx

Compiling = Callable[[fx.GraphModule], contextlib.AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class ActivePlan:
    """A plan, and what is entered around each compile under it: the guard may still wait for its answer in there."""

    plan: str
    compiling: Compiling


_active: ContextVar[ActivePlan | None] = ContextVar("peakcast_active_plan", default=None)


@contextlib.contextmanager
def handed_over(plan: str, compiling: Compiling) -> Iterator[None]:
    """Make `plan` the one that `current` returns inside the block."""
    token = _active.set(ActivePlan(plan, compiling))
    try:
        yield
    finally:
        _active.reset(token)


def current() -> ActivePlan | None:
    """Return the plan of the guard whose model is being called, or None outside any."""
    return _active.get()
