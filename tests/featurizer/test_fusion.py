"""Compiled regions keep the buffers that inductor keeps, from where their kernel runs to where they are last read."""

from __future__ import annotations

import numpy as np
import pytest
from fusing import (
    ADD,
    CAT,
    CONVOLUTION,
    EAGER,
    EXP,
    MM,
    POOL,
    PUT,
    SUM,
    UNKNOWN,
    VAR_MEAN,
    VIEW,
    fused,
    is_inlined,
    span,
)
from handmade import MIB, Sketch

from peakcast.featurizer.fusion import fused_lifetimes
from peakcast.featurizer.lifetimes import NO_REUSE, Lifetimes, observed_lifetimes, step_events
from peakcast.featurizer.vocabulary import BACKWARD, CPU, GRADIENT, INPUT, LOSS, OUTPUT, SAVED


def live_peak_bytes(sketch: Sketch, lifetimes: Lifetimes) -> int:
    """Return the highest sum of live buffers of a step."""
    step = step_events(sketch.trace(), lifetimes)
    live = peak = sum(int(step.bytes[tensor]) for tensor in step.start)
    for event in step.events:
        live += int(step.bytes[event]) if event >= 0 else -int(step.bytes[~event])
        peak = max(peak, live)
    return peak


class TestWhichValuesGetABuffer:
    def test_pointwise_values_are_computed_in_their_reader(self) -> None:
        """Input -> exp -> exp -> sum: only the sum is written."""
        sketch = Sketch()
        x = sketch.start(MIB, INPUT)
        (a,) = sketch.node(EXP, MIB, reads=[x])
        (b,) = sketch.node(EXP, MIB, reads=[a], dies=[a])
        (total,) = sketch.node(SUM, 4, reads=[b], dies=[b])
        lifetimes = fused(sketch)
        assert is_inlined(lifetimes, a)
        assert is_inlined(lifetimes, b)
        assert span(lifetimes, total) == (2, -1)
        assert live_peak_bytes(sketch, lifetimes) == MIB + 4

    @pytest.mark.parametrize("reader", [MM, "aten.convolution.default", POOL, UNKNOWN])
    def test_library_and_window_kernels_read_buffers(self, reader: str) -> None:
        """A matrix product, a convolution, a pooling and what is not known need their inputs in memory."""
        sketch = Sketch()
        x = sketch.start(MIB, INPUT)
        (a,) = sketch.node(EXP, MIB, reads=[x])
        (b,) = sketch.node(EXP, MIB, reads=[a], dies=[a])
        sketch.node(reader, MIB, reads=[b], dies=[b])
        lifetimes = fused(sketch)
        assert is_inlined(lifetimes, a)
        assert span(lifetimes, b) == (1, 2)

    def test_a_reader_behind_a_view_counts(self) -> None:
        """The product reads the value through a view."""
        sketch = Sketch()
        x = sketch.start(MIB, INPUT)
        (a,) = sketch.node(EXP, MIB, reads=[x])
        sketch.node(VIEW, reads=[a], writes=[a])
        sketch.node(MM, MIB, reads=[a], dies=[a])
        assert span(fused(sketch), a) == (0, 2)

    def test_a_view_alone_is_no_reader(self) -> None:
        """A value of which only views are taken is written nowhere."""
        sketch = Sketch()
        x = sketch.start(MIB, INPUT)
        (a,) = sketch.node(EXP, MIB, reads=[x])
        sketch.node(VIEW, reads=[a], writes=[a])
        sketch.node(SUM, 4, reads=[a], dies=[a])
        assert is_inlined(fused(sketch), a)

    def test_outputs_and_what_backward_needs_are_written(self) -> None:
        """One value outlives the step, one is read by an eager node, one by the compiled backward."""
        sketch = Sketch()
        x = sketch.start(MIB, INPUT)
        (output,) = sketch.node(EXP, MIB, role=OUTPUT, reads=[x])
        (logits,) = sketch.node(EXP, MIB, reads=[x])
        (saved,) = sketch.node(EXP, MIB, role=SAVED, reads=[x])
        sketch.node(SUM, 4, reads=[saved])
        sketch.node(SUM, 4, phase=LOSS, reads=[logits], dies=[logits])
        sketch.node(SUM, 4, phase=BACKWARD, reads=[saved], dies=[saved])
        lifetimes = fused(sketch, [0, 0, 0, 0, EAGER, 0])
        # The three read one buffer and are of a size: one kernel computes them.
        assert span(lifetimes, output) == (0, -1)
        assert span(lifetimes, logits) == (0, 4)
        assert span(lifetimes, saved) == (0, 5)

    @pytest.mark.parametrize(
        ("sources", "readers", "inlined"),
        [(4, 2, True), (5, 2, False), (5, 1, True), (8, 1, True), (9, 1, False)],
    )
    def test_values_that_read_many_buffers_are_written(self, sources: int, readers: int, inlined: bool) -> None:
        """More than four buffers with several readers, more than eight with one."""
        sketch = Sketch()
        given = [sketch.start(MIB, INPUT) for _ in range(sources)]
        (a,) = sketch.node(ADD, MIB, reads=given)
        for _ in range(readers):
            sketch.node(SUM, 4, reads=[a])
        sketch.storages[a][4] = readers
        assert is_inlined(fused(sketch), a) == inlined

    def test_reads_add_up_through_inlined_values(self) -> None:
        """Two values of three buffers each are computed where they are added: that reads six, and is written."""
        sketch = Sketch()
        given = [sketch.start(MIB, INPUT) for _ in range(6)]
        (a,) = sketch.node(ADD, MIB, reads=given[:3])
        (b,) = sketch.node(ADD, MIB, reads=given[3:])
        (both,) = sketch.node(ADD, MIB, reads=[a, b], dies=[a, b])
        sketch.node(SUM, 4, reads=[both])
        sketch.node(SUM, 4, reads=[both], dies=[both])
        lifetimes = fused(sketch)
        assert is_inlined(lifetimes, a)
        assert is_inlined(lifetimes, b)
        assert span(lifetimes, both) == (2, 4)

    def test_reading_a_value_twice_is_one_reader(self) -> None:
        """A square has one reader of its input: five buffers are not too many."""
        sketch = Sketch()
        given = [sketch.start(MIB, INPUT) for _ in range(5)]
        (a,) = sketch.node(ADD, MIB, reads=given)
        sketch.node(SUM, 4, reads=[a, a], dies=[a])
        assert is_inlined(fused(sketch), a)

    @pytest.mark.parametrize(("reads", "inlined"), [(1, 99), (2, 28)])
    def test_long_expressions_are_written(self, reads: int, inlined: int) -> None:
        """What reads one element is inlined up to a hundred operations, else up to thirty; the reads count among them.

        Then counting begins anew, with one element.
        """
        sketch = Sketch()
        given = [sketch.start(MIB, INPUT) for _ in range(reads)]
        chain = sketch.node(ADD if reads > 1 else EXP, MIB, reads=given)
        for _ in range(119):
            chain += sketch.node(EXP, MIB, reads=chain[-1:], dies=chain[-1:])
        sketch.node(SUM, 4, reads=chain[-1:], dies=chain[-1:])
        lifetimes = fused(sketch)
        rest = 120 - inlined - 1
        assert [is_inlined(lifetimes, value) for value in chain] == [True] * inlined + [False] + [True] * rest
        assert span(lifetimes, chain[inlined]) == (inlined, 120)

    def test_what_is_used_twice_is_computed_once(self) -> None:
        """Twenty squares are twenty operations and one read, though they name what they read a million times."""
        sketch = Sketch()
        value = sketch.start(MIB, INPUT)
        chain: list[int] = []
        for _ in range(20):
            chain += sketch.node("aten.mul.Tensor", MIB, reads=[value, value], dies=chain[-1:])
            value = chain[-1]
        sketch.node(SUM, 4, reads=[value])
        sketch.node(SUM, 4, reads=[value], dies=[value])
        assert is_inlined(fused(sketch), value)

    @pytest.mark.parametrize(("op", "inlined"), [(SUM, True), (CONVOLUTION, False)])
    def test_parts_that_are_written_into_a_concatenation_are_read_as_one(self, op: str, *, inlined: bool) -> None:
        """Four sums make one buffer, so that with three more it is read of four; four libraries' results are seven."""
        sketch = Sketch()
        given = [sketch.start(MIB, INPUT) for _ in range(3)]
        parts = [sketch.node(op, MIB // 4, reads=given[:1])[0] for _ in range(4)]
        (whole,) = sketch.node(CAT, MIB, reads=parts, dies=parts)
        (value,) = sketch.node(ADD, MIB, reads=[whole, *given], dies=[whole])
        sketch.node(SUM, 4, reads=[value])
        sketch.node(SUM, 4, reads=[value], dies=[value])
        assert is_inlined(fused(sketch), value) is inlined

    @pytest.mark.parametrize(("parts", "inlined"), [(1, True), (2, True), (4, False)])
    def test_each_part_of_a_buffer_is_a_read_of_its_own(self, parts: int, *, inlined: bool) -> None:
        """The gates of an LSTM are parts of one product: three of them and two more buffers are five reads, not three.

        Of two parts the third reader reads the first again: four reads.
        """
        sketch = Sketch()
        x, y, z = (sketch.start(8 * MIB, INPUT) for _ in range(3))
        (product,) = sketch.node(MM, 8 * MIB * parts, reads=[x])
        sketch.node("aten.split.Tensor", reads=[product], writes=[product])
        gates = [sketch.node(EXP, 8 * MIB, reads=[product])[0] for _ in range(3)]
        (state,) = sketch.node(ADD, 8 * MIB, reads=[*gates, y, z], dies=gates)
        sketch.node(SUM, 512, role=OUTPUT, reads=[state])
        sketch.node(SUM, 512, role=OUTPUT, reads=[state], dies=[product, state])
        sketch.node(MM, 512, reads=[x])
        assert is_inlined(fused(sketch, parts=parts), state) is inlined

    @pytest.mark.parametrize(("shown", "inlined"), [(1, True), (2, False)])
    def test_a_sum_along_one_element_is_pointwise(self, shown: int, *, inlined: bool) -> None:
        """It makes as many elements as it reads; not where it reads through a view that shows each of them twice."""
        sketch = Sketch()
        x = sketch.start(MIB, INPUT)
        (a,) = sketch.node(EXP, MIB, reads=[x])
        expand = sketch.node("aten.expand.default", reads=[a], writes=[a])
        assert not expand
        (b,) = sketch.node("aten.sum.dim_IntList", MIB, reads=[a], dies=[a])
        sketch.node(MM, MIB, reads=[x])
        sketch.node(SUM, 4, reads=[b], dies=[b])
        trace = sketch.trace()
        trace.region[:] = 0
        trace.numel[:] = [MIB // 4, shown * MIB // 4, MIB // 4, MIB // 4, 1]
        assert is_inlined(fused_lifetimes(trace, tuple(sketch.ops)), b) is inlined

    @pytest.mark.parametrize("op", [SUM, VAR_MEAN, PUT])
    def test_reductions_and_scatters_write(self, op: str) -> None:
        """Their results are buffers even where the only reader is pointwise."""
        sketch = Sketch()
        x = sketch.start(MIB, INPUT)
        (made,) = sketch.node(op, 2 * MIB, reads=[x])
        sketch.node(EXP, 2 * MIB, reads=[made], dies=[made])
        assert span(fused(sketch), made) == (0, 1)

    def test_a_window_is_computed_in_a_reader_that_loops_alike(self) -> None:
        """The gradient of a ReLU reads that of a pooling where it is written: one kernel, and one buffer."""
        sketch = Sketch()
        x = sketch.start(MIB, INPUT)
        (made,) = sketch.node(POOL, 2 * MIB, reads=[x])
        sketch.node(EXP, 2 * MIB, reads=[made], dies=[made])
        assert is_inlined(fused(sketch), made)

    @pytest.mark.parametrize("op", [SUM, CAT, PUT])
    def test_what_they_read_is_computed_right_in_them(self, op: str) -> None:
        """The inputs of a reduction, a scatter and a concatenation need no buffers."""
        sketch = Sketch()
        x = sketch.start(MIB, INPUT)
        (a,) = sketch.node(EXP, MIB, reads=[x])
        sketch.node(op, 2 * MIB, reads=[a], dies=[a])
        assert is_inlined(fused(sketch), a)

    def test_an_unknown_operator_has_everything_in_memory(self) -> None:
        """What it reads, all that it writes, and what it writes in place."""
        sketch = Sketch()
        x = sketch.start(MIB, INPUT)
        (a,) = sketch.node(EXP, MIB, reads=[x])
        b, c = sketch.node(UNKNOWN, 2 * MIB, MIB, reads=[a], dies=[a])
        (d,) = sketch.node(EXP, 3 * MIB, reads=[c], dies=[c])
        sketch.node(UNKNOWN, reads=[d, b], writes=[d], dies=[b, d])
        lifetimes = fused(sketch)
        assert [span(lifetimes, s) for s in (a, b, c, d)] == [(0, 1), (1, 3), (1, 2), (2, 3)]
        assert (lifetimes.reuses == NO_REUSE).all()

    def test_what_is_on_the_cpu_stays_out(self) -> None:
        """A region's storages on the CPU are neither allocated nor taken over."""
        sketch = Sketch()
        x = sketch.start(MIB, INPUT, device=CPU)
        (a,) = sketch.node(MM, MIB, reads=[x])
        sketch.storages[a][1] = CPU
        (b,) = sketch.node(EXP, MIB, reads=[a], dies=[a])
        lifetimes = fused(sketch)
        assert [is_inlined(lifetimes, s) for s in (x, a, b)] == [True, True, False]
        assert lifetimes.reuses[b] == NO_REUSE


class TestLifetimes:
    def test_sources_live_until_the_kernel_that_inlines_their_reader(self) -> None:
        """A is read by exp and dies there, but the sum two nodes later computes the exp."""
        sketch = Sketch()
        x = sketch.start(MIB, INPUT)
        (a,) = sketch.node(MM, 8 * MIB, reads=[x])
        (b,) = sketch.node(EXP, 8 * MIB, reads=[a], dies=[a])
        (c,) = sketch.node(EXP, 8 * MIB, reads=[b], dies=[b])
        sketch.node(MM, MIB, reads=[x])
        sketch.node(SUM, 4, reads=[c], dies=[c])
        assert span(fused(sketch), a) == (0, 4)

    def test_the_last_of_several_kernels_counts(self) -> None:
        """Two reductions compute the same exp; its source lives until the later one."""
        sketch = Sketch()
        x = sketch.start(MIB, INPUT)
        (a,) = sketch.node(MM, 8 * MIB, reads=[x])
        (b,) = sketch.node(EXP, 8 * MIB, reads=[a], dies=[a])
        sketch.node(SUM, 4, reads=[b])
        sketch.node(MM, MIB, reads=[x])
        sketch.node(SUM, 8, reads=[b], dies=[b])
        assert span(fused(sketch), a) == (0, 4)

    def test_views_keep_nothing_alive(self) -> None:
        """A view after the last kernel that reads a buffer is no reason to keep it."""
        sketch = Sketch()
        x = sketch.start(MIB, INPUT)
        (a,) = sketch.node(MM, 8 * MIB, reads=[x])
        sketch.node(SUM, 4, reads=[a])
        sketch.node(VIEW, reads=[a], writes=[a], dies=[a])
        sketch.node(SUM, 4, reads=[x])
        assert span(fused(sketch), a) == (0, 1)

    def test_given_tensors_that_die_inside_are_kept_as_long(self) -> None:
        """An input that the region reads last lives until the kernel does."""
        sketch = Sketch()
        (x,) = sketch.node("aten.empty.memory_format", 8 * MIB)
        (a,) = sketch.node(EXP, 8 * MIB, reads=[x], dies=[x])
        sketch.node(MM, MIB)
        sketch.node(SUM, 4, reads=[a], dies=[a])
        assert span(fused(sketch, [EAGER, 0, 0, 0]), x) == (0, 3)

    def test_what_lives_past_the_region_keeps_its_death(self) -> None:
        """Freed by eager code later, or never."""
        sketch = Sketch()
        x = sketch.start(MIB, INPUT)
        (a,) = sketch.node(MM, 8 * MIB, reads=[x])
        (b,) = sketch.node(MM, 8 * MIB, reads=[x])
        sketch.node(SUM, 4, reads=[a, b])
        sketch.node(EXP, 8 * MIB, dies=[a])
        lifetimes = fused(sketch, [0, 0, 0, EAGER])
        assert span(lifetimes, a) == (0, 3)
        assert span(lifetimes, b) == (1, -1)
        assert span(lifetimes, x) == (-1, -1)

    def test_eager_steps_are_as_observed(self) -> None:
        """Without a region nothing changes."""
        sketch = Sketch()
        x = sketch.start(MIB, INPUT)
        (a,) = sketch.node(EXP, MIB, reads=[x])
        sketch.node(SUM, 4, reads=[a], dies=[a])
        observed, lifetimes = observed_lifetimes(sketch.trace()), fused(sketch, EAGER)
        for name in ("bytes", "role", "born", "died", "reuses"):
            np.testing.assert_array_equal(getattr(lifetimes, name), getattr(observed, name))


class TestSegments:
    def test_forward_and_backward_of_one_graph_are_apart(self) -> None:
        """A value made in the forward is in memory for the backward, even where one directly follows the other."""
        sketch = Sketch()
        x = sketch.start(MIB, INPUT)
        (inner,) = sketch.node(EXP, 8 * MIB, reads=[x])
        (a,) = sketch.node(EXP, 8 * MIB, role=SAVED, reads=[inner], dies=[inner])
        (b,) = sketch.node(EXP, 8 * MIB, phase=BACKWARD, reads=[a], dies=[a])
        sketch.node(SUM, 4, phase=BACKWARD, role=GRADIENT, reads=[b], dies=[b])
        lifetimes = fused(sketch)
        assert is_inlined(lifetimes, inner)
        assert span(lifetimes, a) == (1, 3)
        assert is_inlined(lifetimes, b)

    def test_what_one_region_hands_to_another_is_written(self) -> None:
        """Each region is compiled by itself; kernels of two are no siblings, and neither takes what the other made."""
        sketch = Sketch()
        x = sketch.start(MIB, INPUT)
        (a,) = sketch.node(EXP, 8 * MIB, reads=[x])
        (b,) = sketch.node(EXP, 8 * MIB, reads=[a])
        (c,) = sketch.node(EXP, 4 * MIB, reads=[b], dies=[b])
        (d,) = sketch.node(SUM, 4, reads=[a, c], dies=[a, c])
        lifetimes = fused(sketch, [0, 1, 1, 1])
        assert span(lifetimes, a) == (0, 3)
        assert is_inlined(lifetimes, b)
        assert is_inlined(lifetimes, c)
        assert span(lifetimes, d) == (3, -1)
        together = fused(sketch)
        assert is_inlined(together, a)

    def test_eager_nodes_in_between_are_untouched(self) -> None:
        """A pointwise chain outside keeps its buffers and deaths; the region goes on after it as one of its own."""
        sketch = Sketch()
        x = sketch.start(MIB, INPUT)
        (a,) = sketch.node(EXP, 8 * MIB, reads=[x])  # compiled, read by eager code
        (b,) = sketch.node(EXP, 8 * MIB, reads=[a], dies=[a])  # eager
        (c,) = sketch.node(EXP, 8 * MIB, reads=[b], dies=[b])  # eager
        (d,) = sketch.node(EXP, 8 * MIB, reads=[c], dies=[c])  # compiled, inlined
        sketch.node(SUM, 4, reads=[d], dies=[d])
        lifetimes = fused(sketch, [0, EAGER, EAGER, 0, 0])
        assert [span(lifetimes, s) for s in (a, b, c)] == [(0, 1), (1, 2), (2, 4)]
        assert is_inlined(lifetimes, d)
        assert (lifetimes.reuses == NO_REUSE).all()


class TestHostileTraces:
    def test_outputs_that_read_each_other_form_no_circle(self) -> None:
        """Three results of one node, each of which could take over another's memory: none does."""
        sketch = Sketch()
        made = sketch.node(VAR_MEAN, MIB, MIB, MIB)
        op, phase, device, _, _ = sketch.nodes[0]
        sketch.nodes[0] = (op, phase, device, made, [made[1], made[2], made[0]])
        sketch.node(VIEW, dies=made)
        lifetimes = fused(sketch)
        assert (lifetimes.reuses == NO_REUSE).all()
        assert step_events(sketch.trace(), lifetimes).events.tolist() == [0, 1, 2, ~0, ~1, ~2]

    def test_a_buffer_read_before_it_is_born_does_not_die_before(self) -> None:
        """Node 0 reads what node 1 allocates without naming it among its outputs."""
        sketch = Sketch()
        sketch.node(MM, MIB, reads=[1])
        (early,) = sketch.node(MM, MIB)
        sketch.nodes[1][4].clear()
        sketch.storages[early][4] = 1
        assert span(fused(sketch), early) == (1, 1)

    def test_an_empty_trace(self) -> None:
        """No nodes, no storages: nothing to decide."""
        assert len(fused(Sketch())) == 0
