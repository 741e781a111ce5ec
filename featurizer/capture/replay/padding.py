"""Whether matrix products with odd sizes are padded: on a card a benchmark decides, here both answers are tried."""

from __future__ import annotations

from typing import Any


class Padding:
    """Answers inductor's question whether to pad a product, and counts how often it was asked.

    `reverse` gives the answer that is less likely on the card.
    """

    def __init__(self) -> None:
        self.reverse = False
        self.asked = 0

    def decide(self, key: str) -> bool:
        """Answer for one product; `key` names its shapes, dtypes and whether it may run as TF32."""
        self.asked += 1
        return likely_padded(key) is not self.reverse

    def install(self) -> None:
        """Take the place of the cache that inductor asks before it runs its benchmark."""
        from torch._inductor.fx_passes import pad_mm  # private: the name is that of torch 2.11 to 2.13

        pad_mm.get_cached_should_pad = self.decide  # type: ignore[assignment]


def likely_padded(key: Any) -> bool:
    """Say what the benchmark most likely finds: tensor cores win (half precision, and fp32 as TF32), fp32 loses."""
    import torch

    return "float32" not in str(key) or torch.backends.cuda.matmul.allow_tf32
