"""Fused kernels write into what dies in them, and run beside others that read the same buffer."""

from __future__ import annotations

import pytest
from fusing import (
    ADD,
    CAT,
    CLONE,
    EAGER,
    EXP,
    MM,
    PERMUTE,
    POOL,
    PUT,
    SLICE,
    SUM,
    UNKNOWN,
    VAR_MEAN,
    VIEW,
    fused,
    is_inlined,
    span,
)
from handmade import MIB, Sketch

from peakcast.featurizer.fusion_graph import CompiledGraph, GraphColumns
from peakcast.featurizer.fusion_lowering import lower
from peakcast.featurizer.lifetimes import NO_REUSE, Lifetimes, step_events
from peakcast.featurizer.vocabulary import BACKWARD, GRADIENT, INPUT, LOSS, OUTPUT, PARAMETER, SAVED


class TestTakeovers:
    def chain(self, *ops: str, last_bytes: int = 8 * MIB, first: str = MM) -> tuple[Lifetimes, int, int]:
        """Return the lifetimes of x -> first -> ops..., each freeing what it reads, and first's and last's storages."""
        sketch = Sketch()
        x = sketch.start(8 * MIB, INPUT)
        (made,) = sketch.node(first, 8 * MIB, reads=[x])
        value = made
        for position, op in enumerate(ops):
            if op in {VIEW, PERMUTE, SLICE}:
                sketch.node(op, reads=[value], writes=[value])
            else:
                size_bytes = last_bytes if position == len(ops) - 1 else 8 * MIB
                (value,) = sketch.node(op, size_bytes, reads=[value], dies=[value])
        return fused(sketch), made, value

    @pytest.mark.parametrize("ops", [(EXP,), (VIEW, EXP), (EXP, EXP), (EXP, VIEW, EXP), (PUT,)])
    def test_a_kernel_writes_into_what_dies_in_it(self, ops: tuple[str, ...]) -> None:
        """The product's memory serves the last value: elements stay in their places."""
        lifetimes, made, last = self.chain(*ops)
        assert lifetimes.reuses[last] == made
        assert lifetimes.died[made] == lifetimes.born[last]

    @pytest.mark.parametrize(
        "ops",
        [(CLONE,), (SLICE, EXP), (EXP, SLICE, EXP), (SLICE, EXP, EXP), (MM,), (CAT,), (POOL,), (UNKNOWN,)],
    )
    def test_none_where_elements_move(self, ops: tuple[str, ...]) -> None:
        """Through a moving view, by a copy into another layout, or by a kernel that is not the compiler's."""
        lifetimes, made, last = self.chain(*ops)
        assert not is_inlined(lifetimes, made)
        assert lifetimes.reuses[last] == NO_REUSE

    def test_sizes_must_be_equal_as_the_allocator_rounds(self) -> None:
        """8 MiB less 100 bytes take the same block; a block less does not."""
        for last_bytes, taken in ((8 * MIB - 100, True), (8 * MIB - 512, False), (16 * MIB, False)):
            lifetimes, made, last = self.chain(EXP, last_bytes=last_bytes)
            assert (lifetimes.reuses[last] == made) == taken

    def test_a_value_that_lives_on_is_not_taken(self) -> None:
        """A later kernel reads the product too."""
        sketch = Sketch()
        x = sketch.start(8 * MIB, INPUT)
        (a,) = sketch.node(MM, 8 * MIB, reads=[x])
        (b,) = sketch.node(EXP, 8 * MIB, reads=[a])
        sketch.node(MM, 4, reads=[a], dies=[a])
        assert fused(sketch).reuses[b] == NO_REUSE

    def test_each_buffer_is_taken_once(self) -> None:
        """Two results and one dying input: the first takes it. Two dying inputs: each takes its own."""
        sketch = Sketch()
        x = sketch.start(8 * MIB, INPUT)
        (a,) = sketch.node(MM, 8 * MIB, reads=[x])
        one, two = sketch.node(VAR_MEAN, 8 * MIB, 8 * MIB, reads=[a], dies=[a])
        three, four = sketch.node(VAR_MEAN, 8 * MIB, 8 * MIB, reads=[one, two], dies=[one, two])
        assert fused(sketch).reuses[[one, two, three, four]].tolist() == [a, NO_REUSE, one, two]

    def test_memory_is_handed_down_a_chain(self) -> None:
        """Sum after sum in place: one allocation, freed with the last."""
        sketch = Sketch()
        (value,) = sketch.node(MM, 8 * MIB)
        for _ in range(3):
            (value,) = sketch.node("aten.cumsum.default", 8 * MIB, reads=[value], dies=[value])
        sketch.node(MM, 4, reads=[value], dies=[value])
        lifetimes = fused(sketch)
        assert step_events(sketch.trace(), lifetimes).events.tolist() == [0, 4, ~0]

    def test_graph_inputs_are_not_taken(self) -> None:
        """Parameters and inputs live on; what eager code made belongs to it, even where it dies inside."""
        sketch = Sketch()
        x = sketch.start(8 * MIB, INPUT)
        (made,) = sketch.node("aten.empty.memory_format", 8 * MIB)
        (a,) = sketch.node(EXP, 8 * MIB, reads=[x], dies=[x])
        (b,) = sketch.node(EXP, 8 * MIB, reads=[made], dies=[made])
        assert fused(sketch, [EAGER, 0, 0]).reuses[[a, b]].tolist() == [NO_REUSE, NO_REUSE]

    def until_backward(
        self, *, saved_bytes: int, tangent_bytes: int, eager_reads_saved: bool
    ) -> tuple[Sketch, int, int, int, int]:
        """Return a step as far as its tangent; with it weight, what the forward saved, output and tangent.

        The loss, which is eager, reads the output; with `eager_reads_saved` what the forward saved as well.
        """
        sketch = Sketch()
        weight = sketch.start(8 * MIB, PARAMETER)
        (saved,) = sketch.node(MM, saved_bytes, role=SAVED, reads=[weight])
        (output,) = sketch.node(MM, 8 * MIB, role=OUTPUT, reads=[saved])
        sketch.node("aten.mse_loss.default", 4, phase=LOSS, reads=[output, saved] if eager_reads_saved else [output])
        (tangent,) = sketch.node("aten.mse_loss_backward.default", tangent_bytes, phase=BACKWARD, reads=[output])
        return sketch, weight, saved, output, tangent

    def backward(
        self, *, eager_reads_saved: bool = False, compiled_forward: bool = True
    ) -> tuple[Lifetimes, int, int, int]:
        """Return a step whose backward has gradients of a saved tensor's and of the tangent's size."""
        sketch, weight, saved, output, tangent = self.until_backward(
            saved_bytes=16 * MIB, tangent_bytes=32 * MIB, eager_reads_saved=eager_reads_saved
        )
        (grad,) = sketch.node(EXP, 16 * MIB, phase=BACKWARD, role=GRADIENT, reads=[saved, weight], dies=[saved])
        (grad2,) = sketch.node(EXP, 32 * MIB, phase=BACKWARD, role=GRADIENT, reads=[tangent], dies=[tangent])
        (grad3,) = sketch.node(EXP, 8 * MIB, phase=BACKWARD, role=GRADIENT, reads=[output], dies=[output])
        forward = 0 if compiled_forward else EAGER
        lifetimes = fused(sketch, [forward, forward, EAGER, EAGER, 0, 0, 0])
        assert lifetimes.reuses[grad2] == NO_REUSE  # the tangent is autograd's
        assert lifetimes.reuses[grad3] == NO_REUSE  # the output is the user's
        return lifetimes, saved, grad, output

    def test_saved_tensors_are_donated_to_the_backward(self) -> None:
        """What the compiled forward keeps for it alone may be written over; tangents and user outputs may not."""
        lifetimes, saved, grad, _ = self.backward()
        assert lifetimes.reuses[grad] == saved

    def test_saved_tensors_that_others_see_are_not_donated(self) -> None:
        """Eager code has read it, or made it."""
        lifetimes, _, grad, _ = self.backward(eager_reads_saved=True)
        assert lifetimes.reuses[grad] == NO_REUSE
        lifetimes, _, grad, _ = self.backward(compiled_forward=False)
        assert lifetimes.reuses[grad] == NO_REUSE

    @pytest.mark.parametrize("eager_reads_saved", [False, True])
    def test_saved_tensors_are_freed_early_whoever_has_read_them(self, eager_reads_saved: bool) -> None:
        """A product that frees 64 MiB goes before one that makes 64: donated or not, what was saved counts."""
        sketch, weight, saved, _, tangent = self.until_backward(
            saved_bytes=64 * MIB, tangent_bytes=8 * MIB, eager_reads_saved=eager_reads_saved
        )
        (inner,) = sketch.node(MM, 64 * MIB, phase=BACKWARD, reads=[tangent, weight])
        sketch.node(MM, 8 * MIB, phase=BACKWARD, role=GRADIENT, reads=[tangent, saved], dies=[saved])
        sketch.node(MM, 8 * MIB, phase=BACKWARD, role=GRADIENT, reads=[inner, tangent], dies=[inner, tangent])
        lifetimes = fused(sketch, [0, 0, EAGER, EAGER, 0, 0, 0])
        assert lifetimes.died[saved] < lifetimes.born[inner]

    @pytest.mark.parametrize("maker", [0, EAGER])
    def test_another_graphs_output_frees_nothing(self, maker: int) -> None:
        """What another compiled graph made is an input like any other: its last reader does not go first for it."""
        sketch = Sketch()
        weight = sketch.start(8 * MIB, PARAMETER)
        (given,) = sketch.node(MM, 64 * MIB, reads=[weight])
        (inner,) = sketch.node(MM, 64 * MIB, reads=[weight])
        sketch.node(MM, 8 * MIB, role=OUTPUT, reads=[weight, given], dies=[given])
        sketch.node(MM, 8 * MIB, role=OUTPUT, reads=[inner, weight], dies=[inner])
        lifetimes = fused(sketch, [maker, 1, 1, 1])
        assert lifetimes.born[inner] < lifetimes.died[given]


