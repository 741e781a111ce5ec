"""Confidence follows what was measured: within it, stretched beyond it, or nothing known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from samples import make_facts

from peakcast.featurizer.trace import Csr, Storages, Trace
from peakcast.models.coverage import Coverage, unfused_bytes


@pytest.fixture(scope="module")
def coverage() -> Coverage:
    """Return what one eager training record of mm and add covers."""
    return Coverage.fit([make_facts()])


def test_what_was_measured_is_in_distribution(coverage: Coverage) -> None:
    """The record itself, another overload and an in-place twin raise no doubt."""
    again = make_facts(op_share={"aten.mm.default": 0.9, "aten.add_.Scalar": 0.1})
    assert coverage.judge(again) == ("in_distribution", ())


@pytest.mark.parametrize(
    ("changed", "doubt"),
    [
        ({"op_share": {"aten.mm.default": 0.95, "aten.fold.default": 0.05}}, "aten.fold"),
        ({"op_share": {"aten.mm.default": 1.0, "aten.nonzero.default": 0.0}}, "depend on the data"),
        ({"dtypes": frozenset({"float64"})}, "float64"),
        ({"optimizer": "SGD/loop"}, "SGD"),
        ({"autocast": "float16"}, "float16"),
        ({"device": "sm_7"}, "sm_7"),
        ({"card": "H100"}, "card H100 was not measured (only H200)"),
        ({"card": "H200 MIG 3G.71GB"}, "a slice of a card"),
        ({"card": "GRID H200-4C"}, "a slice of a card"),
        ({"torch": "2.99"}, "2.99"),
        ({"traced_on": "cpu"}, "as the CPU runs it"),
        ({"log2_nodes": 12.0}, "nodes"),
        ({"guessed_sizes": 2}, "2 sizes that were guessed"),
        ({"log2_prior": 38.0}, "256.00 GiB"),
        ({"task": "inference"}, "inference"),
        ({"accumulates": True}, "accumulation"),
        ({"allocator": "expandable_segments:True"}, "expandable"),
        ({"compiles_itself": True}, "compiles parts by itself"),
    ],
)
def test_beyond_what_was_measured_is_extrapolating(coverage: Coverage, changed: dict[str, Any], doubt: str) -> None:
    """One thing out of range is named, and the answer is extrapolated."""
    confidence, doubts = coverage.judge(make_facts(**changed))
    assert confidence == "extrapolating"
    assert doubt in doubts[0]


@pytest.mark.parametrize(
    ("changed", "doubt"),
    [
        ({"op_share": {"aten.mm.default": 1.0, "mylib.attend.default": 0.0}}, "mylib.attend"),
        ({"op_share": {"aten.mm.default": 0.7, "aten.fold.default": 0.3}}, "write 30% of the bytes"),
        ({"dtypes": frozenset({"float4"})}, "float4"),
        ({"card": "AMD INSTINCT MI300X", "device": "AMD Instinct MI300X"}, "does not run CUDA"),
        ({"guessed_values": 3, "guessed_sizes": 1}, "branches on 3 values that were guessed"),
        ({"contradictions": ("the run says optimizer SGD",)}, "the run says optimizer SGD"),
        ({"world_size": 8}, "8 ranks"),
        ({"own_cuda_graphs": True}, "CUDA graphs by itself"),
        ({"plan_kind": "inductor", "trace_plan": "eager", "derived": True}, "says little about it"),
        ({"plan_kind": "eager:checkpoint", "derived": True}, "was not measured"),
    ],
)
def test_what_nothing_is_known_of_is_unknown(coverage: Coverage, changed: dict[str, Any], doubt: str) -> None:
    """A foreign op, dtype or regime is unknown however small its share, and named first."""
    confidence, doubts = coverage.judge(make_facts(**changed))
    assert confidence == "unknown"
    assert doubt in doubts[0]


def test_cautious_bound_counts_scratch_of_unseen_ops(coverage: Coverage) -> None:
    """Unfused the step takes 8 GiB; an unseen op that writes half of 2 GiB may keep it and take 1 GiB of scratch."""
    facts = make_facts(op_share={"aten.mm.default": 0.5, "aten.fold.default": 0.5})
    assert coverage.cautious_bytes(facts) == (8 + 2) << 30


def test_cautious_bound_is_doubled_where_an_op_is_opaque(coverage: Coverage) -> None:
    """The same share written by an op that is not PyTorch's own: twice the 10 GiB."""
    facts = make_facts(op_share={"aten.mm.default": 0.5, "mylib.attend.default": 0.5})
    assert coverage.opaque(facts) == ("mylib.attend.default",)
    assert coverage.cautious_bytes(facts) == 20 << 30


