"""Code that puts itself on a card is captured without one, and gives the graph of code that does not."""

from __future__ import annotations

import pytest
from captured import Captured, sizes

from peakcast.featurizer.vocabulary import OPTIMIZER_STATE, PARAMETER


@pytest.mark.parametrize("how", ["by_method", "by_name", "by_device", "by_number", "from_cpu", "after_reading_values"])
def test_each_way_onto_the_card(captured: Captured, how: str) -> None:
    """The capture puts everything on the card anyway: saying so changes nothing."""
    assert captured.spec(f"on_cuda_{how}").graph_id == captured.spec("on_cuda_unsaid").graph_id


def test_a_converted_weight_is_still_shared(captured: Captured) -> None:
    """Two tied layers in half precision have one weight of two bytes a value, and state for one."""
    trace = captured.trace("halved_and_tied")
    assert sizes(trace, PARAMETER) == [64 * 64 * 2]
    assert sizes(trace, OPTIMIZER_STATE) == [64 * 64 * 2] * 2
