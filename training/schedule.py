"""Which job goes next on a card that several jobs share. Pure: no clock, no processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar


class Plannable(Protocol):
    """What a schedule asks of a job."""

    @property
    def key(self) -> str: ...  # noqa: D102 - see Job

    @property
    def alone(self) -> bool: ...  # noqa: D102

    @property
    def expected_bytes(self) -> int: ...  # noqa: D102

    @property
    def expected_seconds(self) -> float: ...  # noqa: D102


J = TypeVar("J", bound=Plannable)


@dataclass(slots=True)
class Schedule(Generic[J]):
    """Hand out jobs in order, as memory and time allow.

    The sum of the expected peaks of what runs stays below `memory_bytes`; a job larger than that runs with nothing
    beside it. A job that is to be `alone` waits until everything else is done.
    """

    waiting: deque[J]
    memory_bytes: int
    running: dict[str, J] = field(default_factory=dict)

    @classmethod
    def of(cls, jobs: Iterable[J], *, memory_bytes: int) -> Schedule[J]:
        """Start with the jobs in their order."""
        return cls(deque(jobs), memory_bytes)

    def take(self, *, seconds_left: float) -> J | None:
        """Give the next job that fits now, and count it as running; None where there is none at the moment."""
        if any(job.alone for job in self.running.values()):
            return None
        used_bytes = sum(job.expected_bytes for job in self.running.values())
        only_alone_left = all(job.alone for job in self.waiting)
        for place, job in enumerate(self.waiting):
            fits = (
                not self.running
                if job.alone
                else not self.running or used_bytes + job.expected_bytes <= self.memory_bytes
            )
            in_turn = only_alone_left or not job.alone
            if fits and in_turn and job.expected_seconds <= seconds_left:
                del self.waiting[place]
                self.running[job.key] = job
                return job
        return None

    def done(self, job: J) -> None:
        """Take a job off the running ones."""
        self.running.pop(job.key, None)

    def again(self, job: J) -> None:
        """Put a job back: an `alone` one at the end, another in front."""
        self.done(job)
        if job.alone:
            self.waiting.append(job)
        else:
            self.waiting.appendleft(job)
