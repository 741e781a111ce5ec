"""A captured step: every byte under its role, from the node that makes it to the node after which it is gone."""

from __future__ import annotations

import numpy as np
import pytest
from captured import Captured, held, sizes

from peakcast.featurizer.vocabulary import (
    BACKWARD,
    BUFFER,
    FORWARD,
    GRADIENT,
    INPUT,
    LOSS,
    OPTIMIZER,
    OPTIMIZER_STATE,
    OUTPUT,
    PARAMETER,
    SAVED,
    TEMPORARY,
)

FLOAT_BYTES = 4
WEIGHT_BYTES = 64 * 32 * FLOAT_BYTES
BIAS_BYTES = 32 * FLOAT_BYTES
INPUT_BYTES = 16 * 64 * FLOAT_BYTES
OUTPUT_BYTES = 16 * 32 * FLOAT_BYTES


def test_roles_and_bytes_of_a_linear_layer(captured: Captured) -> None:
    """Weight, bias, batch, output and gradients have the bytes their shapes say; plain SGD keeps nothing."""
    trace = captured.trace("sgd")
    assert sizes(trace, PARAMETER) == [BIAS_BYTES, WEIGHT_BYTES]
    assert sizes(trace, INPUT) == [INPUT_BYTES]
    assert sizes(trace, GRADIENT) == [BIAS_BYTES, WEIGHT_BYTES]
    assert sizes(trace, TEMPORARY) == [OUTPUT_BYTES]  # a sum saves no tensor
    assert sizes(trace, OPTIMIZER_STATE) == sizes(trace, OUTPUT) == []
    assert sizes(trace, SAVED) == [FLOAT_BYTES, FLOAT_BYTES]  # the loss, and the gradient of itself


def test_births_and_deaths(captured: Captured) -> None:
    """The output lives from the matrix product to the loss, a gradient from the backward to the end."""
    trace, ops = captured.trace("sgd"), captured.ops("sgd")
    made, summed = ops.index("aten.addmm.default"), ops.index("aten.sum.default")
    assert held(trace, TEMPORARY) == [(OUTPUT_BYTES, made, summed)]
    assert held(trace, PARAMETER) == [(WEIGHT_BYTES, -1, -1), (BIAS_BYTES, -1, -1)]
    last = len(trace) - 1
    weight, bias = ops.index("aten.mm.default"), ops.index("aten.sum.dim_IntList")
    assert held(trace, GRADIENT) == [(WEIGHT_BYTES, weight, last), (BIAS_BYTES, bias, last)]


def test_phases_follow_the_step(captured: Captured) -> None:
    """Forward, loss, backward, optimizer, in this order."""
    trace = captured.trace("sgd")
    assert (np.diff(trace.phase.astype(int)) >= 0).all()
    assert set(trace.phase) == {FORWARD, LOSS, BACKWARD, OPTIMIZER}
    assert captured.ops("sgd")[-1] == "aten._foreach_add_.List"


def test_lines_are_the_users(captured: Captured) -> None:
    """A node names the line of the user's file that called it, not torch's."""
    spec = captured.spec("in_place")
    lines = {spec.lines[line] for line in spec.traces["eager"].line}
    assert len(lines) == 1
    assert "workloads.py:" in lines.pop()


def test_profiler_marks_are_no_nodes(captured: Captured) -> None:
    """The marks that optimizers leave for the profiler touch no bytes."""
    assert not [op for op in captured.ops("sgd") if not op.startswith("aten.")]


def test_in_place_and_views_make_no_storage(captured: Captured) -> None:
    """`relu_` and `view` write and return the storage of the product."""
    trace = captured.trace("in_place")
    assert captured.ops("in_place") == ["aten.mul.Tensor", "aten.relu_.default", "aten.view.default"]
    assert held(trace, TEMPORARY) == [(INPUT_BYTES, 0, 2)]
    product = trace.outputs.row(0).tolist()
    for node in (1, 2):
        assert trace.inputs.row(node).tolist() == trace.outputs.row(node).tolist() == product


def test_tied_weights_count_once(captured: Captured) -> None:
    """One table of 100 rows is parameter and gradient once, though two modules hold it."""
    trace = captured.trace("tied")
    assert sizes(trace, PARAMETER) == sizes(trace, GRADIENT) == [100 * 64 * FLOAT_BYTES]


def test_accumulated_gradients_live_through_the_second_micro_batch(captured: Captured) -> None:
    """Gradients are born in the first backward; the second adds to them and frees its own."""
    trace = captured.trace("accumulated")
    second_forward = int(np.flatnonzero(trace.phase == FORWARD)[-1])
    gradients = held(trace, GRADIENT)
    assert [nbytes for nbytes, _, _ in gradients] == [WEIGHT_BYTES, BIAS_BYTES]
    assert all(born < second_forward < died for _, born, died in gradients)
    added = [row for row in held(trace, TEMPORARY) if row[0] in (WEIGHT_BYTES, BIAS_BYTES)]
    assert all(second_forward < born <= died < len(trace) - 1 for _, born, died in added)
    assert len(added) == 2


