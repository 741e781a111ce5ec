"""What a model's first call keeps in its attributes, taken back so that each plan meets the model as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

# Not an attribute's value: it was not there.
_MISSING: Any = object()


@contextlib.contextmanager
def kept_tensors_taken_back(model: nn.Module | None) -> Iterator[None]:
    """Take back, after the block, tensors that it put into plain attributes and dictionaries of the model's modules.

    What lies elsewhere stays: parameters, buffers, private names, lists, dictionaries of another kind.
    """
    modules = model.modules() if isinstance(model, nn.Module) else ()
    before = [(vars(module), _plain(vars(module))) for module in modules]
    try:
        yield
    finally:
        for attributes, earlier in before:
            _take_back(attributes, earlier)


def _plain(attributes: Mapping[Any, Any]) -> dict[str, Any]:
    """Return what has a public name; dictionaries as they are now."""
    public = {name: value for name, value in attributes.items() if _is_public(name)}
    return {name: dict(value) if type(value) is dict else value for name, value in public.items()}


def _take_back(attributes: dict[Any, Any], before: Mapping[str, Any]) -> None:
    """Put earlier tensors back, past whatever the module makes of setting an attribute."""
    for name, value in list(attributes.items()):
        if not _is_public(name):
            continue
        earlier = before.get(name, _MISSING)
        if isinstance(value, torch.Tensor):
            _restore(attributes, name, earlier)
        elif type(value) is dict and isinstance(earlier, dict):
            for key in [key for key, kept in value.items() if isinstance(kept, torch.Tensor)]:
                _restore(value, key, earlier.get(key, _MISSING))


def _restore(owner: dict[Any, Any], key: Any, earlier: Any) -> None:
    if earlier is _MISSING:
        del owner[key]
    else:
        owner[key] = earlier


def _is_public(name: object) -> bool:
    return isinstance(name, str) and not name.startswith("_")
