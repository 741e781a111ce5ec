"""At which batches a symbolic capture looks at the workload, and how the range is written."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from peakcast.featurizer.polynomial_fit import LEAST_SIZES
from peakcast.featurizer.polynomials import MAX_SYMBOL_VALUE, Symbol

BATCH: Final = "batch"
# The largest size captured, unless the range ends before, is 8 b + 1: far enough that what does not grow as the rest
# shows, near enough that torch still takes the same kernels. Odd, so that padding shows that b does not need.
_REACH: Final = 8
# Where no range is given it ends so many times b: more than fits beside b on any card.
_DEFAULT_FACTOR: Final = 1024
_TEXT: Final = re.compile(r"(\w+)(?:=(\d{1,12}):(\d{1,12}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class BatchRange:
    """The batches that a symbolic graph answers for, both inclusive; None: as the workload's own batch suggests."""

    low: int | None = None
    high: int | None = None

    @classmethod
    def parse(cls, text: str) -> BatchRange:
        """Read `batch` or `batch=MIN:MAX`.

        Raises:
            ValueError: for another symbol, or a range that holds fewer than three sizes.
        """
        found = _TEXT.fullmatch(text)
        if found is None or found[1] != BATCH:
            raise ValueError(f"symbolic is {text!r}; allowed: batch, or batch=MIN:MAX such as batch=2:256")
        if found[2] is None:
            return cls()
        low, high = int(found[2]), int(found[3])
        if not 1 <= low <= high - (LEAST_SIZES - 1) or high > MAX_SYMBOL_VALUE:
            problem = f"{LEAST_SIZES} sizes at least, from 1 to {MAX_SYMBOL_VALUE}"
            raise ValueError(f"symbolic is {text!r}: the range {low} to {high} must hold {problem}")
        return cls(low, high)

    def symbol(self, own: int) -> Symbol:
        """Return the symbol of a workload whose own batch is `own`.

        From 2 on unless told otherwise: at a batch of 1, layouts are ambiguous and other operators run.

        Raises:
            ValueError: if the range does not hold the workload's own batch.
        """
        low = min(2, own) if self.low is None else self.low
        high = min(_DEFAULT_FACTOR * own, MAX_SYMBOL_VALUE) if self.high is None else self.high
        if not low <= own <= high:
            raise ValueError(f"the workload's own batch is {own}, which the range {low} to {high} must hold")
        return Symbol(hint=own, min=low, max=high)

    def narrower(self, symbol: Symbol) -> list[Symbol]:
        """Return the symbol, and where nobody asked for smaller batches the one without them.

        Compilers decide by size what to recompute, and decide otherwise for small batches than for all larger ones.
        """
        return (
            [symbol]
            if self.low is not None or symbol.min == symbol.hint
            else [symbol, replace(symbol, min=symbol.hint)]
        )


def sizes_to_capture(symbol: Symbol) -> list[int]:
    """Return three sizes, the hint first: the smallest one and one far above it, where the range has them."""
    own = symbol.hint
    wanted = [own, symbol.min, min(symbol.max, _REACH * own + 1), own + 1, own + 2, own - 1, own - 2]
    inside = [size for size in dict.fromkeys(wanted) if symbol.min <= size <= symbol.max]
    return inside[:LEAST_SIZES]


def one_more_size(symbol: Symbol, sizes: list[int]) -> int | None:
    """Return a size between or beside those captured that checks a parabola through them; None: there is none."""
    _, middle, largest = sorted(sizes)
    wanted = [(middle + largest) // 2, middle + 1, middle - 1, largest + 1]
    return next((size for size in wanted if symbol.min <= size <= symbol.max and size not in sizes), None)
