"""Sizes as polynomials over symbols such as `batch`: plain integer arithmetic, never an expression to evaluate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from peakcast.featurizer.limits import SpecError, show

# ((coefficient, ((symbol, power), ...)), ...): 12 * batch^2 + 3 is ((12, (("batch", 2),)), (3, ())).
Polynomial = tuple[tuple[int, tuple[tuple[str, int], ...]], ...]

MAX_POWER: Final = 4
MAX_FACTORS: Final = 4
# A symbol is a size: a batch, a length, a number of classes.
MAX_SYMBOL_VALUE: Final = 1 << 32
# Above this no intermediate result can be a size, whatever is subtracted from it later.
_MAX_TERM: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class Symbol:
    """A size that may change between steps: `hint` is its value in the captured step, `min` and `max` inclusive."""

    hint: int
    min: int
    max: int


class SymbolError(SpecError):
    """Say why a graph cannot be evaluated at the values asked for: the question is wrong, not the graph."""


def evaluate(polynomial: Polynomial, symbols: Mapping[str, int], *, limit: int, path: str) -> int:
    """Return the value at the given symbols; SpecError when it is negative or above `limit`.

    Every product is checked as it grows, so that no integer larger than 2^63 * 2^128 is ever built.
    """
    total = 0
    for coefficient, factors in polynomial:
        term = coefficient
        for symbol, power in factors:
            term *= symbols[symbol] ** power
            if not -_MAX_TERM < term < _MAX_TERM:
                problem = f"a term of the polynomial exceeds 2^63 at {_at(symbols)}"
                raise SpecError("out_of_range", path, problem)
        total += term
    if not 0 <= total <= limit:
        problem = f"the polynomial is {total} at {_at(symbols)}; allowed: 0 to {limit}"
        raise SpecError("out_of_range", path, problem)
    return total


def choose_values(symbols: Mapping[str, Symbol], chosen: Mapping[str, object]) -> dict[str, int]:
    """Return a value for each symbol: the chosen one, else its hint.

    SymbolError for a symbol the graph does not have, a value that is no integer or one outside `min` and `max`.
    """
    values = {name: symbol.hint for name, symbol in symbols.items()}
    for name, value in chosen.items():
        if name not in symbols:
            known = ", ".join(symbols) or "none: it was captured with fixed shapes"
            raise SymbolError("invalid_name", "$.symbols", f"the graph has no symbol {show(name)}; it has {known}")
        symbol = symbols[name]
        if isinstance(value, bool) or not isinstance(value, int) or not symbol.min <= value <= symbol.max:
            problem = f"{show(value)} is not an integer from {symbol.min} to {symbol.max}"
            raise SymbolError("out_of_range", f"$.symbols.{name}", problem)
        values[name] = value
    return values


def evaluate_column(
    polynomials: Sequence[Polynomial | None],
    constants: Sequence[int],
    symbols: Mapping[str, int],
    *,
    limit: int,
    path: str,
) -> list[int]:
    """Return one value a row: the polynomial's, or the constant where there is none (the size does not vary)."""
    known: dict[Polynomial, int] = {}  # a graph repeats few distinct sizes
    values = list(constants)
    for row, polynomial in enumerate(polynomials):
        if polynomial is not None:
            value = known.get(polynomial)
            if value is None:
                value = known[polynomial] = evaluate(polynomial, symbols, limit=limit, path=f"{path}[{row}]")
            values[row] = value
    return values


def _at(symbols: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={value}" for name, value in symbols.items())
