"""LSTMs as cuDNN runs them: [B=5, T=7, I=24] through L=2 layers of H=40 in D=2 directions, float32."""

from __future__ import annotations

import pytest
from captured import Captured, sizes

from peakcast.featurizer.vocabulary import GRADIENT, PARAMETER, SAVED, TEMPORARY

BATCH, TIME, FEATURES, HIDDEN, LAYERS, DIRECTIONS = 5, 7, 24, 40, 2, 2
OUTPUTS = BATCH * TIME * DIRECTIONS * HIDDEN
STATE = LAYERS * DIRECTIONS * BATCH * HIDDEN
# Four gates: input weights, hidden weights, two biases, for each direction; the second layer reads both directions.
WEIGHTS = DIRECTIONS * sum(4 * HIDDEN * (inputs + HIDDEN + 2) for inputs in (FEATURES, DIRECTIONS * HIDDEN))
# Two values a gate and layer, and what the first layer returned.
RESERVED = (2 * 4 * LAYERS + LAYERS - 1) * OUTPUTS


@pytest.mark.parametrize("plan", ["eager", "inductor"])
def test_the_whole_network_is_one_operator(captured: Captured, plan: str) -> None:
    """No plan unrolls the cells: Dynamo breaks its graph at an RNN."""
    ops = captured.ops("lstm", plan)
    assert ops.count("aten._cudnn_rnn.default") == ops.count("aten._cudnn_rnn_backward.default") == 1
    assert (captured.trace("lstm", plan).region < 0).all()


def test_saved_for_the_backward(captured: Captured) -> None:
    """Output, first states, and the reserve space are kept; the weights are parameters, not copies."""
    saved = [nbytes for nbytes in sizes(captured.trace("lstm"), SAVED) if nbytes > 4]
    assert saved == [4 * STATE, 4 * STATE, 4 * OUTPUTS, 4 * RESERVED]


def test_gradients_share_one_buffer(captured: Captured) -> None:
    """The gradients of all 16 weights are parts of one allocation."""
    trace = captured.trace("lstm")
    assert sum(sizes(trace, PARAMETER)) == 4 * WEIGHTS
    assert sizes(trace, GRADIENT) == [4 * WEIGHTS]


def test_autocast_copies_all_weights_to_half(captured: Captured) -> None:
    """One flat float16 buffer for the weights, one for their gradients, and float32 gradients of their own."""
    trace = captured.trace("lstm_half")
    assert 2 * WEIGHTS in sizes(trace, SAVED)
    assert 2 * WEIGHTS in sizes(trace, TEMPORARY)
    assert 2 * RESERVED in sizes(trace, SAVED)
    assert sum(sizes(trace, GRADIENT)) == 4 * WEIGHTS
    assert len(sizes(trace, GRADIENT)) == 16
