"""Whether matrix products with odd sizes are padded: on a card a benchmark decides, here both answers are tried."""

from __future__ import annotations

from typing import Any

import torch


class Padding:
    """Answers inductor's question whether to pad a product, and remembers that it was asked.

    `reverse` gives the answer that is less likely on the card.
    """

    def __init__(self) -> None:
        self.reverse = False
        self.was_asked = False

    def decide(self, key: Any) -> bool:
        """Answer for one product; `key` names its shapes and dtypes."""
        self.was_asked = True
        return likely_padded(key) is not self.reverse

    def install(self) -> None:
        """Take the place of the cache that inductor asks before it runs its benchmark."""
        from torch._inductor.fx_passes import pad_mm  # private: the names are those of torch 2.11 to 2.13

        if not hasattr(pad_mm, "get_cached_should_pad"):
            raise AttributeError("pad_mm.get_cached_should_pad is gone")
        pad_mm.get_cached_should_pad = self.decide
        compute_bound = pad_mm.is_mm_compute_bound

        def is_benchmarked(M: int, K: int, N: int, dtype: torch.dtype) -> bool:
            # Long sums, as for the gradient of a narrow layer's weight, are bound by memory, and yet were padded on an
            # H200 under torch 2.11.
            is_long = dtype.itemsize < 4 and max(M, N) < K
            return bool(is_long or compute_bound(M, K, N, dtype))

        pad_mm.is_mm_compute_bound = is_benchmarked


def likely_padded(key: Any) -> bool:
    """Say what the benchmark most likely finds: tensor cores win (half precision, and fp32 as TF32), fp32 loses."""
    return "float32" not in str(key) or torch.backends.cuda.matmul.allow_tf32
