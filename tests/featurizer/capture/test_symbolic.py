"""Captures with the batch as a symbol: what they say at other sizes, and what they refuse."""

from __future__ import annotations

import dataclasses
import threading

import numpy as np
import pytest
import torch
from captured import Captured
from torch import nn

import peakcast
from peakcast.featurizer.capture.isolated import CaptureError
from peakcast.featurizer.capture.sizes import BatchRange, one_more_size, sizes_to_capture
from peakcast.featurizer.capture.symbolic import batch_of, resized_inputs
from peakcast.featurizer.capture.workload import Workload
from peakcast.featurizer.polynomials import Symbol
from peakcast.featurizer.prior import simulate
from peakcast.featurizer.run import DeviceSpec
from peakcast.featurizer.trace import Trace
from peakcast.featurizer.vocabulary import GRADIENT, INPUT
from peakcast.models.asked import run_of
from peakcast.models.predictor import Predictor

WIDTH, LENGTH = 64, 12  # as in symbolic_workloads.py


def columns(trace: Trace) -> dict[str, list[int]]:
    """Return what a trace says, without its polynomials."""
    storages = {f.name: getattr(trace.storages, f.name) for f in dataclasses.fields(trace.storages)}
    found = {f.name: getattr(trace, f.name) for f in dataclasses.fields(trace)} | storages
    found |= {"inputs": trace.inputs.ids, "outputs": trace.outputs.ids}
    return {name: value.tolist() for name, value in found.items() if isinstance(value, np.ndarray) and name != "line"}


@pytest.mark.parametrize("plan", ["eager", "inductor"])
def test_a_graph_captured_around_4_is_at_7_the_one_captured_there(captured: Captured, plan: str) -> None:
    """Every node, storage and size is the same, and so is every simulated byte."""
    spec, there = captured.spec("symbolic_gpt"), captured.spec("gpt_at_7")
    assert spec.symbols == {"batch": Symbol(hint=4, min=2, max=4096)}
    assert spec.captured_with["captured_batch"] == "2,4,33"
    here = spec.at({"batch": 7})
    assert columns(here.traces[plan]) == columns(there.traces[plan])
    priors = [simulate(graph, plan, run_of(graph), DeviceSpec()) for graph in (here, there)]
    assert priors[0].steps.peaks == priors[1].steps.peaks
    assert priors[0].required_bytes == priors[1].required_bytes
    assert priors[0].parts == priors[1].parts


def test_the_prediction_at_7_is_the_one_of_a_graph_captured_there(captured: Captured) -> None:
    """The learned part sees no difference either; the reply is about the graph that was asked about."""
    spec, predictor = captured.spec("symbolic_gpt"), Predictor.load()
    told = predictor.predict(spec, symbols={"batch": 7})
    assert told.plans == predictor.predict(captured.spec("gpt_at_7")).plans
    assert told.graph_id == spec.graph_id
    assert told.plans != predictor.predict(spec).plans


def test_inputs_are_resized_where_the_function_takes_no_batch(captured: Captured) -> None:
    """Scores are B x T x T, the mask of T x T stays; bytes are counted by hand at the ends of the range."""
    spec = captured.spec("symbolic_attention")
    assert spec.symbols == {"batch": Symbol(hint=5, min=1, max=300)}
    assert spec.captured_with["captured_batch"] == "1,5,41"
    for batch in (1, 300):
        storages = spec.at({"batch": batch}).traces["eager"].storages
        starts = sorted(storages.bytes[storages.born < 0].tolist())
        weights, mask, x = 4 * 3 * WIDTH * WIDTH, 4 * LENGTH * LENGTH, 4 * batch * LENGTH * WIDTH
        assert starts == sorted([weights, mask, x])
        assert 4 * batch * LENGTH * LENGTH in storages.bytes


