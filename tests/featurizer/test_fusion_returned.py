"""What a compiled graph returns stays in memory, even where its caller drops it before another operator runs."""

from __future__ import annotations

from fusing import ADD, CAT, EXP, MM, SUM, VIEW, fused, is_inlined, span
from handmade import MIB, Sketch

from peakcast.featurizer.lifetimes import NO_REUSE
from peakcast.featurizer.vocabulary import BACKWARD, FORWARD, INPUT, OUTPUT

ONLINE = "prims.prepare_softmax_online.default"
MAX_POOL = "prims._low_memory_max_pool_with_offsets.default"


def test_logits_that_the_caller_drops_are_written() -> None:
    """Logits are read in the middle of the graph and die with its last node: the graph returned them."""
    sketch = Sketch()
    x = sketch.start(MIB, INPUT)
    (product,) = sketch.node(MM, MIB, reads=[x])
    (logits,) = sketch.node(ADD, 2 * MIB, reads=[product, x])
    (loss,) = sketch.node(SUM, 4, reads=[logits])
    sketch.node(EXP, 4, reads=[loss], dies=[product, loss, logits])
    lifetimes = fused(sketch)
    assert span(lifetimes, logits) == (1, 3)
    # The product is read for the last time where the logits are computed. It died late too, so it was returned as well.
    assert span(lifetimes, product) == (0, 3)


def test_what_the_last_node_reads_dies_in_it() -> None:
    """A value whose last reader is the last node was not returned: it is computed in that reader."""
    sketch = Sketch()
    x = sketch.start(MIB, INPUT)
    (value,) = sketch.node(EXP, MIB, reads=[x])
    sketch.node(SUM, 4, reads=[value], dies=[value])
    assert is_inlined(fused(sketch), value)


def test_a_last_view_is_what_is_returned() -> None:
    """Nothing computes with the view that ends the graph, so it is there to be returned."""
    sketch = Sketch()
    x = sketch.start(MIB, INPUT)
    (value,) = sketch.node(EXP, MIB, reads=[x])
    sketch.node(VIEW, reads=[value], writes=[value], dies=[value])
    assert span(fused(sketch), value) == (1, 1)


def test_the_exponential_that_online_softmax_leaves_is_not_returned() -> None:
    """`prepare_softmax_online` replaces the sum of exponentials, and the graph keeps them without a reader."""
    sketch = Sketch()
    x = sketch.start(MIB, INPUT)
    largest, total = sketch.node(ONLINE, 4, 4, reads=[x])
    (shifted,) = sketch.node("aten.sub.Tensor", MIB, reads=[x, largest])
    (left_over,) = sketch.node(EXP, MIB, reads=[shifted])
    sketch.node("aten.sub.Tensor", MIB, reads=[shifted, total], dies=[largest, total, shifted, left_over])
    assert is_inlined(fused(sketch), left_over)


def test_what_a_node_writes_in_place_is_in_memory() -> None:
    """Zeros that a scatter adds into in place are written, though a pointwise kernel alone reads the sum."""
    sketch = Sketch()
    x = sketch.start(MIB, INPUT)
    (zeros,) = sketch.node("aten.full.default", MIB)
    sketch.node("aten.index_put_.default", reads=[zeros, x], writes=[zeros])
    sketch.node(EXP, MIB, reads=[zeros], dies=[zeros])
    assert span(fused(sketch), zeros) == (0, 2)


def test_nothing_takes_the_place_of_what_a_scatter_wrote() -> None:
    """The scatter itself writes in place of what dies in it; a pointwise kernel after it has a buffer of its own."""
    sketch = Sketch()
    x = sketch.start(MIB, INPUT)
    (product,) = sketch.node(MM, 8 * MIB, reads=[x])
    (put,) = sketch.node("aten.index_put.default", 8 * MIB, reads=[product, x], dies=[product])
    (after,) = sketch.node(EXP, 8 * MIB, reads=[put], dies=[put])
    sketch.node(MM, 4, reads=[after], dies=[after])
    lifetimes = fused(sketch)
    assert lifetimes.reuses[put] == product
    assert lifetimes.reuses[after] == NO_REUSE
    assert span(lifetimes, put) == (1, 2)


def test_scatters_left_to_aten_read_their_source_from_memory() -> None:
    """`scatter_reduce` runs as ATen's kernel on a copy of the first input; `index_add` with all of it in memory."""
    for op, in_memory in (("aten.scatter_reduce.two", [False, True]), ("aten.index_add.default", [True, True])):
        sketch = Sketch()
        x = sketch.start(MIB, INPUT)
        (zeros,) = sketch.node(EXP, MIB, reads=[x])
        (source,) = sketch.node(EXP, 5 * MIB, reads=[x])
        sketch.node(op, MIB, reads=[zeros, x, source], dies=[zeros, source])
        lifetimes = fused(sketch)
        assert [not is_inlined(lifetimes, storage) for storage in (zeros, source)] == in_memory


def test_what_nothing_reads_of_several_results_is_never_written() -> None:
    """The offsets of a max pool are there for a backward; without one the values alone are, and are fused as such."""
    sketch = Sketch()
    x = sketch.start(8 * MIB, INPUT)
    (a,) = sketch.node(MM, 32 * MIB, reads=[x])
    values, offsets = sketch.node(MAX_POOL, 8 * MIB, 2 * MIB, reads=[a], dies=[a])
    sketch.storages[offsets][4] = 1
    sketch.node(MM, 512, reads=[x])
    (activated,) = sketch.node(EXP, 8 * MIB, role=OUTPUT, reads=[values])
    sketch.node(MM, 512, reads=[values], dies=[values])
    lifetimes = fused(sketch)
    assert is_inlined(lifetimes, offsets)
    assert lifetimes.born[[values, activated]].tolist() == [1, 1]


def test_a_concatenation_that_pointwise_nodes_read_is_computed_there() -> None:
    """Not one that a product reads, nor where a part is computed for something else as well, nor in a backward."""
    for reader, phase, is_shared, is_written in (
        (EXP, FORWARD, False, False),
        (MM, FORWARD, False, True),
        (EXP, FORWARD, True, True),
        (EXP, BACKWARD, False, True),
    ):
        sketch = Sketch()
        x, other = sketch.start(8 * MIB, INPUT), sketch.start(8 * MIB, INPUT)
        (part,) = sketch.node(EXP, 8 * MIB, reads=[x])
        (joined,) = sketch.node(CAT, 16 * MIB, reads=[part, other], dies=() if is_shared else [part])
        if is_shared:
            sketch.node(SUM, 512, role=OUTPUT, reads=[part], dies=[part])
        sketch.node(reader, 16 * MIB, role=OUTPUT, reads=[joined])
        sketch.node(MM, 512, reads=[x])
        sketch.nodes = [(op, phase, device, reads, writes) for op, _, device, reads, writes in sketch.nodes]
        sketch.storages[joined][4] = len(sketch.nodes) - 2
        assert is_inlined(fused(sketch), joined) is not is_written
