"""In a cold first step generated kernels are timed: the benchmark's buffer is there then, and never again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fusing import EXP, MM, SUM
from handmade import MIB, Sketch

from peakcast.featurizer.allocator_config import AllocatorConfig
from peakcast.featurizer.autotune import with_autotuning, with_autotuning_again
from peakcast.featurizer.kernel_trials import L2_CACHE_BYTES
from peakcast.featurizer.lifetimes import observed_lifetimes, step_events
from peakcast.featurizer.prior import simulate
from peakcast.featurizer.run import DeviceSpec, RunSpec
from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.steps import Steps
from peakcast.featurizer.vocabulary import BACKWARD, INPUT, KERNEL, PARAMETER
from peakcast.featurizer.workspace import Workspace


def steps_of(sketch: Sketch, region: list[int], changed: int | None = None) -> Steps:
    """Return the steps of a sketch, tuned in the first, and from the node `changed` on in the second too."""
    trace = sketch.trace()
    trace.region[:] = region
    lifetimes = observed_lifetimes(trace)
    first, steady = step_events(trace, lifetimes, is_first=True), step_events(trace, lifetimes)
    spec = GraphSpec(ops=tuple(sketch.ops), dtypes=("float32",), lines=("step.py:1",), traces={"inductor": trace})
    tuned = with_autotuning(first, trace, spec, lifetimes)
    again = None if changed is None else with_autotuning_again(steady, trace, spec, lifetimes, changed)
    return Steps(first, steady, AllocatorConfig(), tuned=tuned, tuned_again=again)


def kernels(first_op: str, second_op: str) -> Sketch:
    """Return two kernels, of 100 MiB and of 40 MiB, on an input of 40 MiB."""
    sketch = Sketch()
    x = sketch.start(40 * MIB, INPUT)
    (large,) = sketch.node(first_op, 100 * MIB, reads=[x])
    (small,) = sketch.node(second_op, 40 * MIB, reads=[large], dies=[large])
    sketch.node(MM, 40 * MIB, reads=[small], dies=[small])
    return sketch


def test_the_buffer_is_there_at_the_launch_that_takes_most() -> None:
    """Input 40, both results 140, and the buffer; steady steps do without it."""
    steps = steps_of(kernels(EXP, EXP), [0, 0, 0])
    assert steps.peaks.first_allocated_bytes == 180 * MIB + L2_CACHE_BYTES
    assert steps.peaks.steady_allocated_bytes == 180 * MIB


def test_what_it_took_stays_reserved() -> None:
    """60 MiB beside segments of 40, 100 and 40 MiB, in which the last result finds room."""
    peaks = steps_of(kernels(EXP, EXP), [0, 0, 0]).peaks
    assert peaks.first_reserved_bytes == peaks.steady_reserved_bytes == (40 + 100 + 40 + 60) * MIB


def test_what_is_required_does_without() -> None:
    """A warm process tunes nothing."""
    assert steps_of(kernels(EXP, EXP), [0, 0, 0]).required_bytes == pytest.approx(180 * MIB, abs=4 * MIB)


def test_library_kernels_and_sums_over_rows_are_not_tuned() -> None:
    """The product is no generated kernel, and a sum has one configuration: nothing is tried."""
    steps = steps_of(kernels(MM, SUM), [0, 0, 0])
    assert steps.peaks.first_allocated_bytes == 180 * MIB


def test_eager_kernels_are_not_tuned() -> None:
    """Only what is compiled is."""
    assert steps_of(kernels(EXP, EXP), [-1, -1, -1]).peaks.first_allocated_bytes == 180 * MIB


@pytest.mark.parametrize(("changed", "allocated"), [(0, 180 * MIB + L2_CACHE_BYTES), (1, 180 * MIB + L2_CACHE_BYTES)])
def test_a_second_compile_tunes_what_is_new(changed: int, allocated: int) -> None:
    """As the second kernel is launched its input, 100, and result lie beside the 40: so much as at the first one's."""
    steps = steps_of(kernels(EXP, EXP), [0, 0, 0], changed)
    assert steps.peaks.steady_allocated_bytes == allocated
    assert steps.required_bytes == pytest.approx(180 * MIB, abs=4 * MIB)


