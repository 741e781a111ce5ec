"""An eager view takes no memory, whatever a capture shows; other operators and compiled regions are left alone."""

from __future__ import annotations

import numpy as np
import pytest
from handmade import MIB, Sketch

from peakcast.featurizer.lifetimes import NEVER, observed_lifetimes, step_events
from peakcast.featurizer.views import without_views
from peakcast.featurizer.vocabulary import PARAMETER


def linear(op: str) -> Sketch:
    """Return a weight of 4 MiB, something of the same size made of it, and a product of 2 MiB with that."""
    sketch = Sketch()
    weight = sketch.start(4 * MIB, PARAMETER)
    (made,) = sketch.node(op, 4 * MIB, reads=[weight])
    sketch.node("aten.mm.default", 2 * MIB, reads=[made], dies=[made])
    return sketch


@pytest.mark.parametrize(
    ("op", "region", "made_mib"),
    [
        ("aten.t.default", -1, []),
        ("aten.transpose.int", -1, []),
        ("aten.clone.default", -1, [4]),
        ("aten.view_copy.default", -1, [4]),
        ("aten.view.default", -1, [4]),  # of a storage that was resized just before
        ("aten.t.default", 0, [4]),  # the fusion rules say what a region makes
    ],
)
def test_a_view_makes_nothing(op: str, region: int, made_mib: list[int]) -> None:
    """Of weight, transposed weight and product, the second is never born."""
    sketch = linear(op)
    trace = sketch.trace()
    trace.region[:] = region
    step = step_events(trace, without_views(observed_lifetimes(trace), trace, sketch.ops))
    made = step.events[step.events >= 0]
    assert step.bytes[made].tolist() == [size * MIB for size in (*made_mib, 2)]
    assert step.start.tolist() == [0]


def test_views_of_what_is_there_change_nothing() -> None:
    """The usual trace: a view returns the storage it reads."""
    sketch = Sketch()
    (product,) = sketch.node("aten.mm.default", MIB)
    sketch.node("aten.t.default", reads=[product], writes=[product])
    trace = sketch.trace()
    lifetimes = observed_lifetimes(trace)
    assert without_views(lifetimes, trace, sketch.ops) is lifetimes
    assert not np.isin(NEVER, lifetimes.born)
    nothing = Sketch().trace()
    empty = observed_lifetimes(nothing)
    assert without_views(empty, nothing, ()) is empty
