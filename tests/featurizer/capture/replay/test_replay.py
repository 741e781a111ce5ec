"""Replayed traces of small workloads, buffer by buffer as counted by hand."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from replay_of import BATCH, CHANNELS, HEADS_BATCH, HIDDEN, INNER, ODD, OUT, ROWS, TOKENS, WIDTH, Replays, live_bytes

from peakcast.featurizer.capture.replay import ReplayUnavailable
from peakcast.featurizer.capture.replay.versions import check_versions
from peakcast.featurizer.limits import SpecError
from peakcast.featurizer.prior import simulate
from peakcast.featurizer.run import DeviceSpec, RunSpec
from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.vocabulary import BACKWARD, FORWARD, OPTIMIZER
from peakcast.featurizer.workspace import CUBLAS_OPS, op_mask
from peakcast.models.predictor import Predictor

FLOAT, HALF = 4, 2
LINE_OF_SIN = "replay_workloads.py:"


def born(replays: Replays, name: str, node: int, plan: str = "inductor") -> list[int]:
    """Return the sizes of what a node allocates."""
    storages = replays.trace(name, plan).storages
    return sorted(int(size) for size in storages.bytes[storages.born == node])


def test_two_layers_hold_what_the_compiler_keeps(replays: Replays) -> None:
    """ReLU is written over the product, its gradient over it again; the peak is the first layer's weight gradient.

    Alive there: parameters and input, the hidden layer, both weight gradients, both bias gradients, the loss and the
    one it starts from. The gradient of the hidden layer, in a buffer of its own, has just been freed.
    """
    trace = replays.trace("two_layers")
    hidden = BATCH * HIDDEN * FLOAT
    parameters = FLOAT * (WIDTH * HIDDEN + HIDDEN + HIDDEN * OUT + OUT)
    static = parameters + BATCH * WIDTH * FLOAT
    scalars = 2 * FLOAT

    live = live_bytes(trace)
    peak = int(np.argmax(live))
    assert born(replays, "two_layers", peak) == [WIDTH * HIDDEN * FLOAT]
    assert live[peak] == static + hidden + parameters + scalars

    forward = trace.phase[np.maximum(trace.storages.born, 0)] == FORWARD
    made = trace.storages.bytes[forward & (trace.storages.born >= 0)]
    assert sorted(made.tolist()) == [BATCH * OUT * FLOAT, hidden]
    assert set(trace.phase.tolist()) >= {FORWARD, BACKWARD, OPTIMIZER}


def test_eager_beside_it_makes_both_results(replays: Replays) -> None:
    """The same session captures eager as ever: ReLU's result is a second buffer."""
    trace = replays.trace("two_layers", "eager")
    assert not trace.replayed
    assert trace.storages.bytes.tolist().count(BATCH * HIDDEN * FLOAT) > 1


def test_attention_writes_its_softmax_over_the_scores(replays: Replays) -> None:
    """One head holds the projection, one matrix of scores and the result, and nothing else."""
    assert replays.ops("attention") == ["aten.mm.out", "aten.bmm.out", "inductor.kernel", "aten.bmm.out"]
    tokens = HEADS_BATCH * TOKENS
    projection, result, scores = tokens * 3 * CHANNELS, tokens * CHANNELS, tokens * TOKENS
    made = [born(replays, "attention", node) for node in range(4)]
    assert made == [[projection * FLOAT], [scores * FLOAT], [], [result * FLOAT]]
    static = FLOAT * (3 * CHANNELS * CHANNELS + tokens * CHANNELS)
    assert max(live_bytes(replays.trace("attention"))) == static + FLOAT * (projection + scores + result)


def test_both_ways_to_pad_a_product_are_replayed(replays: Replays) -> None:
    """The estimate is near a tie, and for as it is; the other graph has weight and result of 520 columns."""
    assert replays.told("odd_product")["undecided"] == ["inductor"]
    otherwise = replays.otherwise("odd_product")
    assert otherwise is not None
    assert born(replays, "odd_product", 0) == [ROWS * ODD * HALF]
    padded = otherwise.traces["inductor"].storages
    assert padded.bytes[padded.born >= 0].tolist() == [INNER * 520 * HALF, ROWS * 520 * HALF]


def test_what_needs_no_benchmark_is_replayed_once(replays: Replays) -> None:
    """Sizes that are whole multiples leave nothing open, nor do products without tensor cores."""
    for name in ("two_layers", "odd_float_product"):
        assert replays.told(name) == {"failed": {}, "undecided": []}
        assert replays.otherwise(name) is None


def test_a_budget_of_nothing_recomputes(replays: Replays) -> None:
    """The default keeps four products and the three sines that are read again; budget 0 the graph's inputs alone."""
    activation = 1024 * WIDTH * FLOAT
    kept = {}
    for plan in ("inductor", "inductor:budget=0"):
        trace = replays.trace("stack", plan)
        start = int(np.flatnonzero(trace.phase == BACKWARD)[0])
        storages = trace.storages
        alive = (storages.born >= 0) & (storages.born < start) & (storages.died >= start)
        kept[plan] = int(np.count_nonzero(storages.bytes[alive] == activation))
    assert kept == {"inductor": 7, "inductor:budget=0": 0}


def test_hybrid_compiles_each_block(replays: Replays) -> None:
    """Each block has its own kernels, forward and backward."""
    assert replays.ops("stack", "hybrid").count("inductor.kernel") >= 8
    assert replays.trace("stack", "hybrid").replayed


