"""Compiled plans under capture: which graphs there are, what they save, and that eager parts stay eager."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from captured import Captured, held, sizes
from torch import fx
from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_mutation

from peakcast.featurizer.capture import dry_run
from peakcast.featurizer.trace import Trace
from peakcast.featurizer.vocabulary import BACKWARD, FORWARD, GRADIENT, SAVED

ACTIVATION_BYTES = 16 * 64 * 4
WEIGHT_BYTES, BIAS_BYTES = 64 * 64 * 4, 64 * 4


def _calls(trace: Trace, phase: int) -> list[int]:
    """Return the compiled calls of a phase in the order they run."""
    regions = trace.region[(trace.phase == phase) & (trace.region >= 0)]
    return regions[np.flatnonzero(np.diff(regions, prepend=-1))].tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("name", "plan", "calls"),
    [
        ("stack", "eager", 0),
        ("stack", "eager:checkpoint", 0),
        ("stack", "inductor", 1),
        ("stack", "inductor:budget=0", 1),
        ("stack", "hybrid", 3),
        ("broken_stack", "inductor", 3),
    ],
)
def test_one_region_for_each_compiled_call(captured: Captured, name: str, plan: str, calls: int) -> None:
    """A whole model is one call, a graph break or a block starts another; they go backward in reverse."""
    trace = captured.trace(name, plan)
    assert _calls(trace, FORWARD) == list(range(calls))
    assert _calls(trace, BACKWARD) == list(range(calls))[::-1]


def test_a_step_that_is_compiled_once_more_is_not_the_one_recorded(captured: Captured) -> None:
    """Of the second step, which holds its own tracing, nothing is left: one call forward, and nothing beside it."""
    trace = captured.trace("settling", "inductor")
    assert len(_calls(trace, FORWARD)) == len(_calls(trace, BACKWARD)) == 1
    assert (trace.region[trace.phase == FORWARD] >= 0).all()


def test_a_second_compile_is_noted_with_the_first_node_that_differs(captured: Captured) -> None:
    """What the first call kept is added within the second product; without any of it nothing is known to be new."""
    trace, ops = captured.trace("keeping", "inductor"), captured.ops("keeping", "inductor")
    assert ops[: trace.compiled_again + 1] == [f"aten.{op}.default" for op in ("tanh", "permute", "mm", "addmm")]
    assert captured.trace("keeping", "eager").compiled_again == -1
    assert captured.trace("settling", "inductor").compiled_again == -1
    assert captured.trace("stack", "inductor").compiled_again == -1


@pytest.mark.parametrize("plan", ["eager", "hybrid"])
def test_what_runs_eagerly_does_not_look_traced(captured: Captured, plan: str) -> None:
    """Code that asks for fake tensors takes the way of a real run: no exponential before the first block."""
    ops = captured.ops("watchful", plan)
    assert ops.index("aten.exp.default") > ops.index("aten.addmm.default")


def test_loss_and_optimizer_stay_outside(captured: Captured) -> None:
    """What the compiler does not see runs eagerly, gradients included."""
    trace, ops = captured.trace("stack", "inductor"), captured.ops("stack", "inductor")
    outside = [ops[node] for node in np.flatnonzero(trace.region < 0)]
    assert outside[0] == "aten.sum.default"
    assert outside[-1] == "aten._foreach_add_.List"
    assert sizes(trace, GRADIENT) == [BIAS_BYTES] * 3 + [WEIGHT_BYTES] * 3


@pytest.mark.parametrize(
    ("plan", "activations"),
    [
        # Inputs of gelu and sin, results of exp (which cos reads) and tanh, and the block's own for the next product;
        # the last block's is not needed: 5 + 5 + 4.
        ("eager", 14),
        # The partitioner keeps the products (3) and the inputs of the second and third block.
        ("inductor", 5),
        ("hybrid", 5),
        # All is recomputed from the parameters and the batch.
        ("inductor:budget=0", 0),
        # The inputs of the second and third block.
        ("eager:checkpoint", 2),
    ],
)
def test_what_each_plan_saves(captured: Captured, plan: str, activations: int) -> None:
    """Budgets and checkpointing change what the forward keeps for the backward."""
    saved = [nbytes for nbytes in sizes(captured.trace("stack", plan), SAVED) if nbytes > 4]
    assert saved == [ACTIVATION_BYTES] * activations


def test_functionalised_graphs(captured: Captured) -> None:
    """The compiled graph of an in-place step holds the out-of-place operators that the compiler sees."""
    assert captured.ops("in_place", "inductor") == ["aten.mul.Tensor", "aten.relu.default", "aten.view.default"]


def test_a_padded_product_is_sliced_and_copied_where_it_cannot_be_viewed(captured: Captured) -> None:
    """Weight and result have 4,096 columns, one more than asked for; to lie in a row its elements are copied."""
    trace, ops = captured.trace("flattened", "inductor"), captured.ops("flattened", "inductor")
    half = 2
    made = trace.storages.bytes[trace.storages.born >= 0].tolist()
    assert made == [1024 * 4096 * half, 8192 * 4096 * half, 8192 * 4095 * half]
    assert [ops[node] for node in trace.storages.born[trace.storages.born >= 0]] == [
        "aten.constant_pad_nd.default",
        "aten.mm.default",
        "aten.clone.default",
    ]


def test_what_is_written_over_dies_with_its_last_reader(captured: Captured) -> None:
    """Passes leave views without a reader behind, which are never lowered: they keep nothing to the graph's end."""
    trace, ops = captured.trace("pasted", "inductor"), captured.ops("pasted", "inductor")
    whole_bytes = 2 * 16 * (64 + 8) * 4
    pastes = [
        storage
        for storage, born in enumerate(trace.storages.born.tolist())
        if born >= 0 and trace.storages.bytes[storage] == whole_bytes and "scatter" in ops[born]
    ]
    reads = np.repeat(np.arange(len(trace)), trace.inputs.sizes())
    assert len(pastes) >= 2
    for storage in pastes:
        assert trace.storages.died[storage] == reads[trace.inputs.ids == storage].max()


def test_compiled_backward_holds_all_gradients(captured: Captured) -> None:
    """A graph returns all its gradients at once: they die together, after the optimizer's last node."""
    trace = captured.trace("stack", "inductor")
    assert {died for _, _, died in held(trace, GRADIENT)} == {len(trace) - 1}


def test_what_writes_counts_without_a_reader() -> None:
    """A user's Triton kernel writes what it is given and returns nothing: it is no dead code, a view is."""
    graph = fx.Graph()
    given = graph.placeholder("given")
    graph.call_function(torch.ops.aten.slice.Tensor, (given,))
    kernel = graph.call_function(triton_kernel_wrapper_mutation, (), {"kwargs": {"out": given}})
    graph.output(None)
    graph.eliminate_dead_code(dry_run._has_effects)
    assert [node for node in graph.nodes if node.op == "call_function"] == [kernel]
