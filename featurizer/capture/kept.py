"""What a model's first call keeps in its attributes, taken back so that each plan meets the model as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

# Not an attribute's value: it was not there.
_MISSING: Any = object()


@contextlib.contextmanager
def kept_tensors_taken_back(model: nn.Module | None) -> Iterator[None]:
    """Take back, after the block, tensors that it put into plain attributes and dictionaries of the model's modules.

    Parameters, buffers and whatever a module keeps under a private name stay.
    """
    before = [(module, _plain(module)) for module in model.modules()] if model is not None else []
    try:
        yield
    finally:
        for module, attributes in before:
            _take_back(module, attributes)


def _plain(module: nn.Module) -> dict[str, Any]:
    """Return the public attributes of a module that are no parts of it; dictionaries as they are now."""
    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    return {name: dict(value) if type(value) is dict else value for name, value in public.items()}


def _take_back(module: nn.Module, before: dict[str, Any]) -> None:
    for name, value in list(vars(module).items()):
        if name.startswith("_"):
            continue
        earlier = before.get(name, _MISSING)
        if isinstance(value, torch.Tensor) and value is not earlier:
            if earlier is _MISSING:
                delattr(module, name)
            else:
                setattr(module, name, earlier)
        elif type(value) is dict and isinstance(earlier, dict):
            for key in [key for key, kept in value.items() if isinstance(kept, torch.Tensor)]:
                if key not in earlier:
                    del value[key]
                elif value[key] is not earlier[key]:
                    value[key] = earlier[key]