@pytest.mark.parametrize("plan", ["inductor", "hybrid"])
def test_a_replayed_step_and_its_graph_come_of_one_compile(replays: Replays, plan: str) -> None:
    """Recorded one after the other, both are what a replay and a capture give by themselves."""
    assert replays.spec("graph").graph_id == replays.spec("captured").graph_id
    alone, both = replays.trace("stack", plan), replays.trace("both", plan)
    assert both.replayed
    assert replays.ops("both", plan) == replays.ops("stack", plan)
    for name in ("bytes", "role", "born", "died"):
        assert getattr(both.storages, name).tolist() == getattr(alone.storages, name).tolist(), name


def test_matrix_products_are_seen_as_such(replays: Replays) -> None:
    """Workspaces are taken where the generated code calls cuBLAS: once in the forward's thread, once in autograd's."""
    spec = replays.spec("two_layers")
    trace = spec.traces["inductor"]
    products = op_mask(trace, spec.ops, CUBLAS_OPS)
    assert int(products.sum()) == 5
    prior = simulate(spec, "inductor", RunSpec(optimizer="SGD"), DeviceSpec(name="NVIDIA H200"))
    assert prior.workspace_bytes >= 2 * (32 << 20)


def test_kernels_name_the_line_they_compute(replays: Replays) -> None:
    """A kernel's line is the model's, not one of the generated file; no temporary path leaks."""
    spec = replays.spec("small_class")
    trace = spec.traces["inductor"]
    source = Path(__file__).with_name("replay_workloads.py").read_text().splitlines()
    named = [spec.lines[line] for line in trace.line]
    assert all(LINE_OF_SIN in line for line in named)
    assert all("torch.sin" in source[int(line.rpartition(":")[2]) - 1] for line in named)
    assert spec.attributes[trace.attribute[1]] == "fused=addmm_sin,number=0"


def test_what_cannot_be_lowered_falls_to_the_rules(replays: Replays) -> None:
    """The plan is there with its ordinary trace, and the reason is one line."""
    reason = replays.told("broken_lowering")["failed"]["inductor"]
    assert "this operator has no kernel yet" in reason
    assert "\n" not in reason
    trace = replays.trace("broken_lowering")
    assert not trace.replayed
    assert (trace.region >= 0).all()


@pytest.mark.parametrize("name", ["two_layers", "attention", "stack"])
def test_a_replayed_trace_is_marked_and_travels(replays: Replays, name: str) -> None:
    """The mark survives JSON, is part of the graph's id, and its nodes are in no region."""
    spec = replays.spec(name)
    again = GraphSpec.from_json(spec.to_json())
    assert again.traces["inductor"].replayed
    assert (again.traces["inductor"].region == -1).all()
    plain = {"inductor": dataclasses.replace(spec.traces["inductor"], replayed=False)}
    unmarked = dataclasses.replace(spec, traces={**spec.traces, **plain}, limits=spec._limits)
    assert unmarked.graph_id != spec.graph_id


def test_a_mark_that_cannot_be_is_refused(replays: Replays) -> None:
    """No compiler runs eager, a region says that nothing is decided yet, and the mark is true or false."""
    document: dict[str, Any] = replays.spec("two_layers").to_dict()
    document["traces"]["eager"]["replayed"] = True
    with pytest.raises(SpecError, match=r"traces\.eager\.replayed: is said of plan eager"):
        GraphSpec.from_json(document)
    document = replays.spec("two_layers").to_dict()
    document["traces"]["eager"]["compiled_again"] = 0
    with pytest.raises(SpecError, match=r"traces\.eager\.compiled_again: is said of plan eager"):
        GraphSpec.from_json(document)
    document = replays.spec("two_layers").to_dict()
    count = len(document["traces"]["inductor"]["op"])
    document["traces"]["inductor"]["region"] = [0] * count
    with pytest.raises(SpecError, match=r"traces\.inductor\.replayed: is true of a trace with compiled regions"):
        GraphSpec.from_json(document)
    document = replays.spec("two_layers").to_dict()
    document["traces"]["inductor"]["replayed"] = 1
    with pytest.raises(SpecError, match="true or false"):
        GraphSpec.from_json(document)


def test_the_pair_takes_it_as_simulated(replays: Replays) -> None:
    """Nothing learned of the rules' errors is put on top, and no kernel of the compiler counts as unknown."""
    spec = replays.spec("stack")
    run, device = RunSpec(optimizer="SGD", implementation="foreach"), DeviceSpec(name="NVIDIA H200")
    (plan,) = Predictor.load().predict(spec, run=run, device=device, plans=["inductor"]).plans
    prior = simulate(spec, "inductor", run, device)
    assert plan.steady_allocated.expected_bytes == prior.steady_allocated_bytes
    assert not any("inductor.kernel" in doubt for doubt in plan.doubts)


def test_other_versions_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that replay was not tried with, and a host without Triton, are told apart."""
    real = importlib.metadata.version
    check_versions()
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.9.1" if name == "torch" else real(name))
    with pytest.raises(ReplayUnavailable, match=r"torch 2\.9\.1: inductor is replayed under torch 2\.11 and 2\.13"):
        check_versions()

    def without_triton(name: str) -> str:
        if name == "triton":
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", without_triton)
    with pytest.raises(ReplayUnavailable, match="Triton is not installed"):
        check_versions()
