"""What inductor adds to a graph: the sum with a convolution's bias, and copies of what is not read as it lies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from fusing import EXP, MM, PERMUTE, VIEW
from handmade import MIB, Sketch
from hypothesis import given, settings
from strategies import graph_specs

from peakcast.featurizer.fusion import fused_lifetimes
from peakcast.featurizer.insertions import with_insertions
from peakcast.featurizer.lifetimes import NEVER, Lifetimes
from peakcast.featurizer.prior import simulate
from peakcast.featurizer.run import DeviceSpec, RunSpec
from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.vocabulary import BACKWARD, INPUT, OUTPUT, PARAMETER, SAVED, TEMPORARY

CONVOLUTION, SELECT, POOL = "aten.convolution.default", "aten.select.int", "aten.avg_pool2d.default"
CONVOLUTION_BACKWARD = "aten.convolution_backward.default"
LAST = "kernel=3x3,stride=1x1,dilation=1x1,groups=1,transposed=0,channels=64x64,image=28x28,layout=nhwc,copied=0"
ATTENTION = "aten._scaled_dot_product_efficient_attention.default"
ONE_DIMENSION = "kernel=3,stride=1,dilation=1,groups=1,transposed=0,channels=128x64,image=256,layout=nhwc,copied=0"


def compiled(sketch: Sketch, numel: Mapping[int, int] | None = None, attributes: tuple[str, ...] = ()) -> GraphSpec:
    """Return a spec of one region of float32; `numel` are the elements of views, by node."""
    spec = sketch.spec("inductor")
    trace = spec.traces["inductor"]
    trace.region[:] = 0
    for node in range(len(trace)):
        made = trace.outputs.row(node).tolist()
        trace.numel[node] = (numel or {}).get(node, trace.storages.bytes[made[0]] // 4 if made else 1)
        if attributes and spec.ops[trace.op[node]] in (CONVOLUTION, CONVOLUTION_BACKWARD):
            trace.attribute[node] = 0
    return replace(spec, attributes=attributes)


def lifetimes_of(spec: GraphSpec) -> Lifetimes:
    """Return the lifetimes with what is inserted."""
    found = with_insertions(spec, spec.traces["inductor"])
    assert found is not None
    named, trace, _ = found
    return fused_lifetimes(trace, named.ops)


def attention(sketch: Sketch) -> tuple[int, int]:
    """Add a packed projection of 24 MiB and attention over its three parts; return projection and result."""
    x = sketch.start(MIB, INPUT)
    (product,) = sketch.node(MM, 24 * MIB, reads=[x])
    (packed,) = sketch.node(EXP, 24 * MIB, reads=[product], dies=[product])
    for _ in range(3):
        for view in (SELECT, PERMUTE):
            sketch.node(view, reads=[packed], writes=[packed])
    (result,) = sketch.node(ATTENTION, 8 * MIB, role=OUTPUT, reads=[packed], dies=[packed])
    return packed, result


def test_the_parts_that_attention_reads_are_copied_one_by_one() -> None:
    """Query, key and value of 8 MiB each have a kernel that reads a part of the product; the whole is not written."""
    sketch = Sketch()
    packed, result = attention(sketch)
    lifetimes = lifetimes_of(compiled(sketch, dict.fromkeys(range(2, 8), 2 * MIB)))
    copies = [4, 5, 6]
    assert lifetimes.born[packed] == NEVER
    assert lifetimes.bytes[copies].tolist() == [8 * MIB] * 3
    # Nodes 8, 9 and 10 are the copies, 11 is attention.
    assert lifetimes.born[copies].tolist() == [8, 9, 10]
    assert lifetimes.died[copies].tolist() == [11, 11, 11]
    assert lifetimes.born[result] == 11


def test_not_where_another_library_call_has_the_whole_in_memory() -> None:
    """A pooling reads the projection: it is there, and attention reads its parts where they lie."""
    sketch = Sketch()
    packed, _ = attention(sketch)
    sketch.node(POOL, 512, reads=[packed], dies=[packed])
    spec = compiled(sketch, dict.fromkeys(range(2, 8), 2 * MIB))
    assert with_insertions(spec, spec.traces["inductor"]) is None


def test_a_view_of_all_is_no_part() -> None:
    """One part that is the whole is computed as it must lie."""
    sketch = Sketch()
    x = sketch.start(MIB, INPUT)
    (product,) = sketch.node(MM, 8 * MIB, reads=[x])
    (query,) = sketch.node(EXP, 8 * MIB, reads=[product], dies=[product])
    sketch.node(PERMUTE, reads=[query], writes=[query])
    sketch.node(ATTENTION, 8 * MIB, role=OUTPUT, reads=[query], dies=[query])
    spec = compiled(sketch)
    assert with_insertions(spec, spec.traces["inductor"]) is None


def convolutions(sketch: Sketch, *, bias: bool, view: str = PERMUTE) -> tuple[int, list[int]]:
    """Add two convolutions over one transposed value; return the value and the results."""
    x, weight, offset = sketch.start(MIB, INPUT), sketch.start(MIB, PARAMETER), sketch.start(512, PARAMETER)
    (value,) = sketch.node(EXP, 8 * MIB, reads=[x])
    sketch.node(view, reads=[value], writes=[value])
    results = []
    for _ in range(2):
        reads = [value, weight, offset] if bias else [value, weight]
        results += sketch.node(CONVOLUTION, 4 * MIB, role=OUTPUT, reads=reads)
    sketch.storages[value][4] = 3
    return value, results


def test_what_comes_transposed_is_copied_for_each_convolution() -> None:
    """Both copies are computed in one kernel, in place of the value. Views that transpose nothing ask for none."""
    sketch = Sketch()
    value, results = convolutions(sketch, bias=False)
    lifetimes = lifetimes_of(compiled(sketch, attributes=(ONE_DIMENSION,)))
    # 0 value, 1 view, 2 copy, 3 convolution, 4 copy, 5 convolution.
    assert lifetimes.born[value] == NEVER
    assert lifetimes.born[[*results, 6, 7]].tolist() == [3, 5, 2, 2]
    assert lifetimes.died[[6, 7]].tolist() == [3, 5]
    plain = Sketch()
    convolutions(plain, bias=False, view=VIEW)
    spec = compiled(plain, attributes=(ONE_DIMENSION,))
    assert with_insertions(spec, spec.traces["inductor"]) is None


def test_a_bias_is_added_in_place_of_what_the_convolution_makes() -> None:
    """The sum stands for the result from there on, and takes its memory and its role over."""
    sketch = Sketch()
    _, results = convolutions(sketch, bias=True)
    spec = compiled(sketch)
    found = with_insertions(spec, spec.traces["inductor"])
    assert found is not None
    named, trace, origin = found
    assert origin.tolist() == [0, 1, 2, 2, 3, 3]
    assert trace.storages.role[[6, 7]].tolist() == [OUTPUT, OUTPUT]
    assert trace.inputs.row(3).tolist() == [results[0], 2]
    lifetimes = fused_lifetimes(trace, named.ops)
    assert lifetimes.reuses[[6, 7]].tolist() == results


def laid_out(attribute: str) -> GraphSpec:
    """Return two convolutions in turn, an image of 24 MiB and weights of 1 and 2, with the second's backward."""
    sketch = Sketch()
    image, one, two = sketch.start(24 * MIB, INPUT), sketch.start(MIB, PARAMETER), sketch.start(2 * MIB, PARAMETER)
    (y,) = sketch.node(CONVOLUTION, 48 * MIB, reads=[image, one])
    (z,) = sketch.node(CONVOLUTION, 12 * MIB, role=OUTPUT, reads=[y, two])
    sketch.node(CONVOLUTION_BACKWARD, 48 * MIB, 2 * MIB, phase=BACKWARD, reads=[z, y, two], dies=[y])
    return compiled(sketch, attributes=(attribute,))


