"""Overshoot is the rise of the peak if kernels took scratch: it counts where it is taken, not only how much."""

from __future__ import annotations

from typing import Any

import pytest

from peakcast.featurizer.prior import simulate
from peakcast.featurizer.run import DeviceSpec, RunSpec
from peakcast.featurizer.spec import GraphSpec
from peakcast.models.scratch import SCRATCH_CLASSES, overshoot_bytes, overshoot_features

MIB = 1 << 20


def make_spec(conv_at: int) -> GraphSpec:
    """Return three nodes; node 1 writes 60 MiB, which die with it, the others 20 MiB. One of them convolves."""
    ops = [1, 1, 1]
    ops[conv_at] = 0
    trace: dict[str, Any] = {
        "phase": [0, 0, 0],
        "op": ops,
        "rank": [4, 4, 4],
        "numel": [5 * MIB, 15 * MIB, 5 * MIB],
        "dtype": [0, 0, 0],
        "device": [1, 1, 1],
        "inputs": {"offsets": [0, 1, 2, 3], "ids": [0, 0, 0]},
        "outputs": {"offsets": [0, 1, 2, 3], "ids": [1, 2, 3]},
        "storages": {
            "bytes": [10 * MIB, 20 * MIB, 60 * MIB, 20 * MIB],
            "device": [1, 1, 1, 1],
            "role": [2, 6, 6, 6],
            "born": [-1, 0, 1, 2],
            "died": [-1, 0, 1, 2],
        },
    }
    document = {
        "schema": 1,
        "ops": ["aten.convolution.default", "aten.relu.default"],
        "dtypes": ["float32"],
        "traces": {"eager": trace},
    }
    return GraphSpec.from_json(document)


@pytest.mark.parametrize(("conv_at", "rise_mib"), [(0, 0), (1, 70), (2, 0)])
def test_rise_depends_on_where(conv_at: int, rise_mib: int) -> None:
    """At the peak of 70 MiB a convolution over 10 and 60 adds 70; where 30 live, 30 more stay below the peak."""
    spec = make_spec(conv_at)
    prior = simulate(spec, "eager", RunSpec(task="inference"), DeviceSpec())
    found = overshoot_bytes(spec, prior)
    assert tuple(found) == SCRATCH_CLASSES
    assert found["conv"] == rise_mib * MIB
    assert found["scatter"] == 0
    assert overshoot_features(found, prior)["conv_overshoot_share"] == pytest.approx(rise_mib / 70)
