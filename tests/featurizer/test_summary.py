"""The summary is the same named numbers for every graph, and they say what they should."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from handmade import MIB, Sketch
from hypothesis import given
from strategies import graph_specs

from peakcast.featurizer.op_classes import OP_CLASSES, op_class
from peakcast.featurizer.prior import simulate
from peakcast.featurizer.run import DeviceSpec, RunSpec
from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.summary import FEATURES, summarize
from peakcast.featurizer.vocabulary import BACKWARD, INPUT, PARAMETER

RUN, HOPPER = RunSpec(optimizer="AdamW", implementation="foreach", autocast="bfloat16"), DeviceSpec()


def summary_of(
    spec: GraphSpec, plan: str = "eager", run: RunSpec = RUN, device: DeviceSpec = HOPPER
) -> dict[str, float]:
    """Summarise one plan."""
    return summarize(spec, plan, simulate(spec, plan, run, device), run, device)


def convolution(scale: int = 1) -> Sketch:
    """Return a convolution of 10 MiB into 30 with a weight of 20, and a product in the backward of 40."""
    sketch = Sketch()
    weight, x = sketch.start(20 * MIB * scale, PARAMETER), sketch.start(10 * MIB * scale, INPUT)
    (y,) = sketch.node("aten.convolution.default", 30 * MIB * scale, reads=[x, weight])
    (z,) = sketch.node("aten.mm.default", 40 * MIB * scale, phase=BACKWARD, reads=[y], dies=[y])
    sketch.node("aten.sum.default", phase=BACKWARD, reads=[z], dies=[z])
    return sketch


def test_names_are_unique_and_in_order() -> None:
    """`summarize` gives FEATURES, no more, no fewer, in that order."""
    assert len(set(FEATURES)) == len(FEATURES)
    assert tuple(summary_of(convolution().spec())) == FEATURES


def test_shares_are_of_the_prior() -> None:
    """The peak is 20 + 10 + 30 + 40 and a workspace of 32: 132 MiB."""
    summary = summary_of(convolution().spec())
    assert summary["log2_steady_allocated_mib"] == pytest.approx(math.log2(133))
    assert summary["parameters_share"] == pytest.approx(20 / 132)
    assert summary["workspace_share"] == pytest.approx(32 / 132)
    assert summary["conv_born_share"] == pytest.approx(30 / 132)
    assert summary["matmul_born_share"] == pytest.approx(40 / 132)
    assert summary["backward_phase_born_share"] == pytest.approx(40 / 132)
    assert summary["conv_nodes_share"] == pytest.approx(1 / 3)
    # Read 20 and 10, written 30.
    assert summary["conv_scratch_share"] == pytest.approx(60 / 132)
    assert summary["largest_storage_share"] == pytest.approx(40 / 132)
    assert (summary["peak_in_backward"], summary["peak_in_forward"]) == (1.0, 0.0)
    assert summary["fp32_born_fraction"] == 1.0


def test_run_plan_and_device_flags() -> None:
    """Flags follow the run and the plan asked for, not the trace used."""
    summary = summary_of(convolution().spec(), "inductor:budget=0.5")
    assert (summary["is_compiled"], summary["budget"], summary["is_derived"]) == (1.0, 0.5, 1.0)
    assert (summary["optimizer_adamw"], summary["optimizer_sgd"], summary["implementation_foreach"]) == (1.0, 0.0, 1.0)
    assert (summary["torch_version"], summary["device_capability"]) == (213.0, 9.0)
    unknown = summary_of(convolution().spec(), device=DeviceSpec(name="Z9000"))
    assert math.isnan(unknown["device_capability"])
    assert math.isnan(unknown["budget"])


def test_shares_do_not_depend_on_scale() -> None:
    """Everything four times as large leaves shares without a workspace in them alike."""
    small, large = (
        {name: value for name, value in summary_of(convolution(scale).spec()).items() if name.endswith("_nodes_share")}
        for scale in (1, 4)
    )
    assert small == large


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("aten.mm.default", "matmul"),
        ("aten.convolution_backward.default", "conv"),
        ("aten._scaled_dot_product_flash_attention_backward.default", "attention_flash"),
        ("aten._scaled_dot_product_efficient_attention.default", "attention_efficient"),
        ("aten._scaled_dot_product_cudnn_attention.default", "attention_cudnn"),
        ("aten.cudnn_batch_norm.default", "norm"),
        ("aten._log_softmax.default", "loss"),
        ("aten._softmax.default", "softmax"),
        ("aten.embedding_dense_backward.default", "embedding"),
        ("aten.max_pool2d_with_indices_backward.default", "pooling"),
        ("aten.index_put_.default", "scatter"),
        ("aten.index.Tensor", "gather"),
        ("aten._foreach_add_.List", "foreach"),
        ("aten.add_.Tensor", "pointwise"),
        ("aten.squeeze_.dim", "view"),
        ("aten.sum.dim_IntList", "reduction"),
        ("aten.sort.default", "sort"),
        ("higher_order.cond", "control"),
        ("mylib.scan.out", "custom"),
    ],
)
def test_class_of_an_operator(op: str, expected: str) -> None:
    """Backward operators share the class of their forward."""
    assert op_class(op) == expected


@given(spec=graph_specs())
def test_any_graph_gives_the_same_columns(spec: GraphSpec) -> None:
    """All features are there, finite or NaN, whatever the graph."""
    traces = {plan: dataclasses.replace(t, region=np.full(len(t), -1, np.int32)) for plan, t in spec.traces.items()}
    spec = dataclasses.replace(spec, traces=traces)
    for plan in spec.traces:
        summary = summary_of(spec, plan)
        assert tuple(summary) == FEATURES
        assert not any(math.isinf(value) for value in summary.values())


def test_classes_are_unique() -> None:
    """A class names one column."""
    assert len(set(OP_CLASSES)) == len(OP_CLASSES)
