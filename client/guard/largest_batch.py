"""The largest batch that fits, when the one asked for does not: a line through two sizes, checked where it meets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

# Bytes are nearly linear in the batch, so two points on the line are usually enough. Where they are a staircase, of the
# allocator's segments, halving follows.
_ON_THE_LINE = 2
_MOST_CHECKS = 6


def batch_of(inputs: Any) -> int | None:
    """Return the first dimension that all tensors of the inputs share, or None if they share none above 1."""
    sizes = {leaf.shape[0] if leaf.dim() else 0 for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor)}
    return sizes.pop() if len(sizes) == 1 and max(sizes) > 1 else None


def first_of(inputs: Any, batch: int) -> Any:
    """Return the inputs with only the first `batch` rows of each tensor."""
    return tree_map(lambda leaf: leaf[:batch] if isinstance(leaf, torch.Tensor) else leaf, inputs)


def largest_batch(required_bytes: Callable[[int], int], *, too_large: int, room_bytes: int) -> int | None:
    """Find the largest batch below `too_large` whose required bytes fit; each answer returned was checked.

    Args:
        required_bytes: the upper bound of the bytes that a batch requires; costs a capture.
        too_large: a batch that does not fit, above 1.
        room_bytes: what there is.

    Returns:
        None if not even a batch of 1 fits, or none was found within a few checks.
    """
    low = too_large // 2
    points = {too_large: required_bytes(too_large), low: required_bytes(low)}
    best = low if points[low] <= room_bytes else None
    for check in range(_MOST_CHECKS):
        least, most = (best or 0) + 1, min(size for size, needed in points.items() if needed > room_bytes) - 1
        if least > most:
            break
        guess = _crossing(points, room_bytes) if check < _ON_THE_LINE else (least + most) // 2
        guess = min(max(guess, least), most)
        points[guess] = required_bytes(guess)
        if points[guess] <= room_bytes:
            best = guess
    return best


def _crossing(points: dict[int, int], room_bytes: int) -> int:
    """Return where the line through the two points nearest to the room meets it."""
    (first, first_bytes), (second, second_bytes) = sorted(points.items(), key=lambda p: abs(p[1] - room_bytes))[:2]
    if first_bytes == second_bytes:
        return min(first, second) // 2
    return int(first + (room_bytes - first_bytes) * (second - first) / (second_bytes - first_bytes))
