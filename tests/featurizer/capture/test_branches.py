"""`torch.cond` under capture: both branches are recorded, and the larger one counts."""

from __future__ import annotations

import pytest
from captured import Captured, sizes

from peakcast.featurizer.lifetimes import observed_lifetimes, step_events
from peakcast.featurizer.trace import Trace
from peakcast.featurizer.vocabulary import BACKWARD, FORWARD, INPUT, OUTPUT, PARAMETER

PLANS = ("eager", "inductor")
# x [16, 64] goes up to [16, 1024] and down again, or straight through.
INPUT_BYTES, WIDE_BYTES = 16 * 64 * 4, 16 * 1024 * 4
UP_BYTES, SMALL_BYTES = 64 * 1024 * 4, 64 * 64 * 4


def _peak_bytes(trace: Trace) -> int:
    """Play the events of a step."""
    step = step_events(trace, observed_lifetimes(trace))
    alive = most = int(step.bytes[step.start].sum())
    for event in step.events:
        alive += int(step.bytes[event]) if event >= 0 else -int(step.bytes[~event])
        most = max(most, alive)
    return most


@pytest.mark.parametrize("plan", PLANS)
def test_both_branches_are_traces_of_their_own(captured: Captured, plan: str) -> None:
    """The node names two branches; batch and weights come from outside, the result is handed out."""
    spec = captured.spec("choice")
    trace = spec.traces[plan]
    ((node, (wide, small)),) = trace.branches
    assert spec.ops[trace.op[node]] == "higher_order.cond"
    for branch in (wide, small):
        assert sizes(branch, INPUT) == sorted([INPUT_BYTES, UP_BYTES, UP_BYTES, SMALL_BYTES])
        assert (branch.storages.born[branch.storages.role == INPUT] == -1).all()
        assert sizes(branch, OUTPUT) == [INPUT_BYTES]
    assert {spec.ops[op] for op in wide.op} >= {"aten.mm.default", "aten.relu.default"}
    assert "aten.relu.default" not in {spec.ops[op] for op in small.op}


@pytest.mark.parametrize("plan", PLANS)
def test_the_larger_branch_counts(captured: Captured, plan: str) -> None:
    """Outside live the weights and the batch; inside, at most the two wide tensors around the relu."""
    trace = captured.trace("choice", plan)
    outside = 2 * UP_BYTES + SMALL_BYTES + INPUT_BYTES
    assert sum(sizes(trace, PARAMETER)) + sum(sizes(trace, INPUT)) == outside
    sums = [4, 1]  # x.sum(), and whether it is positive
    inside = 2 * WIDE_BYTES
    assert outside + inside <= _peak_bytes(trace) <= outside + inside + sum(sums)


@pytest.mark.parametrize("plan", PLANS)
def test_backward_branches_too(captured: Captured, plan: str) -> None:
    """A trained choice records the branches of its forward and of its backward, which recomputes."""
    spec = captured.spec("choice_trained")
    trace = spec.traces[plan]
    assert [int(trace.phase[node]) for node, _ in trace.branches] == [FORWARD, BACKWARD]
    _, (wide, small) = trace.branches[1]
    # Each returns a gradient for every operand that wants one, zeros for the weights of the other branch.
    for branch in (wide, small):
        assert [size for size in sizes(branch, OUTPUT) if size > INPUT_BYTES] == [SMALL_BYTES, UP_BYTES, UP_BYTES]
    matmuls = [sum(spec.ops[op] == "aten.mm.default" for op in branch.op) for branch in (wide, small)]
    assert matmuls[0] > matmuls[1] > 0