def test_a_graph_copies_what_it_is_given_once() -> None:
    """Image and weights go into channels last before all else; backward reads what forward copied, and so it stays."""
    spec = laid_out(LAST)
    found = with_insertions(spec, spec.traces["inductor"])
    assert found is not None
    named, trace, origin = found
    assert origin.tolist() == [0, 0, 1, 0, 1, 2]
    copies = [int(trace.outputs.row(node)[0]) for node in range(3)]
    assert trace.storages.bytes[copies].tolist() == [24 * MIB, MIB, 2 * MIB]
    assert trace.numel[:3].tolist() == [6 * MIB, MIB // 4, MIB // 2]
    assert trace.storages.role[copies].tolist() == [TEMPORARY, TEMPORARY, SAVED]
    assert [trace.inputs.row(node).tolist()[:3] for node in (3, 4, 5)] == [
        copies[:2],
        [3, copies[2]],
        [4, 3, copies[2]],
    ]
    lifetimes = fused_lifetimes(trace, named.ops)
    assert sorted(lifetimes.born[copies].tolist()) == [0, 1, 2]
    assert lifetimes.died[copies].tolist() == [3, 3, 5]


def test_without_a_backward_each_convolution_copies_for_itself() -> None:
    """Two that read one image copy it one after the other, right before they run."""
    sketch = Sketch()
    image, one, two = sketch.start(24 * MIB, INPUT), sketch.start(MIB, PARAMETER), sketch.start(2 * MIB, PARAMETER)
    for weight in (one, two):
        sketch.node(CONVOLUTION, 48 * MIB, role=OUTPUT, reads=[image, weight])
    spec = compiled(sketch, attributes=(LAST,))
    found = with_insertions(spec, spec.traces["inductor"])
    assert found is not None
    _, trace, origin = found
    assert origin.tolist() == [0, 0, 0, 1, 1, 1]
    copies = [int(trace.outputs.row(node)[0]) for node in (0, 1, 3, 4)]
    assert trace.storages.bytes[copies].tolist() == [24 * MIB, MIB, 24 * MIB, 2 * MIB]
    assert trace.storages.died[copies].tolist() == [2, 2, 5, 5]
    assert set(trace.storages.role[copies].tolist()) == {TEMPORARY}


@pytest.mark.parametrize(
    ("attribute", "copied_mib"),
    [
        (LAST.replace("layout=nhwc", "layout=nchw"), []),
        # A weight of single pixels lies in both layouts, and so do images and weights of one channel.
        (LAST.replace("kernel=3x3", "kernel=1x1"), [24]),
        (LAST.replace("channels=64x64", "channels=1x64"), []),
        (LAST.replace("groups=1", "groups=64"), [24]),
        (LAST.replace("image=28x28", "image=1x1"), [1, 2]),
        # Inductor lays out images of two dimensions alone.
        (LAST.replace("kernel=3x3", "kernel=3x3x3"), []),
    ],
)
def test_what_lies_so_already_is_not_copied(attribute: str, copied_mib: list[int]) -> None:
    """The layout of a graph, kernels, channels and pixels decide."""
    spec = laid_out(attribute)
    found = with_insertions(spec, spec.traces["inductor"])
    made = [] if found is None else found[1].storages.bytes[len(spec.traces["inductor"].storages) :].tolist()
    assert [size // MIB for size in made] == copied_mib


def test_a_prediction_names_the_nodes_of_the_trace() -> None:
    """What is told of nodes is by those that were captured: attention is node 8, though it runs as the twelfth."""
    sketch = Sketch()
    attention(sketch)
    spec = compiled(sketch, dict.fromkeys(range(2, 8), 2 * MIB))
    prior = simulate(spec, "inductor", RunSpec(), DeviceSpec(name="NVIDIA H200", total_bytes=150_109_880_320))
    assert len(prior.watermark_bytes) == 9
    assert prior.peak_node == 8  # the copies are made there: 24 + 24 MiB
    assert prior.steady_allocated_bytes == 32 * MIB + MIB + 48 * MIB
    assert np.array_equal(spec.traces["inductor"].op, sketch.trace().op)


@given(graph_specs())
@settings(max_examples=100)
def test_traces_that_make_no_sense(spec: GraphSpec) -> None:
    """Whatever a valid trace holds: each node comes from one of the trace, and all storages stay."""
    names = (ATTENTION, CONVOLUTION, CONVOLUTION_BACKWARD, EXP, PERMUTE, SELECT)
    ops = tuple(f"{names[index % len(names)]}{index or ''}" for index in range(len(spec.ops)))
    for trace in spec.traces.values():
        trace.region[:] = np.arange(len(trace)) // 4 % 2
        found = with_insertions(replace(spec.with_ops(), ops=ops), trace)
        if found is not None:
            named, inserted, origin = found
            assert len(origin) == len(inserted) > len(trace)
            assert len(inserted.storages) - len(trace.storages) == len(inserted) - len(trace)
            fused_lifetimes(inserted, named.ops)


def test_a_graph_cannot_have_nodes_inserted_without_end() -> None:
    """600 attention nodes over 600 views of one value: no more copies than nodes, as many as there are parts."""
    sketch = Sketch()
    x = sketch.start(MIB, INPUT)
    (product,) = sketch.node(MM, 24 * MIB, reads=[x])
    (packed,) = sketch.node(EXP, 24 * MIB, reads=[product], dies=[product])
    for _ in range(600):
        sketch.node(SELECT, reads=[packed], writes=[packed])
    for _ in range(599):
        sketch.node(ATTENTION, 8, role=OUTPUT, reads=[packed])
    sketch.node(ATTENTION, 8, role=OUTPUT, reads=[packed], dies=[packed])
    spec = compiled(sketch, dict.fromkeys(range(2, 602), 8))
    found = with_insertions(spec, spec.traces["inductor"])
    assert found is not None
    nodes = len(spec.traces["inductor"])
    assert nodes < len(found[1]) <= 2 * nodes + 8