class TestSiblings:
    def siblings(
        self, *, between: int = 0, size_bytes: int = 8 * MIB, late_input: bool = False, second: str = EXP
    ) -> tuple[Sketch, tuple[int, int, int]]:
        """Return two outputs computed from one product, with small products and perhaps a late input in between."""
        sketch = Sketch()
        x = sketch.start(MIB, INPUT)
        (a,) = sketch.node(MM, size_bytes, reads=[x])
        (one,) = sketch.node(EXP, size_bytes, role=OUTPUT, reads=[a])
        late = [x]
        for _ in range(between):
            late = sketch.node(MM, 512, reads=[x])
        (two,) = sketch.node(second, size_bytes, role=OUTPUT, reads=[a, late[0]] if late_input else [a], dies=[a])
        return sketch, (a, one, two)

    def test_kernels_that_read_one_buffer_run_together(self) -> None:
        """The second is computed beside the first; what they read dies there, and neither takes it."""
        sketch, (a, one, two) = self.siblings(between=3)
        lifetimes = fused(sketch)
        assert span(lifetimes, one) == (1, -1)
        assert span(lifetimes, two) == (1, -1)
        assert span(lifetimes, a) == (0, 1)
        assert lifetimes.reuses[[one, two]].tolist() == [NO_REUSE, NO_REUSE]

    def test_not_further_apart_than_64_nodes(self) -> None:
        """Fusing over that distance could raise the peak: inductor does not."""
        for between, born in ((63, 1), (64, 66)):
            sketch, (_, _, two) = self.siblings(between=between)
            assert fused(sketch).born[two] == born

    def test_not_before_their_inputs_are_there(self) -> None:
        """The second also reads a small product that came after the first: that goes before both."""
        sketch, (a, one, two) = self.siblings(between=1, late_input=True)
        lifetimes = fused(sketch)
        assert lifetimes.born[[one, two]].tolist() == [2, 2]
        assert lifetimes.died[a] == 2

    def test_what_reads_a_fused_value_joins_it(self) -> None:
        """Three in a row: the third reads the second, which runs beside the first, and is computed there too."""
        sketch = Sketch()
        x = sketch.start(MIB, INPUT)
        (a,) = sketch.node(MM, 8 * MIB, reads=[x])
        (one,) = sketch.node(EXP, 8 * MIB, role=OUTPUT, reads=[a])
        sketch.node(MM, 512, reads=[x])
        (two,) = sketch.node(EXP, 8 * MIB, role=OUTPUT, reads=[a])
        sketch.node(MM, 512, reads=[x])
        (three,) = sketch.node(ADD, 8 * MIB, role=OUTPUT, reads=[a, two], dies=[a])
        assert fused(sketch).born[[one, two, three]].tolist() == [1, 1, 1]

    def chain(self, length: int, between: int = 0, op: str = EXP) -> list[int]:
        """Return when each value of a chain is written of which each is an output and computed from the last."""
        sketch = Sketch()
        value, x = sketch.start(8 * MIB, INPUT), sketch.start(MIB, INPUT)
        made = []
        for _ in range(length):
            (value,) = sketch.node(op, 8 * MIB, role=OUTPUT, reads=[value])
            made.append(value)
            for _ in range(between):
                sketch.node(MM, 512, reads=[x])
        births: list[int] = fused(sketch).born[made].tolist()
        return births

    def test_a_chain_is_one_kernel_however_far_its_parts_are_apart(self) -> None:
        """A backward recomputes a residual stream at once, where it needs its start: all of it is alive together."""
        assert self.chain(3, between=70) == [0, 0, 0]

    def test_a_kernel_is_of_64_at_most(self) -> None:
        """The next begins a kernel of its own: inductor fuses no more than `max_fusion_size`."""
        assert self.chain(67) == [0] * 64 + [64] * 3

    def test_a_chain_of_products_is_no_kernel(self) -> None:
        """A library call runs where it stands."""
        assert self.chain(3, op=MM) == [0, 1, 2]

    def test_other_kernels_stay(self) -> None:
        """Library kernels are no loops to fuse."""
        sketch, (_, _, two) = self.siblings(between=2, second=MM)
        assert fused(sketch).born[two] == 4

    def test_windows_join(self) -> None:
        """A pooling loops like a pointwise kernel."""
        sketch, (_, _, two) = self.siblings(between=2, second=POOL)
        assert fused(sketch).born[two] == 1

    def test_small_ones_are_left(self) -> None:
        """From 4 KiB on, such as the weight that each step of a loop casts anew, they are written together."""
        for size_bytes, born in ((4096, 1), (4096 - 512, 4)):
            sketch, (_, _, two) = self.siblings(between=2, size_bytes=size_bytes)
            assert fused(sketch).born[two] == born

    def test_sizes_must_agree(self) -> None:
        """Loops of different lengths are not one."""
        sketch, (_, _, two) = self.siblings(between=2)
        sketch.storages[two][0] = 4 * MIB
        assert fused(sketch).born[two] == 4

    def test_flags_of_as_many_elements_join(self) -> None:
        """A mask has a quarter of the bytes, and the same loop."""
        sketch, (_, _, mask) = self.siblings(between=2, second="aten.le.Scalar")
        sketch.storages[mask][0] = 2 * MIB
        assert fused(sketch, flags=[mask]).born[mask] == 1

    def test_the_parts_of_a_concatenation_are_loops(self) -> None:
        """The relu of a product is written into its half of the `cat`; a mask over the product is computed there."""
        sketch = Sketch()
        x = sketch.start(MIB, INPUT)
        (a,) = sketch.node(MM, 8 * MIB, reads=[x])
        (part,) = sketch.node(EXP, 8 * MIB, reads=[a])
        (joined,) = sketch.node(CAT, 16 * MIB, role=OUTPUT, reads=[part, x], dies=[part])
        sketch.node(MM, 512, reads=[x])
        (mask,) = sketch.node("aten.le.Scalar", 2 * MIB, role=OUTPUT, reads=[a], dies=[a])
        lifetimes = fused(sketch, flags=[mask])
        assert lifetimes.born[[joined, mask]].tolist() == [2, 2]
        assert span(lifetimes, a) == (0, 2)

    def test_they_meet_through_inlined_values(self) -> None:
        """What counts is the buffers that a kernel reads in the end."""
        sketch = Sketch()
        x = sketch.start(MIB, INPUT)
        (a,) = sketch.node(MM, 8 * MIB, reads=[x])
        (one,) = sketch.node(EXP, 8 * MIB, role=OUTPUT, reads=[a])
        (inner,) = sketch.node(EXP, 8 * MIB, reads=[a], dies=[a])
        (two,) = sketch.node(EXP, 8 * MIB, role=OUTPUT, reads=[inner], dies=[inner])
        lifetimes = fused(sketch)
        assert is_inlined(lifetimes, inner)
        assert lifetimes.born[[one, two]].tolist() == [1, 1]


