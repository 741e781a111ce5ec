"""How much one reporter may bring: peaks a minute, and a share of what the store keeps. Pure: no clock, no database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

WINDOW_MS: Final = 60_000
# A full store is emptied by its operator, not by waiting: asking once an hour is enough.
_FULL_RETRY_S: Final = 3600


@dataclass(frozen=True, slots=True)
class Quota:
    """The limits: of a reporter in a minute, of the whole store, and the share of that which one reporter may take."""

    peaks_per_minute: int
    max_peaks: int
    max_graph_bytes: int
    share: float


@dataclass(frozen=True, slots=True)
class Taken:
    """What is taken: by one reporter, in the minute that began at `window_began_ms`, and by all together."""

    peaks: int
    graph_bytes: int
    window_began_ms: int
    window_peaks: int
    all_peaks: int
    all_graph_bytes: int

    def at(self, now_ms: int) -> Taken:
        """Return the same with a new minute begun where the last one is over, or where the clock was set back."""
        if 0 <= now_ms - self.window_began_ms < WINDOW_MS:
            return self
        return Taken(self.peaks, self.graph_bytes, now_ms, 0, self.all_peaks, self.all_graph_bytes)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why another peak is not taken, and when to come again."""

    reason: str
    retry_after_s: int


def refusal(quota: Quota, taken: Taken, *, graph_bytes: int, now_ms: int) -> Refusal | None:
    """Return why a peak with so many bytes of graph (0: the graph is there) is refused, or None where it is not."""
    if taken.window_peaks >= quota.peaks_per_minute:
        left_ms = taken.window_began_ms + WINDOW_MS - now_ms
        reason = f"{taken.window_peaks} peaks came within a minute, {quota.peaks_per_minute} are allowed"
        return Refusal(reason, max(1, -(-left_ms // 1000)))
    for what, own, everybody, most in (
        ("peaks", taken.peaks + 1, taken.all_peaks + 1, quota.max_peaks),
        (
            "bytes of graphs",
            taken.graph_bytes + graph_bytes,
            taken.all_graph_bytes + graph_bytes,
            quota.max_graph_bytes,
        ),
    ):
        if what != "peaks" and not graph_bytes:
            continue
        if own > most * quota.share:
            return Refusal(
                f"this reporter has its share of the store: {quota.share:.0%} of {most:,} {what}", _FULL_RETRY_S
            )
        if everybody > most:
            return Refusal(f"the store is full: it keeps {most:,} {what}", _FULL_RETRY_S)
    return None
