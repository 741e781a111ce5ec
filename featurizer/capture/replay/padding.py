"""Whether matrix products with odd sizes are padded: on a card a benchmark decides, here both answers are tried."""

from __future__ import annotations

from peakcast.featurizer.capture.product_padding import Product, decide_without_timing, is_near_tie, is_padded


class Padding:
    """Answers inductor's question whether to pad a product, and remembers whether an answer was near a tie.

    `reverse` gives the less likely answer to those.
    """

    def __init__(self) -> None:
        self.reverse = False
        self.was_near_tie = False

    def decide(self, product: Product) -> bool:
        """Answer for one product."""
        is_open = is_near_tie(product)
        self.was_near_tie |= is_open
        return is_padded(product) is not (self.reverse and is_open)

    def install(self) -> None:
        """Take the place of inductor's benchmark."""
        if not decide_without_timing(self.decide):
            raise AttributeError("a name of pad_mm is gone")
