"""The tape by itself, on real tensors of the CPU."""

from __future__ import annotations

import torch

from peakcast.featurizer.capture.tape import StepClock, Tape
from peakcast.featurizer.vocabulary import BACKWARD, FORWARD, LOSS, OPTIMIZER, PARAMETER


def test_storages_from_birth_to_death() -> None:
    """What is dropped dies at the node before; what is kept lives on; what was there is held."""
    weight = torch.ones(8, 8)
    tape = Tape(StepClock())
    tape.hold([weight, weight.view(64)], PARAMETER)
    with tape:
        product = weight @ weight  # node 0
        total = product.sum()  # node 1
        del product
        kept = total * 2  # node 2
    recording = tape.stop()
    assert [node.op for node in recording.nodes] == ["aten.mm.default", "aten.sum.default", "aten.mul.Tensor"]
    assert [(s.nbytes, s.born, s.died, s.role) for s in recording.storages] == [
        (256, -1, -1, PARAMETER),
        (256, 0, 1, None),
        (4, 1, -1, None),
        (4, 2, -1, None),
    ]
    assert float(kept) == 1024.0


def test_after_the_stop_nothing_dies() -> None:
    """What is alive at the end outlives the step, whatever becomes of it later."""
    tape = Tape(StepClock())
    with tape:
        made = torch.ones(4) + 1
    recording = tape.stop()
    del made
    assert recording.storages[-1].died == -1


def test_lists_that_are_written_in_place_are_outputs() -> None:
    """A foreach operator returns nothing, yet writes to all its tensors."""
    tensors = [torch.ones(4), torch.ones(6)]
    tape = Tape(StepClock())
    tape.hold(tensors, PARAMETER)
    with tape:
        torch._foreach_add_(tensors, 1.0)
    (node,) = tape.stop().nodes
    assert (node.inputs, node.outputs, node.shape) == ([0, 1], [0, 1], (4,))


def test_sparse_and_wrapped_tensors_do_not_stop_it() -> None:
    """Tensors without a storage of their own are passed by."""
    tape = Tape(StepClock())
    with tape:
        torch.eye(4).to_sparse()
    assert "aten._to_sparse.default" in {node.op for node in tape.stop().nodes}


def test_the_clock() -> None:
    """Forward until the model returned, then loss; backward while autograd runs; optimizer between its hooks."""
    clock, seen = StepClock(), []
    leaf = torch.ones(3, requires_grad=True)
    leaf.register_hook(lambda _: seen.append(clock.phase()))
    assert clock.phase() == FORWARD
    clock.after_forward = True
    assert clock.phase() == LOSS
    (leaf * 2).sum().backward()
    assert seen == [BACKWARD]
    clock.enter_optimizer()
    assert clock.phase() == OPTIMIZER
    clock.leave_optimizer()
    assert clock.phase() == LOSS