def test_a_second_compile_of_library_calls_tunes_nothing() -> None:
    """From the product on there is no kernel of the compiler's own: as in any steady step."""
    assert steps_of(kernels(EXP, EXP), [0, 0, 0], changed=2).peaks.steady_allocated_bytes == 180 * MIB


def test_kernels_of_a_replayed_step_are_tuned_too() -> None:
    """They are nodes by themselves, in no region; the product is a library's."""
    sketch = kernels(KERNEL, KERNEL)
    trace = replace(sketch.trace(), replayed=True)
    lifetimes = observed_lifetimes(trace)
    first = step_events(trace, lifetimes, is_first=True)
    spec = GraphSpec(ops=tuple(sketch.ops), dtypes=("float32",), lines=("step.py:1",), traces={"inductor": trace})
    tuned = with_autotuning(first, trace, spec, lifetimes)
    peaks = Steps(first, first, AllocatorConfig(), tuned=tuned).peaks
    assert peaks.first_allocated_bytes == 180 * MIB + L2_CACHE_BYTES


def test_a_product_of_an_odd_size_is_tried_before_the_step() -> None:
    """Its matrices lie beside the input alone, and the workspace it took is there from the start of the step."""
    sketch = Sketch()
    x, weight = sketch.start(4 * 4096 * 768, INPUT), sketch.start(4 * 768 * 50257, PARAMETER)
    (hidden,) = sketch.node(EXP, 4 * 4096 * 768, reads=[x])
    sketch.node(MM, 4 * 4096 * 50257, reads=[hidden, weight], dies=[hidden])
    trace = sketch.trace()
    trace.region[:] = 0
    trace.numel[:] = [4096 * 768, 4096 * 50257]
    lifetimes = observed_lifetimes(trace)
    first = step_events(trace, lifetimes, [Workspace(1, 32 * MIB)], is_first=True)
    spec = GraphSpec(ops=tuple(sketch.ops), dtypes=("float32",), lines=("step.py:1",), traces={"inductor": trace})
    tuned = with_autotuning(first, trace, spec, lifetimes)
    steps = Steps(first, first, AllocatorConfig(), tuned=tuned)
    there = 4 * (4096 * 768 + 768 * 50257)
    tried = there + 4 * (768 * 50260 + 4096 * 50260) + L2_CACHE_BYTES + 32 * MIB
    # A block keeps up to 1 MiB beyond its tensor rather than be split: eight tensors.
    assert there + tried <= steps.peaks.first_allocated_bytes <= there + tried + 8 * MIB
    # Under CUDA graphs what it leaves cached is given back before anything is recorded: kernels alone are timed.
    recorded = with_autotuning(first, trace, spec, lifetimes, recorded=True)
    assert recorded.bytes[len(first.bytes) :].tolist() == [L2_CACHE_BYTES]


def test_the_trials_of_a_second_compile_are_not_those_of_the_first() -> None:
    """The first times the fullest launch, 100 MiB in place; the second only the kernel of 1 MiB after it."""
    sketch = Sketch()
    x, y = sketch.start(MIB, INPUT), sketch.start(50 * MIB, INPUT)
    sketch.node(KERNEL, reads=[y], writes=[y])
    sketch.node(KERNEL, MIB, reads=[x], phase=BACKWARD)
    trace = replace(sketch.trace(), replayed=True, compiled_again=1)
    spec = GraphSpec(ops=tuple(sketch.ops), dtypes=("float32",), lines=("step.py:1",), traces={"inductor": trace})
    peaks = simulate(spec, "inductor", RunSpec(), DeviceSpec()).steps.peaks
    assert peaks.first_allocated_bytes == (1 + 50 + 50) * MIB + L2_CACHE_BYTES
    assert peaks.steady_allocated_bytes == (1 + 50 + 1) * MIB + L2_CACHE_BYTES
