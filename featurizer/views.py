"""Views that a capture on fake tensors shows as tensors of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from peakcast.featurizer.lifetimes import NEVER, Lifetimes
from peakcast.featurizer.trace import Trace
from peakcast.featurizer.workspace import op_name

# What no kernel runs for, and so nothing is allocated for. Not "view": FSDP2 gives a parameter's storage its bytes back
# by resizing, and the view that then reads it is where they first show.
_VIEWS: Final = frozenset({"alias", "detach", "expand", "permute", "t", "transpose", "unsqueeze"})


def without_views(lifetimes: Lifetimes, trace: Trace, ops: Sequence[str]) -> Lifetimes:
    """Return the lifetimes without the storages that eager views seem to make.

    A parameter's transpose, for one: a linear layer in float32 saves it, and some captures count it as a copy.
    """
    if not len(trace):
        return lifetimes
    is_view = np.fromiter((op_name(op) in _VIEWS for op in ops), np.bool_, len(ops))[trace.op] & (trace.region < 0)
    made = trace.storages.born
    seems = (made >= 0) & is_view[np.maximum(made, 0)]
    if not seems.any():
        return lifetimes
    born = lifetimes.born.copy()
    born[: len(made)][seems] = NEVER
    return replace(lifetimes, born=born)
