from __future__ import annotations

import pytest

from peakcast.service.store.quota import Quota, Refusal, Taken, refusal

QUOTA = Quota(peaks_per_minute=10, max_peaks=100, max_graph_bytes=1000, share=0.25)


@pytest.mark.parametrize(
    ("taken", "graph_bytes", "retry_after_s"),
    [
        (Taken(0, 0, 0, 0, 0, 0), 250, None),
        (Taken(0, 0, 0, 9, 0, 0), 0, None),
        (Taken(0, 0, 0, 10, 0, 0), 0, 50),  # 10 s of the minute are over
        (Taken(24, 0, 0, 0, 99, 0), 0, None),
        (Taken(25, 0, 0, 0, 25, 0), 0, 3600),
        (Taken(0, 0, 0, 0, 100, 0), 0, 3600),
        (Taken(0, 0, 0, 0, 0, 0), 251, 3600),
        (Taken(0, 0, 0, 0, 0, 800), 201, 3600),
        (Taken(0, 300, 0, 0, 0, 1000), 0, None),  # full of graphs, but this one is there
    ],
    ids=["first", "in the rate", "rate", "in the share", "share", "full", "graph", "full of graphs", "known graph"],
)
def test_limits_hold_to_the_peak(taken: Taken, graph_bytes: int, retry_after_s: int | None) -> None:
    """Each limit lets the last one in and refuses the next."""
    refused = refusal(QUOTA, taken, graph_bytes=graph_bytes, now_ms=10_000)
    assert (None if refused is None else refused.retry_after_s) == retry_after_s


def test_a_minute_ends() -> None:
    """A new window begins after 60 s, and where the clock was set back."""
    taken = Taken(5, 5, 1_000_000, 10, 5, 5)
    assert taken.at(1_059_999) is taken
    assert taken.at(1_060_000) == Taken(5, 5, 1_060_000, 0, 5, 5)
    assert taken.at(999_999) == Taken(5, 5, 999_999, 0, 5, 5)
    assert isinstance(refusal(QUOTA, taken, graph_bytes=0, now_ms=1_059_999), Refusal)
