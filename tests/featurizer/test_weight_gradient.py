"""What an attribute claims of a convolution never makes more scratch than a graph may name of anything."""

from __future__ import annotations

import dataclasses

import pytest
from handmade import MIB, Sketch

from peakcast.featurizer.convolution_calls import convolution_scratch
from peakcast.featurizer.prior import simulate
from peakcast.featurizer.run import DeviceSpec, RunSpec
from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.vocabulary import BACKWARD, INPUT
from peakcast.featurizer.workspace import MOST_SCRATCH_BYTES, generation_of


def backward(attribute: str, size_bytes: int) -> GraphSpec:
    """Return one backward of a convolution whose gradient, image and weight are as large."""
    sketch = Sketch()
    reads = [sketch.start(size_bytes, INPUT) for _ in range(3)]
    sketch.node("aten.convolution_backward.default", size_bytes, phase=BACKWARD, reads=reads)
    spec = sketch.spec()
    (trace,) = spec.traces.values()
    trace.attribute[:] = 0
    trace.numel[:] = size_bytes // 4
    return dataclasses.replace(spec, attributes=(attribute,))


@pytest.mark.parametrize(
    ("attribute", "size_bytes"),
    [
        ("kernel=1x1,groups=1,channels=1x1,image=1x2,layout=nchw,gradients=110", 1 << 34),
        ("kernel=1,groups=1,channels=64x64,image=32x32,layout=nchw,gradients=110", 1 << 45),
        ("kernel=99999999999x99999999999,groups=2,channels=2x2,image=1x1,layout=nhwc,gradients=110", 16 * MIB),
    ],
)
def test_absurd_geometries_are_simulated_with_bounded_scratch(attribute: str, size_bytes: int) -> None:
    """They are answered, and no call takes more than the largest storage there may be."""
    spec = backward(attribute, size_bytes)
    (plan,) = spec.traces
    scratch = convolution_scratch(spec.traces[plan], spec, generation_of("NVIDIA H200"))
    assert max(scratch.sizes, default=0) <= MOST_SCRATCH_BYTES
    assert simulate(spec, plan, RunSpec(), DeviceSpec()).steady_allocated_bytes >= 3 * size_bytes
