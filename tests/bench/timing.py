"""A row of the bench's table, and how its numbers are taken: medians, beside a baseline of the same run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

REPEATS = 21


@dataclass(frozen=True, slots=True)
class Row:
    """One thing measured. `baseline` is in the same unit: what `ratio` divides by; None where there is none."""

    name: str
    value: float
    unit: str
    baseline: float | None = None
    baseline_name: str = ""
    target: str = ""
    cpu_ms: float | None = None  # of the calling thread: what `value` would be if nothing else ran

    @property
    def ratio(self) -> float | None:
        """Return how many times the baseline it is: its CPU time where that is known, which a busy machine spares."""
        value = self.value if self.cpu_ms is None else self.cpu_ms
        return None if self.baseline is None else value / self.baseline


class Taken(float):
    """Milliseconds of wall time, the median; `cpu_ms` is the median of the thread's own time."""

    cpu_ms: float


def p50_ms(call: Callable[[], object], repeats: int = REPEATS) -> Taken:
    """Return the median time of a call, after two that count for nothing."""
    call()
    call()
    taken_ms, cpu_ms = [], []
    for _ in range(repeats):
        start, cpu_start = time.perf_counter(), time.thread_time()
        call()
        cpu_ms.append(1e3 * (time.thread_time() - cpu_start))
        taken_ms.append(1e3 * (time.perf_counter() - start))
    taken = Taken(median(taken_ms))
    taken.cpu_ms = median(cpu_ms)
    return taken


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield "| what | measured | CPU | times the baseline of the run | target |"
    yield "|---|---|---|---|---|"
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.3g} x {row.baseline_name}"
        cpu = "" if row.cpu_ms is None else f"{row.cpu_ms:.3g} ms"
        yield f"| {row.name} | {row.value:.4g} {row.unit} | {cpu} | {ratio} | {row.target} |"
