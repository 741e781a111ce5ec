"""What the simulation must know of an operator beyond sizes is read off its arguments."""

from __future__ import annotations

import torch

from peakcast.featurizer.capture.attributes import attribute_of

aten = torch.ops.aten


def test_a_norm_says_how_many_of_its_arguments_it_must_make_contiguous() -> None:
    """An image with its channels moved last is copied, one that lies so is not; the backward reads two."""
    image = torch.empty(2, 8, 4, 4, device="meta")
    moved = image.permute(0, 2, 3, 1)
    assert attribute_of(aten.native_layer_norm.default, (moved, [8], None, None, 1e-5)) == "copied=1"
    assert attribute_of(aten.native_layer_norm.default, (moved.contiguous(), [8], None, None, 1e-5)) == ""
    backward = aten.native_layer_norm_backward.default
    assert attribute_of(backward, (moved, moved, [8], None, None, None, None, [True] * 3)) == "copied=2"
    assert attribute_of(backward, (moved.contiguous(), moved, [8], None, None, None, None, [True] * 3)) == "copied=1"


def test_a_softmax_of_transposed_scores_copies_them() -> None:
    """The kernel wants rows that lie one after another."""
    scores = torch.empty(2, 4, 6, device="meta").transpose(1, 2)
    assert attribute_of(aten._softmax.default, (scores, -1, False)) == "copied=1"
    assert attribute_of(aten._log_softmax.default, (scores.contiguous(), -1, False)) == ""
    assert attribute_of(aten._softmax_backward_data.default, (scores, scores, -1, torch.float32)) == "copied=2"


def test_operators_that_take_any_order_say_nothing() -> None:
    """Pointwise kernels walk strides."""
    value = torch.empty(4, 4, device="meta").t()
    assert attribute_of(aten.add.Tensor, (value, value)) == ""