class TestReaders:
    def branches(self, *, readers: int = 1, op: str = ADD) -> tuple[Sketch, int, int]:
        """Return the sum of eight products, made before a ninth, and what adds the ninth to it."""
        sketch = Sketch()
        x = sketch.start(MIB, INPUT)
        products = [sketch.node(MM, 8 * MIB, reads=[x])[0] for _ in range(9)]
        (partial,) = sketch.node(ADD, 8 * MIB, reads=products, dies=products)
        (last,) = sketch.node(MM, 8 * MIB, reads=[x])
        for reader in range(readers):
            is_end = reader == readers - 1
            dies = [partial, last] if is_end else []
            (total,) = sketch.node(op, 8 * MIB, role=OUTPUT, reads=[partial, last], dies=dies)
        return sketch, partial, total

    def test_what_reads_too_much_is_still_computed_in_its_one_reader(self) -> None:
        """Nine buffers are more than a value may read; but its kernel is fused with the next, and they wait for it."""
        sketch, partial, total = self.branches()
        lifetimes = fused(sketch)
        assert is_inlined(lifetimes, partial)
        assert span(lifetimes, total) == (10, -1)
        assert lifetimes.died[:10].tolist()[1:] == [10] * 9

    def test_so_it_is_where_all_that_read_it_are_one_kernel(self) -> None:
        """Two sums of it read the ninth product as well, so that the three are fused."""
        sketch, partial, total = self.branches(readers=2)
        lifetimes = fused(sketch)
        assert is_inlined(lifetimes, partial)
        assert lifetimes.born[total] == 10

    def test_not_where_its_reader_is_another_loop(self) -> None:
        """A library product needs it in memory, and a reduction is not known to loop alike."""
        for op in (MM, SUM):
            sketch, partial, _ = self.branches(op=op)
            assert span(fused(sketch), partial)[0] == 9


@pytest.mark.parametrize(("first_reader", "order"), [(MM, [1, 2, 0, 3]), (ADD, [0, 1, 2, 3])])
def test_a_value_for_a_library_call_is_written_where_that_is_lowered(first_reader: str, order: list[int]) -> None:
    """Zeros that only a library call reads are made right before it; where a pointwise node does before, at once."""
    sketch = Sketch()
    x = sketch.start(8 * MIB, INPUT)
    (zeros,) = sketch.node("aten.full.default", 8 * MIB)
    (large,) = sketch.node(MM, 32 * MIB, reads=[x])
    reads = [large] if first_reader == MM else [large, zeros]
    (product,) = sketch.node(first_reader, 8 * MIB, reads=reads, dies=[large])
    sketch.node(UNKNOWN, 8 * MIB, role=OUTPUT, reads=[zeros, product], dies=[zeros, product])
    trace = sketch.trace()
    trace.region[:] = 0
    graph = CompiledGraph(GraphColumns.of(trace, tuple(sketch.ops)))
    kernels, _ = lower(graph, 0, 4, graph.returned_and_dropped(4))
    assert [kernel.source for kernel in kernels] == order