def test_a_quadratic_size_is_checked_at_a_fourth_batch(captured: Captured) -> None:
    """[B, B] of float32 is 4 B^2 bytes."""
    spec = captured.spec("symbolic_contrast")
    assert spec.captured_with["captured_batch"] == "2,6,27,49"
    assert spec.traces["eager"].storages.bytes_poly.count(((4, (("batch", 2),)),)) == 1
    assert 4 * 1000**2 in spec.at({"batch": 1000}).traces["eager"].storages.bytes


def test_branches_have_polynomials_too(captured: Captured) -> None:
    """What a branch of a cond makes grows with the batch."""
    trace = captured.spec("symbolic_conditional").at({"batch": 10}).traces["eager"]
    inner = [branch for _, branches in trace.branches for branch in branches]
    assert len(inner) == 2
    assert all(4 * 10 * WIDTH in branch.storages.bytes for branch in inner)


def test_where_small_batches_differ_the_range_begins_at_the_workloads_own(captured: Captured) -> None:
    """Unless smaller ones were asked for, the graph is then one for all batches from 6 on."""
    spec = captured.spec("symbolic_doubling")
    assert spec.symbols == {"batch": Symbol(hint=6, min=6, max=6144)}
    assert spec.captured_with["captured_batch"] == "6,7,49"


@pytest.mark.parametrize(
    ("name", "batch", "words"),
    [
        ("chunked", 8, ("node 3 is aten.cat.default at batch 8, but aten.sin.default at batch 65",)),
        ("doubling_too", 6, ("node 0 is aten.sin.default at batch 6, but aten.mul.Tensor at batch 2",)),
        ("padded", 6, ("aten.new_zeros.default", "no polynomial of batch")),
    ],
)
def test_what_is_no_graph_at_several_sizes_is_a_plain_one(
    captured: Captured, name: str, batch: int, words: tuple[str, ...]
) -> None:
    """It is the graph of its own batch, without symbols, and says which operator differs."""
    spec = captured.spec(f"symbolic_{name}")
    assert not spec.symbols
    assert not any(row for row in spec.traces["eager"].numel_poly)
    assert spec.traces["eager"].storages.bytes[0] == 4 * batch * WIDTH
    for word in words:
        assert word in spec.captured_with["not_symbolic"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("targets", "captured at its own batch, 6, but not at 2: "),
        ("targets", "let the function that returns the workload take it, as in `def workload(batch=8)`"),
        ("step", "the batch of Workload(step=...) is inside the step"),
        ("scalars", "no input tensor has a leading dimension"),
        ("no_default", "keyword `batch` has no default"),
        ("outside", "the workload's own batch is 4, which the range 5 to 9 must hold"),
    ],
)
def test_a_batch_that_cannot_be_changed_is_refused(captured: Captured, name: str, words: str) -> None:
    """The error says what stands in the way and what to do."""
    assert words in captured.error(f"symbolic_{name}")


def test_a_model_that_cannot_be_sent_is_captured_here_at_all_batches() -> None:
    """Its inputs are the same objects afterwards; a batch of 100 has 100 rows."""
    model = nn.Linear(WIDTH, 8)
    model.lock = threading.Lock()  # type: ignore[assignment]
    x = torch.randn(4, WIDTH)
    spec = peakcast.capture(model, x, plans=["eager"], symbolic="batch=2:100")
    assert spec.captured_with["captured_batch"] == "2,4,33"
    assert x.shape == (4, WIDTH)
    assert 4 * 100 * WIDTH in spec.at({"batch": 100}).traces["eager"].storages.bytes


def test_a_live_model_is_captured_elsewhere_at_all_batches() -> None:
    """Sent to the other process once, it is resized there: gradients and weights stay, activations grow."""
    model = nn.Linear(WIDTH, 8, bias=False)
    optimizer = torch.optim.SGD(model.parameters())
    spec = peakcast.capture(
        model, torch.randn(6, WIDTH), loss=torch.sum, optimizer=optimizer, plans=["eager"], symbolic="batch"
    )
    assert spec.symbols["batch"] == Symbol(hint=6, min=2, max=6144)
    storages = spec.at({"batch": 5000}).traces["eager"].storages
    assert storages.bytes[storages.role == INPUT].tolist() == [4 * 5000 * WIDTH]
    assert storages.bytes[storages.role == GRADIENT].tolist() == [4 * 8 * WIDTH]
    assert 4 * 5000 * 8 in storages.bytes


