"""Sketches as compiled regions: `from fusing import fused`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from handmade import Sketch

from peakcast.featurizer.fusion import fused_lifetimes
from peakcast.featurizer.lifetimes import NEVER, Lifetimes

MM, EXP, ADD, SUM = "aten.mm.default", "aten.exp.default", "aten.add.Tensor", "aten.sum.default"
CONVOLUTION = "aten.convolution.default"
CLONE, CAT, POOL = "aten.clone.default", "aten.cat.default", "aten.avg_pool2d.default"
VIEW, PERMUTE, SLICE = "aten.view.default", "aten.permute.default", "aten.slice.Tensor"
PUT, VAR_MEAN = "aten.index_put.default", "aten.var_mean.correction"
UNKNOWN = "mylib.scan.default"
EAGER = -1
IN_CHANNELS_LAST = "kernel=3x3,groups=1,channels=8x8,layout=nhwc,copied=0"


def fused(sketch: Sketch, region: int | Sequence[int] = 0, *, flags: Collection[int] = (), parts: int = 1) -> Lifetimes:
    """Return the lifetimes of a sketch whose nodes are all in one region, or each in its own of `region`.

    Tensors are of float32, those of `flags` of bytes. `parts` are as many as views cut a tensor into. Convolutions lie
    in channels last.
    """
    trace = sketch.trace()
    trace.region[:] = region
    for node in range(len(trace)):
        if sketch.ops[trace.op[node]] == CONVOLUTION:
            trace.attribute[node] = 0
        made = [storage for storage in trace.outputs.row(node).tolist() if trace.storages.born[storage] == node]
        if made:
            trace.numel[node] = trace.storages.bytes[made[0]] // (1 if made[0] in flags else 4)
        elif len(trace.outputs.row(node)):
            trace.numel[node] = trace.storages.bytes[trace.outputs.row(node)[0]] // 4 // parts
    return fused_lifetimes(trace, tuple(sketch.ops), (IN_CHANNELS_LAST,))


def span(lifetimes: Lifetimes, storage: int) -> tuple[int, int]:
    """Return a buffer's birth and death."""
    return int(lifetimes.born[storage]), int(lifetimes.died[storage])


def is_inlined(lifetimes: Lifetimes, storage: int) -> bool:
    """Tell whether a storage is never written."""
    return bool(lifetimes.born[storage] == NEVER)
