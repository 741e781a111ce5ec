"""NCCL's communicators are device bytes beside the allocator's, by the number of process groups that a step uses."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from handmade import MIB, Sketch

from peakcast.featurizer.prior import Prior, simulate
from peakcast.featurizer.run import DeviceSpec, RunSpec
from peakcast.featurizer.vocabulary import PARAMETER


def prior_of(ops: list[str], groups: list[str]) -> Prior:
    """Simulate a step of these operators on one tensor; each has the group of its place, "" for none."""
    sketch = Sketch()
    weight = sketch.start(MIB, PARAMETER)
    for op in ops:
        sketch.node(op, reads=[weight])
    names = tuple(sorted({group for group in groups if group}))
    codes = np.array([names.index(group) if group else -1 for group in groups], np.int32)
    trace = dataclasses.replace(sketch.trace(), attribute=codes)
    spec = dataclasses.replace(sketch.spec(), traces={"eager": trace}, attributes=names)
    return simulate(spec, "eager", RunSpec(), DeviceSpec())


@pytest.mark.parametrize(
    ("ops", "groups", "taken_bytes"),
    [
        (["aten.relu.default"], [""], 0),
        (["c10d.allreduce_.default"], ["group=0"], 880_803_840),
        # Captured before groups were named; nobody waits on a communicator of its own.
        (["_c10d_functional.all_reduce.default", "_c10d_functional.wait_tensor.default"], ["", ""], 880_803_840),
        # As FSDP within a host and replicas across: 880,803,840 and once 509,607,936 more.
        (
            ["c10d._allgather_base_.default", "c10d._reduce_scatter_base_.default", "c10d.allreduce_.default"],
            ["group=1", "group=1", "group=2"],
            1_390_411_776,
        ),
    ],
)
def test_each_group_has_a_communicator(ops: list[str], groups: list[str], taken_bytes: int) -> None:
    """The first one brings NCCL's own context and buffers."""
    alone = prior_of(["aten.relu.default"], [""])
    prior = prior_of(ops, groups)
    assert prior.overhead_bytes - alone.overhead_bytes == taken_bytes
    assert prior.device_bytes - alone.device_bytes == taken_bytes
