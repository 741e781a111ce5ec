"""Pooling keeps the order, keeps the nodes around the peak single, and loses no node."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakcast.models.example import CHANNELS, MAX_STEPS, pool_nodes, window_edges


@given(count=st.integers(1, 6000), peak=st.integers(-1, 5999))
def test_windows_cover_every_node_once(count: int, peak: int) -> None:
    """Edges ascend strictly from 0 to the last node, in at most 128 steps."""
    edges = window_edges(count, min(peak, count - 1))
    assert edges[0] == 0
    assert edges[-1] == count
    assert (np.diff(edges) > 0).all()
    assert len(edges) - 1 == min(count, MAX_STEPS)


def test_nodes_around_the_peak_stay_single() -> None:
    """Of 1,400 nodes the 64 around node 700 are steps of their own."""
    edges = window_edges(1400, 700)
    single = edges[:-1][np.diff(edges) == 1]
    assert set(range(668, 732)) <= set(single.tolist())


def test_short_graphs_are_read_node_by_node() -> None:
    """Up to 128 nodes nothing is averaged: 12 numbers, log2(1 + 1) = 1, and the phase over 3."""
    nodes = np.arange(36, dtype=np.float32).reshape(3, 12)
    phase, watermark = np.array([0, 1, 3], np.uint8), np.array([10, 40, 20])
    steps, live, peak = pool_nodes(nodes, phase, watermark, 1)
    assert np.array_equal(steps[:, :12], nodes)
    assert steps[:, 12].tolist() == [1.0, 1.0, 1.0]
    assert np.allclose(steps[:, 13], [0.0, 1 / 3, 1.0])
    assert live.tolist() == [0.25, 1.0, 0.5]
    assert peak == 1


def test_pooled_step_is_a_mean_and_the_largest_watermark() -> None:
    """Of 256 nodes with the peak at the end, the first step averages the first three."""
    nodes = np.repeat(np.arange(256, dtype=np.float32)[:, None], 12, axis=1)
    steps, live, peak = pool_nodes(nodes, np.zeros(256, np.uint8), np.arange(256), 255)
    assert steps[0, 0] == pytest.approx(1.0)
    assert steps[0, 12] == pytest.approx(2.0)  # log2(1 + 3)
    assert live[0] == pytest.approx(2 / 255)
    assert peak == len(steps) - 1


def test_empty_trace_is_one_step_of_zeros() -> None:
    """A graph without nodes still has a sequence."""
    steps, live, peak = pool_nodes(np.zeros((0, 12), np.float32), np.zeros(0, np.uint8), np.zeros(0, np.int64), -1)
    assert steps.shape == (1, CHANNELS)
    assert (live.tolist(), peak) == ([0.0], 0)