@pytest.mark.parametrize("op", ["higher_order.cond", "profiler._record_function_exit._RecordFunction", "prims.iota.x"])
def test_pytorchs_own_ops_are_not_opaque(coverage: Coverage, op: str) -> None:
    """Whatever PyTorch registers itself is its own, higher-order operators too: unmeasured, with a share of nothing."""
    facts = make_facts(op_share={"aten.mm.default": 1.0, op: 0.0})
    assert coverage.opaque(facts) == ()
    assert coverage.judge(facts) == ("in_distribution", ())


def test_a_look_alike_of_a_namespace_is_opaque(coverage: Coverage) -> None:
    """`c10d` is PyTorch's, `c10dx` is not."""
    assert coverage.opaque(make_facts(op_share={"c10dx.send.default": 0.0})) == ("c10dx.send.default",)


def test_few_nodes_are_no_doubt(coverage: Coverage) -> None:
    """13 nodes of a size that was measured are covered; of a size that was not, the bytes say so."""
    assert coverage.judge(make_facts(log2_nodes=3.8)) == ("in_distribution", ())
    assert "GiB" in coverage.judge(make_facts(log2_nodes=3.8, log2_prior=10.0))[1][0]


def test_survives_json(coverage: Coverage) -> None:
    """Plain values give the same judge back."""
    again = Coverage(**coverage.to_dict())
    assert again == coverage
    assert again.judge(make_facts()) == ("in_distribution", ())


def test_cautious_bound_counts_a_second_copy_of_gradients(coverage: Coverage) -> None:
    """Ranks that were not measured may keep buckets: 8 GiB unfused and 1 GiB of gradients again."""
    assert coverage.cautious_bytes(make_facts(world_size=2)) == (8 + 1) << 30


def test_unfused_peak_by_hand() -> None:
    """Three nodes: a parameter of 1,024 bytes throughout, two temporaries that never live together, one on the CPU."""
    storages = Storages(
        bytes=np.array([1000, 5000, 3000, 10**6]),
        device=np.array([1, 1, 1, 0], np.uint8),
        role=np.zeros(4, np.uint8),
        born=np.array([-1, 0, 2, 0], np.int32),
        died=np.array([-1, 1, 2, 2], np.int32),
    )
    zeros, empty = np.zeros(3, np.uint8), Csr(np.zeros(4, np.int32), np.zeros(0, np.int32))
    numbers = np.zeros(3, np.int32)
    trace = Trace(
        zeros, numbers, zeros, numbers.astype(np.int64), zeros, zeros, numbers, numbers, empty, empty, storages
    )
    assert unfused_bytes(trace) == 1024 + 5120


def test_joined_coverage_is_what_either_covered(coverage: Coverage) -> None:
    """A second place's op, dtype, task and sizes are covered; what neither saw is not."""
    facts = {"op_share": {"aten.fold.default": 1.0}, "dtypes": frozenset({"bfloat16"}), "torch": "2.99"}
    both = coverage.joined(Coverage.fit([make_facts(**facts, log2_prior=33.0, task="inference")]))
    assert both.judge(make_facts())[0] == "in_distribution"
    assert both.judge(make_facts(**facts, task="inference", log2_prior=33.5))[0] == "in_distribution"
    assert both.judge(make_facts(torch="2.98"))[0] == "extrapolating"
    wider = coverage.joined(Coverage.fit([make_facts(log2_prior=36.0)]))
    assert wider.plan_tasks == {"eager/training": [10.0, 10.0, 31.0, 36.0]}


def test_a_rank_that_was_captured_as_one_is_extrapolated(coverage: Coverage) -> None:
    """The graph of one of 8 ranks holds its buckets and shards: nothing is added for them, but 8 were not measured."""
    confidence, doubts = coverage.judge(make_facts(world_size=8, is_a_rank=True))
    assert confidence == "extrapolating"
    assert any("8 ranks were not measured" in doubt for doubt in doubts)
    assert coverage.cautious_bytes(make_facts(world_size=8, is_a_rank=True)) == 8 << 30
