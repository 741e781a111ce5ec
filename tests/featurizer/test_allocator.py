"""The simulated allocator follows torch's rules; expected values are worked out from the rules by hand."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakcast.featurizer.allocator import (
    CachingAllocator,
    OutOfLimitError,
    make_allocator,
    required_bytes,
    simulate_allocator,
)
from peakcast.featurizer.allocator_config import AllocatorConfig

KIB, MIB = 1 << 10, 1 << 20
EXPANDABLE = AllocatorConfig(expandable_segments=True)
CONFIGS = (AllocatorConfig(), EXPANDABLE, AllocatorConfig(max_split_size_bytes=40 * MIB))


def held_after(*sizes_bytes: int, config: AllocatorConfig | None = None) -> tuple[int, int]:
    """Return allocated and reserved bytes after allocating all sizes."""
    allocator = make_allocator(config)
    for size_bytes in sizes_bytes:
        allocator.malloc(size_bytes)
    return allocator.allocated_bytes, allocator.reserved_bytes


@pytest.mark.parametrize(
    ("sizes_bytes", "allocated_bytes", "reserved_bytes"),
    [
        ([0], 0, 0),
        ([1], 512, 2 * MIB),
        ([513], 1024, 2 * MIB),
        # 1 MiB is still small, so two of them share a segment and a third needs another.
        ([MIB], MIB, 2 * MIB),
        ([MIB] * 2, 2 * MIB, 2 * MIB),
        ([MIB] * 3, 3 * MIB, 4 * MIB),
        ([MIB + 1], MIB + 512, 20 * MIB),
        # Three large ones in a segment of 20 MiB: the third leaves 1 MiB, which is not split off.
        ([6 * MIB, 6 * MIB, 7 * MIB], 20 * MIB, 20 * MIB),
        ([6 * MIB, 6 * MIB, 6 * MIB], 18 * MIB, 20 * MIB),
        ([10 * MIB - 512], 10 * MIB - 512, 20 * MIB),
        # From 10 MiB on a segment of its own, in steps of 2 MiB.
        ([10 * MIB], 10 * MIB, 10 * MIB),
        ([11 * MIB], 12 * MIB, 12 * MIB),
        ([11 * MIB - 512], 11 * MIB - 512, 12 * MIB),
        # The rest of the first, 1.5 MiB, is split off and serves the second whole, 0.4 MiB and all.
        ([32 * MIB + 512 * KIB, MIB + 100 * KIB], 34 * MIB, 34 * MIB),
    ],
)
def test_sizes_of_blocks_and_segments(sizes_bytes: list[int], allocated_bytes: int, reserved_bytes: int) -> None:
    """A block is as large as its tensor in steps of 512 bytes, or as what cannot be split; segments come in 3 sorts."""
    assert held_after(*sizes_bytes) == (allocated_bytes, reserved_bytes)


def test_takes_the_smallest_block_that_fits() -> None:
    """Of free blocks of 30 and 12 MiB, a request of 12 takes the second and leaves the first whole."""
    allocator = CachingAllocator()
    large, fitting = allocator.malloc(30 * MIB), allocator.malloc(12 * MIB)
    allocator.free(large)
    allocator.free(fitting)
    allocator.malloc(12 * MIB)
    allocator.malloc(30 * MIB)
    assert allocator.reserved_bytes == 42 * MIB


def test_joins_freed_neighbours() -> None:
    """Four blocks of 5 MiB, freed in any order, make one of 20 MiB again."""
    allocator = CachingAllocator()
    blocks = [allocator.malloc(5 * MIB) for _ in range(4)]
    for index in (1, 3, 0, 2):
        allocator.free(blocks[index])
    allocator.malloc(20 * MIB)
    assert allocator.reserved_bytes == 20 * MIB


def test_segments_are_not_joined() -> None:
    """Two free segments of 10 MiB do not serve a request of 20."""
    allocator = CachingAllocator()
    for block in [allocator.malloc(10 * MIB), allocator.malloc(10 * MIB)]:
        allocator.free(block)
    allocator.malloc(20 * MIB)
    assert allocator.reserved_bytes == 40 * MIB


def test_gives_cached_segments_back_before_failing() -> None:
    """Under 50 MiB, 30 freed make room for 40; 40 more do not fit, and the state before stands."""
    allocator = CachingAllocator(limit_bytes=50 * MIB)
    allocator.free(allocator.malloc(30 * MIB))
    allocator.malloc(40 * MIB)
    assert (allocator.reserved_bytes, allocator.peak_reserved_bytes) == (40 * MIB, 40 * MIB)
    with pytest.raises(OutOfLimitError, match="limit 52428800"):
        allocator.malloc(40 * MIB)
    assert allocator.allocated_bytes == 40 * MIB


def test_a_segment_in_part_use_is_not_given_back() -> None:
    """A live 2 MiB tensor holds its segment of 20 MiB."""
    allocator = CachingAllocator(limit_bytes=50 * MIB)
    allocator.malloc(2 * MIB)
    with pytest.raises(OutOfLimitError):
        allocator.malloc(32 * MIB)


def test_what_can_be_spared_is_not_allocated_past_the_limit() -> None:
    """Cached blocks go back for it all the same; the next tensor that cannot be spared fails."""
    allocator = CachingAllocator(limit_bytes=50 * MIB)
    allocator.add(np.array([20 * MIB, 30 * MIB, 40 * MIB, 40 * MIB]), spare=[2])
    allocator.run([0, 1, ~1, 2, ~2])
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (20 * MIB, 20 * MIB)
    with pytest.raises(OutOfLimitError):
        allocator.run([3])


def test_required_lies_between_allocated_and_reserved() -> None:
    """30 freed, then 40: reserves 70 MiB where it can, and runs in 40."""
    sizes, events = np.array([30 * MIB, 40 * MIB]), [0, ~0, 1]
    assert simulate_allocator(sizes, events).reserved_bytes.tolist() == [30 * MIB, 30 * MIB, 70 * MIB]
    assert required_bytes(sizes, events) == 40 * MIB


def test_oversize_blocks_under_max_split_size() -> None:
    """With max_split_size 40 MiB a block of 60 serves 50 whole, and not 12, nor 40, which is 20 MiB below."""
    config = AllocatorConfig.parse("max_split_size_mb:40")
    for wanted, allocated, reserved in ((50, 60, 60), (12, 12, 72), (40, 40, 100)):
        allocator = CachingAllocator(config)
        allocator.free(allocator.malloc(60 * MIB))
        allocator.malloc(wanted * MIB)
        assert (allocator.allocated_bytes, allocator.reserved_bytes) == (allocated * MIB, reserved * MIB), wanted


def test_oversize_blocks_are_given_back_first() -> None:
    """Under a limit the oversize block that would do goes first, and smaller cached segments stay."""
    allocator = CachingAllocator(AllocatorConfig.parse("max_split_size_mb:40"), limit_bytes=100 * MIB)
    for block in [allocator.malloc(12 * MIB), allocator.malloc(80 * MIB)]:
        allocator.free(block)
    allocator.malloc(42 * MIB)
    assert allocator.reserved_bytes == (12 + 42) * MIB


def test_roundup_power2_divisions() -> None:
    """With 4 divisions, sizes between 4 and 8 MiB round up in steps of 1 MiB; a power of two stays."""
    config = AllocatorConfig.parse("roundup_power2_divisions:4")
    assert held_after(5 * MIB + 1, config=config)[0] == 6 * MIB
    assert held_after(8 * MIB, config=config)[0] == 8 * MIB
    # 600 bytes are under 512 * 4: rounded to 512 as ever.
    assert held_after(600, config=config)[0] == 1024


def test_expandable_segments_grow_by_pages_and_split_everything() -> None:
    """11 MiB map one page of 20 MiB; 11 more use the 9 left and map another; small ones map 2 MiB."""
    assert held_after(11 * MIB, config=EXPANDABLE) == (11 * MIB, 20 * MIB)
    assert held_after(11 * MIB, 11 * MIB, config=EXPANDABLE) == (22 * MIB, 40 * MIB)
    assert held_after(1, config=EXPANDABLE) == (512, 2 * MIB)


def test_expandable_segments_unmap_free_pages_under_pressure() -> None:
    """40 MiB freed in front of a live tensor: whole pages go, what shares one with it stays, and 60 fit under 100."""
    allocator = make_allocator(EXPANDABLE, limit_bytes=100 * MIB)
    front, _ = allocator.malloc(50 * MIB), allocator.malloc(10 * MIB)
    allocator.free(front)
    assert allocator.reserved_bytes == 60 * MIB
    # Unmapped: pages 0 and 1. The third holds 10 MiB free and the 10 in use, and is followed by new pages.
    allocator.malloc(60 * MIB)
    assert allocator.reserved_bytes == 80 * MIB


def test_peaks_stand_until_reset() -> None:
    """The peak and the tensor that set it are kept, then start again from what is held."""
    allocator = CachingAllocator()
    small, large = allocator.malloc(10 * MIB), allocator.malloc(30 * MIB)
    allocator.free(large)
    assert (allocator.peak_allocated_bytes, allocator.peak_tensor) == (40 * MIB, large)
    allocator.reset_peaks()
    assert (allocator.peak_allocated_bytes, allocator.peak_reserved_bytes) == (10 * MIB, 40 * MIB)
    allocator.free(small)
    assert allocator.peak_allocated_bytes == 10 * MIB


def recorded_runs() -> list[dict[str, Any]]:
    """Return what torch's allocator counted on a GPU after each of some hundred events, by configuration."""
    path = Path(__file__).parent / "data" / "allocator_h200.json.xz"
    runs: list[dict[str, Any]] = json.loads(lzma.decompress(path.read_bytes()))["runs"]
    return runs


