"""The plan that a guard has decided on, for the time of a call: handed to backends further inside."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

_active: ContextVar[str | None] = ContextVar("peakcast_active_plan", default=None)


@contextlib.contextmanager
def handed_over(plan: str) -> Iterator[None]:
    """Make `plan` the one that `current` returns inside the block."""
    token = _active.set(plan)
    try:
        yield
    finally:
        _active.reset(token)


def current() -> str | None:
    """Return the plan of the guard whose model is being called, or None outside any."""
    return _active.get()
