"""What this process has compiled before: such a call may run compiled code at once, with no compile before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

# Dynamo keeps compiled code by the function and the backend, and backends of equal plans are equal. Whether it fits
# another module, other sizes or other arguments is up to its guards; those on gradients never let it.
_compiled: WeakKeyDictionary[Callable[..., Any], set[tuple[str, bool]]] = WeakKeyDictionary()


def is_compiled_anew(model: nn.Module, plan: str, *, takes_gradients: bool) -> bool:
    """Tell whether calling the model under a plan is sure to be compiled first."""
    return (plan, takes_gradients) not in _compiled.get(_function(model), ())


def note(model: nn.Module, plan: str, *, takes_gradients: bool) -> None:
    """Note that the model is called under a plan."""
    _compiled.setdefault(_function(model), set()).add((plan, takes_gradients))


def _function(model: nn.Module) -> Callable[..., Any]:
    """Return the function that its class, or who wrapped it, calls it by."""
    return getattr(model.forward, "__func__", model.forward)
