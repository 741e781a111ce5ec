"""The compiled loops give the numbers of the Python classes, which have tests of their own."""

from __future__ import annotations

import lzma
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peakcast.featurizer import compiled
from peakcast.featurizer.allocator_config import AllocatorConfig
from peakcast.featurizer.lifetimes import StepEvents
from peakcast.featurizer.prior import simulate
from peakcast.featurizer.run import DeviceSpec, RunSpec
from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.steps import Peaks, Steps

pytest.importorskip("numba", reason="numba is not installed: the allocator runs in Python")

MIB = 1 << 20
# Both pools, both kinds of segment, and requests of nothing.
SIZES = st.one_of(
    st.integers(0, 3 * 512), st.integers(0, 2 * MIB), st.integers(MIB, 12 * MIB), st.integers(10 * MIB, 90 * MIB)
)


@pytest.fixture(scope="module", autouse=True)
def _loaded() -> Iterator[None]:
    assert compiled.load()
    yield
    compiled.unload()


def in_python(make: Callable[[], Steps]) -> tuple[Peaks, int]:
    """Return the peaks and the required bytes without the compiled loops."""
    compiled.unload()
    try:
        steps = make()
        return steps.peaks, steps.required_bytes
    finally:
        compiled.load()


@st.composite
def programs(draw: st.DrawFn) -> Callable[[], Steps]:
    """Draw a first and a steady step: tensors there at the start, some freed, some handed on, some left over."""
    sizes = draw(st.lists(SIZES, min_size=3, max_size=40))
    there = draw(st.integers(0, len(sizes) // 3))
    inside = list(range(there, len(sizes)))
    order = draw(st.permutations([tensor for tensor in inside for _ in range(2)]))
    born: set[int] = set()
    events = []
    for tensor in order:  # the first time it is allocated, the second time freed
        events.append(~tensor if tensor in born else tensor)
        born.add(tensor)
    stays = set(draw(st.lists(st.sampled_from(inside), max_size=4, unique=True)))
    events = [event for event in events if event >= 0 or ~event not in stays]
    handed_on = dict(zip(sorted(stays), range(there), strict=False))
    freed = [~place for place in handed_on.values()]

    spare = np.array(draw(st.lists(st.sampled_from(inside), max_size=4, unique=True)), np.int32)

    def step(*, start: list[int], events: list[int]) -> StepEvents:
        return StepEvents(
            bytes=np.array(sizes, np.int64),
            role=np.zeros(len(sizes), np.uint8),
            node=np.zeros(len(sizes), np.int32),
            root=np.arange(len(sizes)),
            start=np.array(start, np.int64),
            events=np.array(events, np.int64),
            event_node=np.zeros(len(events), np.int32),
            survivors=handed_on,
            left=sorted(stays - handed_on.keys()),
            workspaces=range(len(sizes), len(sizes)),
            spare=spare,
        )

    fresh = [tensor for tensor in range(there) if ~tensor not in freed]
    config = AllocatorConfig.parse(draw(st.sampled_from(["", "roundup_power2_divisions:4"])))
    first = step(start=fresh, events=events)
    steady = step(start=list(range(there)), events=[*freed, *events])
    return lambda: Steps(first, steady, config)


@settings(max_examples=150)
@given(make=programs())
def test_random_programs_take_the_same(make: Callable[[], Steps]) -> None:
    """Peaks, the tensor that sets them and the smallest limit agree with the Python classes'."""
    steps = make()
    assert (steps.peaks, steps.required_bytes) == in_python(make)


@pytest.mark.parametrize("plan", ["eager", "inductor"])
def test_captured_graph_takes_the_same(data: Path, plan: str) -> None:
    """So they do on thousands of nodes of GPT-2, after more rows than were set aside at first."""
    spec = GraphSpec.from_json(lzma.decompress((data / "gpt2_small.json.xz").read_bytes()))
    run, device = RunSpec(optimizer="AdamW", autocast="bfloat16"), DeviceSpec()

    def make() -> Steps:
        return simulate(spec, plan, run, device).steps

    steps = make()
    assert "_after_first" not in vars(steps)  # the Python classes did not run
    assert (steps.peaks, steps.required_bytes) == in_python(make)


def plain_steps(sizes: list[int], events: list[int], allocator: str = "", *, spare: Sequence[int] = ()) -> Steps:
    """Return a program whose steps are alike, and leave and find nothing."""
    step = StepEvents(
        bytes=np.array(sizes, np.int64),
        role=np.zeros(len(sizes), np.uint8),
        node=np.zeros(len(sizes), np.int32),
        root=np.arange(len(sizes)),
        start=np.zeros(0, np.int64),
        events=np.array(events, np.int64),
        event_node=np.zeros(len(events), np.int32),
        survivors={},
        left=[],
        workspaces=range(len(sizes), len(sizes)),
        spare=np.array(spare, np.int32),
    )
    return Steps(step, step, AllocatorConfig.parse(allocator))


def test_limits_that_need_cached_blocks_back() -> None:
    """Two halves cached apart must go back to the driver before the whole fits: 24 MiB are enough, 20 are not."""
    steps = plain_steps([10 * MIB, 10 * MIB, 24 * MIB], [0, 1, ~0, ~1, 2, ~2])
    assert steps.required_bytes == 24 * MIB
    assert steps.peaks.steady_reserved_bytes == 44 * MIB


@pytest.mark.parametrize("is_loaded", [False, True])
def test_what_can_be_spared_is_where_memory_is_short(is_loaded: bool) -> None:
    """Beside 40 MiB, and a segment of 20 for 2, scratch of 30 takes 90 in all: under less it is not there.

    Its limit is no lower than the peak of 72 all the same.
    """
    sizes, events = [40 * MIB, 2 * MIB, 30 * MIB], [0, 1, 2, ~2, ~1, ~0]
    held, spared = plain_steps(sizes, events), plain_steps(sizes, events, spare=[2])
    if not is_loaded:
        compiled.unload()
    assert held.required_bytes == 90 * MIB
    assert spared.required_bytes == 72 * MIB
    assert spared.peaks == held.peaks
    assert spared.peaks.steady_reserved_bytes == 90 * MIB


@pytest.mark.parametrize("allocator", ["expandable_segments:True", "max_split_size_mb:64"])
def test_other_options_stay_in_python(allocator: str) -> None:
    """Growing segments and a split limit are simulated by the classes that know them."""
    steps = plain_steps([3 * MIB, 100 * MIB], [0, 1, ~0, ~1], allocator)
    assert steps.peaks.steady_allocated_bytes == 103 * MIB
    assert "_after_first" in vars(steps)


@pytest.mark.parametrize("sizes", [[1 << 40], [1 << 45], [600 << 30, 500 << 30]], ids=["one", "huge", "together"])
def test_more_than_keys_have_room_for_stays_in_python(sizes: list[int]) -> None:
    """A TiB and more, in one tensor or in several, is no card's, and is answered all the same."""
    tensors = range(len(sizes))
    steps = plain_steps(sizes, [*tensors, *(~tensor for tensor in tensors)])
    assert steps.peaks.steady_allocated_bytes == sum(sizes)
    assert steps.required_bytes == sum(sizes)
    assert "_after_first" in vars(steps)
