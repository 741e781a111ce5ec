"""The signature of a call: what makes the compiler, or the peak, another one. Cheap enough for every step."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

_SCALARS = (int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.device)


@dataclass(frozen=True, slots=True)
class Signature:
    """A call's sizes, and everything about it that is no size."""

    sizes: tuple[tuple[int, ...], ...]  # of the tensors, in order
    structure: Hashable  # containers, dtypes, values of scalars, autocast, how many parameters learn
    takes_gradients: bool
    is_training: bool

    def covers(self, other: Signature) -> bool:
        """Tell whether what fits for this call fits for `other`: the same call, in no dimension larger.

        A call without gradients needs no more than the same call with them.
        """
        if self.structure != other.structure:
            return False
        if other.takes_gradients and (not self.takes_gradients or self.is_training != other.is_training):
            return False
        return all(
            len(mine) == len(theirs) and all(m >= t for m, t in zip(mine, theirs, strict=True))
            for mine, theirs in zip(self.sizes, other.sizes, strict=True)
        )


def signature_of(model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Signature:
    """Return the signature of calling `model(*args, **kwargs)` here and now."""
    leaves, tree = tree_flatten((tuple(args), dict(kwargs)))
    kinds: list[Hashable] = []
    sizes = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            kinds.append((leaf.dtype, leaf.device.type, leaf.dim(), leaf.is_contiguous()))
            sizes.append(tuple(leaf.shape))
        else:
            # Other objects count by type: their contents may not be comparable, or change in each step.
            kinds.append((type(leaf), leaf if isinstance(leaf, _SCALARS) else None))
    learning = sum(parameter.requires_grad for parameter in model.parameters())
    return Signature(
        sizes=tuple(sizes),
        structure=(tuple(kinds), str(tree), _autocast(), learning),
        takes_gradients=torch.is_grad_enabled() and learning > 0,
        is_training=model.training,
    )


def autocast_dtype() -> torch.dtype | None:
    """Return the dtype of the autocast that is on, of the card's or, on hosts without one, the CPU's."""
    for device_type in ("cuda", "cpu"):
        if torch.is_autocast_enabled(device_type):
            return torch.get_autocast_dtype(device_type)
    return None


def _autocast() -> tuple[bool, ...] | tuple[Any, ...]:
    return tuple(
        torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else None
        for device_type in ("cuda", "cpu")
    )
