"""What `max-autotune` leaves to cuBLAS: where Triton's templates win every product, its workspace is never taken.

Which wins is a benchmark's choice. On an H200 with torch 2.11 templates won all products of four models in bfloat16
whose largest had up to 0.7 GFLOP (not those of a fifth, ConvMixer), and cuBLAS some where the largest had 8 GFLOP or
more, or was in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from peakcast.featurizer.trace import Trace
from peakcast.featurizer.vocabulary import DTYPE_BYTES

_MOST_FLOPS: Final = 2 * 10**9
_HALF: Final = frozenset({"bfloat16", "float16"})


def left_to_cublas(trace: Trace, dtypes: Sequence[str], products: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return those of the products [N] that a library computes: all, or those outside compiled regions alone."""
    compiled = products & (trace.region >= 0)
    for node in np.flatnonzero(compiled).tolist():
        dtype = dtypes[trace.dtype[node]]
        if dtype not in _HALF or _flops(trace, node, DTYPE_BYTES[dtype]) > _MOST_FLOPS:
            return products
    return products & ~compiled


def _flops(trace: Trace, node: int, item_bytes: int) -> int:
    """Return twice m n k of a product: its operands and its result have m k, k n and m n elements.

    Of a batch of B the square root of the three together is larger than B times that, by the root of B: a batch is
    left to cuBLAS sooner than a matrix of as many operations. None of the four models has one.
    """
    elements = int(trace.numel[node])
    read = trace.inputs.row(node).tolist()
    for storage in (read[-2:-1] or read[-1:]) + read[-1:]:  # a product with itself reads one
        elements *= int(trace.storages.bytes[storage]) // item_bytes
    return 2 * isqrt(elements)