@pytest.mark.parametrize("run", recorded_runs(), ids=lambda run: run["conf"] or "default")
def test_equals_torch_on_a_gpu(run: dict[str, Any]) -> None:
    """After each event allocated and reserved bytes are, to the byte, those torch 2.11 counted on an H200."""
    sizes, config = np.array(run["sizes_bytes"]), AllocatorConfig.parse(run["conf"])
    timeline = simulate_allocator(sizes, run["events"], config)
    np.testing.assert_array_equal(timeline.allocated_bytes, run["allocated_bytes"])
    np.testing.assert_array_equal(timeline.reserved_bytes, run["reserved_bytes"])
    assert required_bytes(sizes, run["events"], config) == run["required_bytes"]


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Draw sizes of all classes, and events that free some of the tensors in between."""
    classes = st.sampled_from([1, 512, MIB, MIB + 1, 6 * MIB, 10 * MIB, 45 * MIB]) | st.integers(1, 60 * MIB)
    sizes = draw(st.lists(classes, min_size=1, max_size=30))
    events: list[int] = []
    alive: list[int] = []
    for tensor in range(len(sizes)):
        events.append(tensor)
        alive.append(tensor)
        count = draw(st.integers(0, min(2, len(alive))))
        events.extend(~alive.pop(draw(st.integers(0, len(alive) - 1))) for _ in range(count))
    return sizes, events


@pytest.mark.parametrize("config", CONFIGS)
@given(program=programs())
def test_live_bytes_fit_into_allocated_into_reserved(
    config: AllocatorConfig, program: tuple[list[int], list[int]]
) -> None:
    """After every event the live sizes are at most what is allocated, and that at most what is reserved."""
    sizes, events = program
    timeline = simulate_allocator(np.array(sizes), events, config)
    live = np.cumsum([sizes[e] if e >= 0 else -sizes[~e] for e in events])
    assert (live <= timeline.allocated_bytes).all()
    assert (timeline.allocated_bytes <= timeline.reserved_bytes).all()


@pytest.mark.parametrize("config", CONFIGS)
@given(program=programs(), order=st.randoms(use_true_random=False))
def test_freeing_everything_leaves_nothing(
    config: AllocatorConfig, program: tuple[list[int], list[int]], order: Any
) -> None:
    """Freed in any order, nothing stays allocated, and the same events then need no new memory."""
    sizes, events = program
    allocator = make_allocator(config)
    allocator.add(np.array(sizes))
    allocator.run(events)
    rest = sorted({e for e in events if e >= 0} - {~e for e in events if e < 0})
    order.shuffle(rest)
    allocator.run([~tensor for tensor in rest])
    assert allocator.allocated_bytes == 0
    calls = allocator.driver_calls
    allocator.run([*rest, *(~tensor for tensor in rest)])
    assert allocator.allocated_bytes == 0
    assert allocator.driver_calls == calls


@pytest.mark.parametrize("config", CONFIGS)
@given(program=programs(), order=st.randoms(use_true_random=False))
def test_the_order_of_frees_does_not_change_what_is_allocated(
    config: AllocatorConfig, program: tuple[list[int], list[int]], order: Any
) -> None:
    """With everything allocated, freeing half of it in two orders leaves the same bytes."""
    sizes, _ = program
    freed = list(range(0, len(sizes), 2))
    shuffled = freed.copy()
    order.shuffle(shuffled)
    left = []
    for sequence in (freed, shuffled):
        allocator = make_allocator(config)
        allocator.run(allocator.add(np.array(sizes)))
        allocator.run([~tensor for tensor in sequence])
        left.append((allocator.allocated_bytes, allocator.reserved_bytes))
    assert left[0] == left[1]


@pytest.mark.parametrize("config", CONFIGS)
@given(program=programs())
def test_required_is_enough_and_one_page_less_is_not(
    config: AllocatorConfig, program: tuple[list[int], list[int]]
) -> None:
    """The events run under the limit found, and fail 2 MiB below it (expandable segments may pass it: see there)."""
    sizes, events = program
    limit_bytes = required_bytes(np.array(sizes), events, config)

    def run_under(limit_bytes: int) -> None:
        allocator = make_allocator(config, limit_bytes=limit_bytes)
        allocator.add(np.array(sizes))
        allocator.run(events)

    run_under(limit_bytes)
    if not config.expandable_segments:
        with pytest.raises(OutOfLimitError):
            run_under(limit_bytes - 2 * MIB)


@pytest.mark.parametrize("config", CONFIGS)
@given(program=programs())
def test_a_clone_goes_its_own_way(config: AllocatorConfig, program: tuple[list[int], list[int]]) -> None:
    """What a copy does leaves the original as it was, and both go on alike."""
    sizes, events = program
    original = make_allocator(config)
    original.add(np.array(sizes))
    half = len(events) // 2
    original.run(events[:half])
    before = (original.allocated_bytes, original.reserved_bytes)
    twin = original.clone()
    twin.run(events[half:])
    assert (original.allocated_bytes, original.reserved_bytes) == before
    original.run(events[half:])
    assert (original.allocated_bytes, original.reserved_bytes) == (twin.allocated_bytes, twin.reserved_bytes)
