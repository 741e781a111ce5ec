"""The memory pressure index: by hand, over random inputs, and on this process."""

from __future__ import annotations

import gc
import os
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from limited_memory import resident_bytes

from peakcast.client.metrics.memory_pressure import MemoryPressure
from peakcast.client.metrics.pressure import CollectorClock, pressure_index

GIB = 1 << 30


@pytest.mark.parametrize(
    ("used_gib", "collecting_s", "retries", "expected"),
    [
        (40, 0.0, 0, 25.0),
        (80, 0.0, 0, 50.0),
        (80, 1.5, 0, 75.0),
        (80, 3.0, 0, 100.0),
        (60, 30.0, 0, 75.0),
        (60, 0.0, 1, 75.0),
    ],
    ids=["half full", "full", "full, 5 % collecting", "full, 10 %", "busy", "retried"],
)
def test_the_index_by_hand(used_gib: int, collecting_s: float, retries: int, expected: float) -> None:
    """Of 80 GiB over 30 s: use times half, and the other half as the collector is active."""
    found = pressure_index(
        used_bytes=used_gib * GIB, total_bytes=80 * GIB, collecting_s=collecting_s, retries=retries, window_s=30.0
    )
    assert found == pytest.approx(expected)


@given(st.integers(0, 10**12), st.integers(0, 10**12), st.floats(0, 60), st.floats(0, 60), st.integers(0, 5))
def test_the_index_lies_from_0_to_100_and_only_grows(
    used: int, more: int, collecting_s: float, longer_s: float, retries: int
) -> None:
    """With more memory in use, a busier collector or a retry it never falls."""
    total = used + more + 1

    def index(used_bytes: int, collecting_s: float, retries: int) -> float:
        return pressure_index(
            used_bytes=used_bytes, total_bytes=total, collecting_s=collecting_s, retries=retries, window_s=30.0
        )

    least = index(used, collecting_s, retries)
    assert 0 <= least <= 100
    assert index(used + more, collecting_s, retries) >= least
    assert index(used, collecting_s + longer_s, retries) >= least
    assert index(used, collecting_s, retries + 1) >= least


@pytest.mark.parametrize(
    "given",
    [
        {"used_bytes": 2},
        {"used_bytes": -1},
        {"total_bytes": 0},
        {"window_s": 0.0},
        {"retries": -1},
        {"collecting_s": -1.0},
    ],
    ids=["more than all", "negative", "no memory", "no window", "retries", "collecting"],
)
def test_what_cannot_be_is_refused(given: dict[str, float]) -> None:
    """With the values."""
    fine = {"used_bytes": 1, "total_bytes": 1, "collecting_s": 0.0, "retries": 0, "window_s": 30.0}
    with pytest.raises(ValueError, match="got"):
        pressure_index(**{**fine, **given})  # type: ignore[arg-type]


def test_the_collector_is_timed_over_the_last_30_seconds() -> None:
    """A real collection of a hundred thousand cycles takes time; 30 seconds later it is forgotten."""
    now_s = [1000.0]
    ticking = CollectorClock(clock=lambda: now_s[0] + time.monotonic())
    ticking.start()
    ticking.start()  # a second time changes nothing
    try:
        gc.collect()
        before_s = ticking.collecting_s()
        for _ in range(100_000):
            cycle: list[object] = []
            cycle.append(cycle)
        began_s = time.monotonic()
        gc.collect()
        took_s = time.monotonic() - began_s
        assert before_s < ticking.collecting_s()
        assert ticking.collecting_s() - before_s >= 0.5 * took_s
        now_s[0] += 31
        assert ticking.collecting_s() == 0.0
    finally:
        ticking.stop()
    assert ticking._heard not in gc.callbacks


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU the card counts")
def test_without_a_gpu_the_process_counts_against_the_ram() -> None:
    """Nobody collects here, so half of the share of the RAM that this process takes."""
    expected = 50 * resident_bytes() / (os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    assert MemoryPressure().index() == pytest.approx(expected, rel=0.05)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_card_counts() -> None:
    """Half of the share of the card that is in use, by whomever, as long as nobody collects."""
    held = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    free_bytes, total_bytes = torch.cuda.mem_get_info()
    assert MemoryPressure().index() == pytest.approx(50 * (1 - free_bytes / total_bytes), rel=0.05)
    assert held.numel() == GIB


def test_retries_count_within_the_window() -> None:
    """Two in the last 30 seconds; 31 seconds later none."""
    now_s = [0.0]
    pressure = MemoryPressure(clock=lambda: now_s[0])
    assert pressure._new_retries(5) == 0
    now_s[0] = 10.0
    assert pressure._new_retries(7) == 2
    now_s[0] = 31.0
    assert pressure._new_retries(7) == 0
