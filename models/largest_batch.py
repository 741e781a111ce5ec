"""The largest batch that fits a card, by asking the predictor about a graph that has the batch as a symbol."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from peakcast.featurizer.communicators import bytes_for_communicators
from peakcast.featurizer.polynomials import SymbolError
from peakcast.featurizer.run import DeviceSpec, RunSpec
from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.workspace import CONTEXT_BYTES, LIBRARIES_BYTES
from peakcast.models.decision import available_bytes
from peakcast.models.prediction import Prediction

if TYPE_CHECKING:
    from peakcast.models.predictor import Predictor

BATCH: Final = "batch"
# Six are usual: bytes are nearly linear in the batch. Halving a range of 2^10 takes ten.
_MOST_QUESTIONS: Final = 24
# All questions together simulate so many nodes at most, about ten seconds' work: larger graphs get fewer questions.
_MOST_NODES: Final = 500_000
# Peaks step and dip with the allocator's blocks: a batch fits only where the next smaller ones do.
_SMALLER_CHECKED: Final = 2


def predict_symbolic(
    predictor: Predictor,
    spec: GraphSpec,
    symbols: Mapping[str, int],
    *,
    run: RunSpec | None,
    device: DeviceSpec | None,
    plans: Sequence[str] | None,
    risk: float,
) -> Prediction:
    """Predict at the given values of the symbols, others at their hints, with the largest batch that fits.

    Raises:
        SymbolError: for a symbol that the graph does not have, or a value outside its range.
        ValueError: as `Predictor.predict`.
    """
    started = time.perf_counter()
    prediction = predictor.predict_fixed(spec.at(symbols), run=run, device=device, plans=plans, risk=risk)
    found = largest_batch(
        predictor, spec, run=run, device=device, plans=plans, risk=risk, symbols=symbols, answered=prediction
    )
    return prediction.model_copy(
        update={
            "graph_id": spec.graph_id,
            "decision": prediction.decision.model_copy(update={"largest_batch": found}),
            "elapsed_ms": round((time.perf_counter() - started) * 1e3, 3),
        }
    )


def largest_batch(
    predictor: Predictor,
    spec: GraphSpec,
    *,
    run: RunSpec | None = None,
    device: DeviceSpec | None = None,
    plans: Sequence[str] | None = None,
    risk: float = 0.01,
    symbols: Mapping[str, int] | None = None,
    answered: Prediction | None = None,
) -> int | None:
    """Return the largest batch at which some plan's `required.upper_bytes` fits; None: none does, or no such symbol.

    It is one that was asked about and fits, and so do the two below it. It lies within the symbol's range, and where
    the questions run out it is the largest of those that were seen to fit.

    Args:
        run, device, plans, risk: as for `Predictor.predict`.
        symbols: values of the graph's symbols; that of the batch decides nothing.
        answered: the prediction at these values, where it is there already.

    Raises:
        ValueError: as `Predictor.predict`.
    """
    symbol = spec.symbols.get(BATCH)
    if symbol is None:
        return None
    device = device or DeviceSpec()
    room_bytes = available_bytes(device, CONTEXT_BYTES + LIBRARIES_BYTES + bytes_for_communicators(spec))
    values = dict(symbols or {})
    asked = values.get(BATCH, symbol.hint)

    def over_bytes(batch: int) -> float:
        if answered is not None and batch == asked:
            return _over_bytes(answered, room_bytes)
        try:
            at_batch = spec.at({**values, BATCH: batch})
        except SymbolError:  # larger than anything can be
            return math.inf
        prediction = predictor.predict_fixed(at_batch, run=run, device=device, plans=plans, risk=risk)
        return _over_bytes(prediction, room_bytes)

    nodes = sum(len(trace) for plan, trace in spec.traces.items() if plans is None or plan in plans)
    questions = min(_MOST_QUESTIONS, _MOST_NODES // max(nodes, 1))
    return largest_that_fits(
        over_bytes, start=symbol.hint, low=max(symbol.min, 1), high=symbol.max, questions=questions
    )


def _over_bytes(prediction: Prediction, room_bytes: int) -> float:
    """Return by how much the smallest plan exceeds the room; at most 0 where one fits.

    A plan that is within the room and yet does not fit has operators of unknown memory.
    """
    uppers = [(plan.fits, plan.required.upper_bytes) for plan in prediction.plans]
    return min((upper - room_bytes for fits, upper in uppers if fits or upper > room_bytes), default=math.inf)


def largest_that_fits(
    over_bytes: Callable[[int], float], *, start: int, low: int, high: int, questions: int = _MOST_QUESTIONS
) -> int | None:
    """Return the largest size within low..high that fits, as far as `questions` lead; None where none does.

    Args:
        over_bytes: by how much a size exceeds the room; at most 0: it fits.
        start: the size to ask about first.
        questions: most calls of `over_bytes`.
    """
    search = _Search(over_bytes, questions)
    while low <= high:
        found = search.boundary(min(max(start, low), high), low, high)
        if found is None:
            return None
        smaller = range(found - 1, max(low, found - _SMALLER_CHECKED) - 1, -1)
        lower_miss = next((size for size in smaller if search.ask(size) and search.known[size] > 0), None)
        if lower_miss is None:
            return found
        start = high = lower_miss - 1  # it fitted by luck
    return None


@dataclass(slots=True)
class _Search:
    """Answers until now, by size, and how many more there may be."""

    over_bytes: Callable[[int], float]
    left: int
    known: dict[int, float] = field(default_factory=dict)

    def ask(self, size: int) -> bool:
        """Ask about a size, and tell whether there is an answer."""
        if size not in self.known and self.left > 0:
            self.left -= 1
            self.known[size] = self.over_bytes(size)
        return size in self.known

    def boundary(self, start: int, low: int, high: int) -> int | None:
        """Return a size that fits and is `high`, or whose next one does not fit."""
        fit = miss = None
        guess, turn = start, 0
        while self.ask(guess):
            if self.known[guess] <= 0:
                fit = guess
            else:
                miss = guess
            least, most = low if fit is None else fit + 1, high if miss is None else miss - 1
            if least > most:
                break
            turn += 1
            guess = min(max(self._guess(fit, miss, turn), least), most)
        return fit

    def _guess(self, fit: int | None, miss: int | None, turn: int) -> int:
        """Return where a line through two answers meets the room; every other time the middle, as lines can mislead."""
        if fit is not None and miss is not None:
            ends = (fit, miss)
            if turn % 2 == 0:
                return (fit + miss) // 2
        elif fit is not None:
            below = [size for size in self.known if size < fit]
            ends = (max(below, default=fit), fit)
        else:
            assert miss is not None  # one size was asked about
            above = [size for size in self.known if size > miss]
            ends = (miss, min(above, default=miss))
        rise = self.known[ends[1]] - self.known[ends[0]]
        if not 0 < rise < math.inf:
            # Nothing to draw a line through: four times as large, half as large, or the middle.
            if fit is None:
                return ends[0] // 2
            return 4 * fit if miss is None else (fit + miss) // 2
        return math.floor(ends[0] - self.known[ends[0]] * (ends[1] - ends[0]) / rise)
