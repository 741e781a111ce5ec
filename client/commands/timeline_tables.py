"""Timelines as tables for people, and as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.markup import escape
from rich.table import Table

from peakcast.client.commands.render import bytes_text
from peakcast.client.comparing.timeline import Alive, Difference, Timeline, thinned

_PLOT_POINTS: Final = 2000
_MIB: Final = 1 << 20


def summary_table(timelines: Sequence[Timeline], heading: str) -> Table:
    """Return one row a timeline: its peak, what the allocator holds, the workspaces."""
    table = Table(title=heading, title_justify="left")
    table.add_column("step")
    for title in ("allocated peak", "reserved", "workspaces", "tensors at the peak"):
        table.add_column(title, justify="right")
    for timeline in timelines:
        # A measured history does not say which of its blocks are workspaces.
        workspaces = bytes_text(timeline.workspace_bytes) if timeline.source == "simulated" else "-"
        table.add_row(
            timeline.source,
            bytes_text(timeline.peak_bytes),
            bytes_text(timeline.reserved_bytes),
            workspaces,
            f"{len(timeline.alive):,}",
        )
    return table


def alive_table(tensors: Sequence[Alive], heading: str, count: int) -> Table:
    """Return the largest of some tensors."""
    table = Table(title=heading, title_justify="left")
    for title in ("bytes", "op", "phase", "role", "source line"):
        table.add_column(title, justify="right" if title == "bytes" else "left", overflow="fold")
    for tensor in tensors[:count]:
        line = tensor.line.rpartition("site-packages/")[2]
        table.add_row(bytes_text(tensor.bytes), escape(tensor.op), tensor.phase, tensor.role, escape(line))
    if len(tensors) > count:
        rest = sum(tensor.bytes for tensor in tensors[count:])
        table.caption = f"and {len(tensors) - count:,} more of {bytes_text(rest)} together"
    return table


def difference_text(found: Difference, measured: Timeline, simulated: Timeline) -> str:
    """Say in one sentence what is missing."""
    off = measured.peak_bytes - simulated.peak_bytes
    how = "below" if off >= 0 else "above"
    return (
        f"The simulated peak lies {bytes_text(abs(off))} {how} the measured one: {len(found.missing):,} measured "
        f"tensors of {bytes_text(found.missing_bytes)} have no simulated one of their size, and "
        f"{len(found.surplus):,} simulated ones of {bytes_text(found.surplus_bytes)} no measured one."
    )


def plot_timelines(timelines: Sequence[Timeline], path: Path, *, title: str) -> None:
    """Draw the live bytes over the step, each from 0 to 1 of its own course, with a mark at each peak."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    for timeline in timelines:
        length = max(len(timeline.live_bytes) - 1, 1)
        at, live = thinned(timeline.live_bytes, _PLOT_POINTS)
        (line,) = axes.plot([position / length for position in at], [value / _MIB for value in live], lw=1)
        peak_mib = timeline.peak_bytes / _MIB
        line.set_label(f"{timeline.source}: peak {bytes_text(timeline.peak_bytes)}")
        axes.plot(timeline.peak_at / length, peak_mib, "o", ms=5, color=line.get_color())
    axes.set_xlabel("share of the step's nodes (simulated) or allocator events (measured)")
    axes.set_ylabel("live, MiB")
    axes.set_ylim(bottom=0)
    axes.set_title(title)
    axes.legend()
    figure.savefig(path)