def test_zero_grad_decides_how_long_a_gradient_lives(captured: Captured) -> None:
    """Dropped last: gone with the step. Dropped first: here when the next begins. Zeroed: here for good."""
    last = captured.trace("zero_grad_last")
    born = captured.ops("zero_grad_last").index("aten.mm.default", 2)
    assert held(last, GRADIENT) == [(WEIGHT_BYTES, born, len(last) - 1)]
    assert held(captured.trace("zero_grad_first"), GRADIENT) == [(WEIGHT_BYTES, -1, 0), (WEIGHT_BYTES, born, -1)]
    kept = captured.trace("zero_grad_kept")
    assert held(kept, GRADIENT) == [(WEIGHT_BYTES, -1, -1)]
    assert WEIGHT_BYTES in sizes(kept, TEMPORARY)  # what the backward adds to it


def test_a_hook_that_keeps_an_activation_keeps_its_bytes(captured: Captured) -> None:
    """The detached output outlives the step."""
    made = captured.ops("hook").index("aten.addmm.default")
    assert held(captured.trace("hook"), OUTPUT) == [(OUTPUT_BYTES, made, -1)]


def test_own_autocast_and_scaler(captured: Captured) -> None:
    """A step function with its own autocast and GradScaler runs scaled, unscales, clips, and takes its step."""
    spec, ops = captured.spec("scaled"), captured.ops("scaled")
    assert spec.captured_with["autocast"] == "float16"
    wanted = (
        "aten._amp_foreach_non_finite_check_and_unscale_.default",
        "aten.linalg_vector_norm.default",
        "aten._foreach_add_.List",
        "aten._amp_update_scale_.default",
    )
    places = [ops.index(op) for op in wanted]
    assert places == sorted(places)
    trace = spec.traces["eager"]
    # Casts of batch and weight to half, kept for the backward; autocast caches the weight's until it is left.
    assert INPUT_BYTES // 2 in sizes(trace, SAVED)
    assert sizes(trace, GRADIENT) == [WEIGHT_BYTES]
    assert not [fact for fact in spec.captured_with if fact.startswith("guessed_")]


def test_what_a_closure_holds_is_alive_throughout(captured: Captured) -> None:
    """An averaged copy of the weights, and the batch, are there from start to end."""
    assert held(captured.trace("ema"), BUFFER) == [(INPUT_BYTES, -1, -1), (WEIGHT_BYTES, -1, -1)]


def test_frozen_parts_have_neither_gradient_nor_state(captured: Captured) -> None:
    """Of a frozen layer with a rank-4 adapter only the adapter has them."""
    trace = captured.trace("adapters")
    factor = 4 * 64 * FLOAT_BYTES
    assert sizes(trace, PARAMETER) == [factor, factor, 64 * 64 * FLOAT_BYTES]
    assert sizes(trace, GRADIENT) == [factor, factor]
    assert sizes(trace, OPTIMIZER_STATE) == [factor] * 4


def test_a_transposed_input_adds_its_bias_in_place(captured: Captured) -> None:
    """As for plain tensors: one copy of the input, one result of [16, 8, 32], no second one."""
    trace = captured.trace("transposed")
    assert captured.ops("transposed")[-1] == "aten.add_.Tensor"
    assert sizes(trace, TEMPORARY) == [16 * 8 * 32 * FLOAT_BYTES, 16 * 8 * 64 * FLOAT_BYTES]


def test_inference_mode_is_taken_apart(captured: Captured) -> None:
    """Below autograd a linear layer still shows as the product it runs."""
    assert captured.ops("inference_mode") == ["aten.t.default", "aten.addmm.default"]
    assert captured.spec("inference_mode").captured_with["task"] == "inference"


@pytest.mark.parametrize("plan", ["eager", "inductor"])
def test_a_model_that_must_be_built_for_real(captured: Captured, plan: str) -> None:
    """Tensors in plain attributes, lists, closures and caches are on the GPU, too, each with its bytes."""
    trace = captured.trace("stubborn", plan)
    eight, labels = 8 * FLOAT_BYTES, 4 * 8
    assert sizes(trace, PARAMETER) == [eight, 8 * eight]
    assert sizes(trace, BUFFER) == [eight, eight, eight, labels, eight]


def test_errors_say_what_to_do(captured: Captured) -> None:
    """The user's own mistake comes through, and what cannot be captured is named."""
    assert "[16, 32] X [64, 32]" in captured.error("fails")
    assert "Give the padded batch" in captured.error("packed")
    assert "needs Workload(model=...)" in captured.error("only_step")


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("fixed_bias", "_scaled_dot_product_cudnn_attention"),
        ("learned_bias", "_scaled_dot_product_efficient_attention"),
        ("turned_bias", "_safe_softmax"),
    ],
)
def test_attention_in_half_precision_goes_where_its_bias_can_go(captured: Captured, name: str, kernel: str) -> None:
    """As on an H200 with torch 2.11: cuDNN takes a bias, the memory-efficient kernel one that wants a gradient."""
    found = {"cudnn_attention", "efficient_attention", "flash_attention", "_safe_softmax"}
    kernels = {op for op in captured.ops(name) if any(part in op for part in found) and "backward" not in op}
    assert kernels == {f"aten.{kernel}.default"}