def test_a_live_model_that_differs_between_batches_warns() -> None:
    """The graph is the one of its own batch, and the warning says what differs."""
    model = nn.Linear(2, 2)
    model.lock = threading.Lock()  # type: ignore[assignment]
    model.register_forward_hook(lambda _, inputs, out: out.sin() if len(inputs[0]) > 8 else out)
    with pytest.warns(
        UserWarning, match=r"one batch only: eager: node \d+ is no more at batch 8, but aten.sin.default"
    ):
        spec = peakcast.capture(model, torch.ones(8, 2), plans=["eager"], symbolic="batch=8:64")
    assert not spec.symbols


def test_a_step_is_refused_before_anything_starts() -> None:
    """A live step holds its batch; so is a range that does not hold the live batch."""
    with pytest.raises(CaptureError, match="inside the step"):
        peakcast.capture(Workload(step=lambda: None), plans=["eager"], symbolic="batch")
    with pytest.raises(ValueError, match="own batch is 4, which the range 8 to 16 must hold"):
        peakcast.capture(nn.Linear(2, 2), torch.ones(4, 2), symbolic="batch=8:16")


@pytest.mark.parametrize(
    "text", ["length", "batch=8", "batch=4:5", "batch=0:9", "batch=9:2", "batch=1:99999999999", ""]
)
def test_a_range_that_cannot_be_is_refused(text: str) -> None:
    """The error shows the text."""
    with pytest.raises(ValueError, match="symbolic is") as told:
        BatchRange.parse(text)
    assert repr(text) in str(told.value)


@pytest.mark.parametrize(
    ("symbol", "sizes"),
    [
        (Symbol(hint=8, min=2, max=8192), [8, 2, 65]),
        (Symbol(hint=1, min=1, max=1024), [1, 9, 2]),
        (Symbol(hint=8, min=8, max=16), [8, 16, 9]),
        (Symbol(hint=16, min=8, max=16), [16, 8, 15]),
        (Symbol(hint=5, min=4, max=6), [5, 4, 6]),
        (Symbol(hint=6, min=4, max=6), [6, 4, 5]),
        (Symbol(hint=4, min=4, max=6), [4, 6, 5]),
    ],
)
def test_three_sizes_are_captured_within_the_range(symbol: Symbol, sizes: list[int]) -> None:
    """The workload's own first, the ends where there are more."""
    assert sizes_to_capture(symbol) == sizes
    more = one_more_size(symbol, sizes)
    assert (more is None) == (symbol.max - symbol.min == 2)
    assert more is None or (symbol.min <= more <= symbol.max and more not in sizes)


def test_resized_inputs_keep_ties_and_layout() -> None:
    """One tensor that stands twice stays one; channels last, transposed and expanded inputs keep their order."""
    shared = torch.ones(4, 3)
    image = torch.ones(4, 3, 8, 8).to(memory_format=torch.channels_last)
    one, two, picture, turned, wide, other, text = resized_inputs(
        (shared, {"again": shared}, image, torch.ones(3, 4).t(), torch.ones(4, 1).expand(4, 5), torch.ones(3, 4), "x"),
        4,
        10,
    )
    assert one is two["again"]
    assert one.shape == (10, 3)
    assert picture.shape == (10, 3, 8, 8)
    assert picture.is_contiguous(memory_format=torch.channels_last)
    assert turned.stride() == (1, 10)
    assert wide.stride() == (1, 0)
    assert other.shape == (3, 4)
    assert text == "x"


def test_one_row_becomes_many() -> None:
    """A batch of 1 has no stride of its own."""
    odd = torch.empty_strided((1, 3, 2), (1, 2, 1))
    assert resized_inputs(odd, 1, 5).stride() == (6, 2, 1)
    assert batch_of(Workload(nn.Identity(), {"scale": torch.tensor(1.0), "x": torch.ones(1, 3)})) == 1
