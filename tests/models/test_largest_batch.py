"""The largest batch that fits: found, verified, and worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from handmade import MIB, Sketch
from hypothesis import given
from hypothesis import strategies as st

from peakcast.featurizer.polynomial_fit import fitted
from peakcast.featurizer.polynomials import Symbol, SymbolError
from peakcast.featurizer.prior import simulate
from peakcast.featurizer.run import DeviceSpec, RunSpec
from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.vocabulary import BACKWARD, GRADIENT, INPUT, OPTIMIZER, PARAMETER, SAVED
from peakcast.featurizer.workspace import CONTEXT_BYTES, LIBRARIES_BYTES
from peakcast.models.largest_batch import largest_batch, largest_that_fits
from peakcast.models.predictor import Predictor

OVERHEAD_BYTES = CONTEXT_BYTES + LIBRARIES_BYTES
WEIGHT_BYTES, SAMPLE_BYTES = 64 * MIB, 10 * MIB


def mlp(batch: int) -> Sketch:
    """Train two layers of 64 MiB with momentum; each keeps 10 MiB a sample for the backward.

    Pointwise operators, which take no workspace: what lives is what is written here.
    """
    sketch = Sketch()
    weights = [sketch.start(WEIGHT_BYTES, PARAMETER) for _ in range(2)]
    momenta = [sketch.start(WEIGHT_BYTES, 4) for _ in range(2)]
    x = sketch.start(2 * MIB, INPUT)
    saved = []
    for weight in weights:
        saved += sketch.node("aten.mul.Tensor", batch * SAMPLE_BYTES, role=SAVED, reads=[weight, x])
    gradients = []
    for weight, kept in zip(reversed(weights), reversed(saved), strict=True):
        gradients += sketch.node(
            "aten.add.Tensor", WEIGHT_BYTES, phase=BACKWARD, role=GRADIENT, reads=[weight, kept], dies=[kept]
        )
    sketch.node("aten.add_.Tensor", phase=OPTIMIZER, reads=[*gradients, *momenta], writes=weights, dies=gradients)
    return sketch


def symbolic_mlp(low: int = 1, high: int = 4096) -> GraphSpec:
    """Return the network with its batch as a symbol."""
    symbol = Symbol(hint=4, min=low, max=high)
    spec = fitted({batch: mlp(batch).spec() for batch in (2, 4, 33)}, "batch", symbol)
    return GraphSpec.from_json(spec.to_dict() | {"captured_with": {"torch": "2.13.0", "captured_batch": "2,4,33"}})


RUN = RunSpec(task="training", optimizer="SGD")
# Weights and momenta, the input's 2 MiB, one gradient, and both activations until the second layer's is done with.
FIXED_BYTES = 5 * WEIGHT_BYTES + 2 * MIB
BYTES_A_SAMPLE = 2 * SAMPLE_BYTES


@pytest.mark.parametrize("batch", [2, 7, 100])
def test_the_peak_is_the_line_that_was_worked_out(batch: int) -> None:
    """Weights, momenta and one gradient, and two activations a sample, each 10 MiB: to the byte."""
    prior = simulate(symbolic_mlp().at({"batch": batch}), "eager", RUN, DeviceSpec())
    # Below 7 samples the second gradient is larger than the activation that is gone by then.
    later_bytes = FIXED_BYTES + WEIGHT_BYTES + batch * SAMPLE_BYTES
    assert prior.steady_allocated_bytes == max(FIXED_BYTES + batch * BYTES_A_SAMPLE, later_bytes)


@pytest.mark.parametrize("card_bytes", [1 << 30, 3 << 30, 10_000_000_000])
def test_the_largest_batch_is_the_one_worked_out(card_bytes: int) -> None:
    """On a card of so many bytes, (room - fixed) / bytes a sample, rounded down."""
    spec = symbolic_mlp()

    def over_bytes(batch: int) -> float:
        return simulate(spec.at({"batch": batch}), "eager", RUN, DeviceSpec()).steady_allocated_bytes - card_bytes

    by_hand = (card_bytes - FIXED_BYTES) // BYTES_A_SAMPLE
    assert largest_that_fits(over_bytes, start=4, low=1, high=4096) == by_hand


def test_what_the_predictor_names_fits_and_the_next_does_not() -> None:
    """Asked about by itself, the named batch fits the card with its bound, one more does not."""
    spec, predictor = symbolic_mlp(), Predictor.load()
    device = DeviceSpec(name="NVIDIA H200", total_bytes=6 << 30)
    told = predictor.predict(spec, run=RUN, device=device)
    found = told.decision.largest_batch
    assert found is not None
    # The bound lies above what is expected, so the answer lies below the line's.
    line = (device.total_bytes - OVERHEAD_BYTES - FIXED_BYTES) // BYTES_A_SAMPLE
    assert 4 < found <= line
    for batch in (found - 1, found, found + 1):
        answer = predictor.predict(spec, run=RUN, device=device, symbols={"batch": batch})
        assert answer.plan("eager").fits == (batch <= found)
        assert (answer.decision.action == "refuse") == (batch > found)
        assert answer.decision.largest_batch == found
    assert largest_batch(predictor, spec, run=RUN, device=device) == found


def test_where_the_step_is_refused_the_largest_batch_is_told() -> None:
    """A batch of 4 does not fit, one of fewer does; on a card too small for any there is none."""
    spec, predictor = symbolic_mlp(), Predictor.load()
    needs = predictor.predict_fixed(spec, run=RUN).plan("eager").required.upper_bytes + OVERHEAD_BYTES
    told = predictor.predict(spec, run=RUN, device=DeviceSpec(total_bytes=needs - 1))
    assert told.decision.action == "refuse"
    assert told.decision.largest_batch is not None
    assert 1 <= told.decision.largest_batch < 4
    too_small = predictor.predict(spec, run=RUN, device=DeviceSpec(total_bytes=FIXED_BYTES))
    assert too_small.decision.largest_batch is None


def test_the_range_bounds_the_answer() -> None:
    """On a card with room for more, the largest batch is the end of the range."""
    told = Predictor.load().predict(symbolic_mlp(high=50), run=RUN)
    assert told.decision.largest_batch == 50


def test_a_graph_without_a_batch_has_no_largest_one() -> None:
    """Nothing is searched for in a graph of fixed shapes, nor where another size is the symbol."""
    predictor = Predictor.load()
    assert predictor.predict(mlp(4).spec(), run=RUN).decision.largest_batch is None
    length = fitted({n: mlp(n).spec() for n in (2, 4, 33)}, "length", Symbol(hint=4, min=1, max=64))
    assert predictor.predict(length, run=RUN).decision.largest_batch is None
    assert largest_batch(predictor, length, run=RUN) is None


def test_a_plan_of_unknown_memory_never_counts() -> None:
    """An operator nobody knows: no batch is said to fit, whatever the card."""
    specs = {}
    for batch in (2, 4, 33):
        sketch = mlp(batch)
        sketch.node("acme.frobnicate.default", 8)
        specs[batch] = sketch.spec()
    spec = fitted(specs, "batch", Symbol(hint=4, min=1, max=64))
    assert Predictor.load().predict(spec, run=RUN).decision.largest_batch is None


def test_far_from_the_captured_sizes_is_extrapolating() -> None:
    """Captured up to 33: four times that is trusted as the rest, more is said to be far."""
    spec, predictor = symbolic_mlp(), Predictor.load()

    def far(batch: int) -> list[str]:
        plan = predictor.predict(spec, run=RUN, symbols={"batch": batch}, device=DeviceSpec(total_bytes=1)).plans[0]
        assert not plan.doubts or plan.confidence != "in_distribution"
        return [doubt for doubt in plan.doubts if "captured" in doubt]

    assert far(132) == []
    assert far(133) == ["batch 133 is far from 2 to 33, where it was captured"]
    silent = fitted({n: mlp(n).spec() for n in (2, 4, 33)}, "batch", Symbol(hint=4, min=1, max=64))
    doubts = predictor.predict(silent, run=RUN).plans[0].doubts
    assert "the graph does not say at which sizes of batch it was captured" in doubts


@pytest.mark.parametrize(
    ("symbols", "words"),
    [
        ({"batch": 5000}, r"\$\.symbols\.batch: 5000 is not an integer from 1 to 4096"),
        ({"batch": 0}, "0 is not an integer from 1"),
        ({"batch": 10**5000}, "an integer of 16610 bits is not an integer from 1 to 4096"),
        ({"batch": True}, "True is not an integer"),
        ({"length": 8}, "the graph has no symbol 'length'; it has batch"),
    ],
    ids=["large", "zero", "huge", "bool", "unknown"],
)
def test_a_value_that_cannot_be_is_refused(symbols: dict[str, int], words: str) -> None:
    """The error names the symbol and its range."""
    with pytest.raises(SymbolError, match=words):
        Predictor.load().predict(symbolic_mlp(), run=RUN, symbols=symbols)


def test_a_symbol_of_a_plain_graph_is_refused() -> None:
    """It says that the graph was captured with fixed shapes."""
    with pytest.raises(SymbolError, match="it has none: it was captured with fixed shapes"):
        Predictor.load().predict(mlp(4).spec(), run=RUN, symbols={"batch": 8})


def test_a_size_beyond_all_bounds_does_not_end_the_search() -> None:
    """The end of the range, 2^32 samples of 10 MiB, is more than a graph may hold: it does not fit."""
    told = Predictor.load().predict(symbolic_mlp(high=1 << 32), run=RUN)
    assert told.decision.largest_batch is not None
    with pytest.raises(SymbolError, match="the polynomial is"):
        symbolic_mlp(high=1 << 32).at({"batch": 1 << 32})


class Asked:
    """Counts how often a function was asked."""

    def __init__(self, over_bytes: Callable[[int], float]) -> None:
        self.over_bytes = over_bytes
        self.sizes: list[int] = []

    def __call__(self, size: int) -> float:
        """Answer, and remember the question."""
        self.sizes.append(size)
        return self.over_bytes(size)


@given(slope=st.integers(1, 1000), room=st.integers(0, 10**7), start=st.integers(1, 4096))
def test_on_a_line_few_questions_are_enough(slope: int, room: int, start: int) -> None:
    """The exact answer, whatever the start, each size asked about once; None where a batch of 1 is too large."""
    asked = Asked(lambda size: slope * size - room)
    expected = min(room // slope, 4096) or None
    assert largest_that_fits(asked, start=start, low=1, high=4096) == expected
    assert len(asked.sizes) == len(set(asked.sizes))
    assert len(asked.sizes) <= 14


@given(step=st.integers(1, 500), slope=st.integers(1, 50), room=st.integers(1, 10**5), start=st.integers(1, 4096))
def test_on_a_staircase_the_answer_is_exact(step: int, slope: int, room: int, start: int) -> None:
    """Bytes in steps, as an allocator takes them: the last size of the last step that fits."""
    asked = Asked(lambda size: slope * (size // step) - room)
    by_hand = min((room // slope + 1) * step - 1, 4096)
    assert largest_that_fits(asked, start=start, low=1, high=4096) == by_hand
    assert len(asked.sizes) <= 24


def test_a_size_that_fits_by_luck_is_not_named() -> None:
    """100 fits between sizes that do not: the answer lies below them."""
    misses = {98, 99, *range(101, 200)}
    assert largest_that_fits(lambda size: 1 if size in misses else 0, start=100, low=1, high=150) == 97


def test_what_is_named_was_asked_about_when_the_questions_run_out() -> None:
    """The largest size that was seen to fit; with no question left there is no answer."""
    asked = Asked(lambda size: size - 1000)
    found = largest_that_fits(asked, start=3, low=1, high=1 << 32, questions=2)
    assert found in asked.sizes
    assert found <= 1000
    assert largest_that_fits(asked, start=3, low=1, high=9, questions=0) is None


def test_nothing_fits_where_everything_is_infinite() -> None:
    """No line can be drawn through infinities: halving ends at the smallest size."""
    asked = Asked(lambda _: math.inf)
    assert largest_that_fits(asked, start=1000, low=1, high=4096) is None
    assert asked.sizes[-1] == 1
