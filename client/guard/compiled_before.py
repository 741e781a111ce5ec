"""What this process has compiled before: such a call may run compiled code at once, with no compile before it."""

from __future__ import annotations

# Dynamo keeps compiled code by code object and backend, and backends of equal plans are equal. After a graph break
# parts of a model are compiled by themselves, and another model that shares them runs them at once. So only the very
# first compile is sure; guards on gradients make it one of inference and one of training.
_compiled: set[tuple[str, bool]] = set()


def is_compiled_anew(plan: str, *, takes_gradients: bool) -> bool:
    """Tell whether a call under a plan is sure to be compiled first."""
    return (plan, takes_gradients) not in _compiled


def note(plan: str, *, takes_gradients: bool) -> None:
    """Note that a model is called under a plan."""
    _compiled.add((plan, takes_gradients))
