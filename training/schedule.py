"""Which job goes next on cards that several jobs share. Pure: no clock, no processes."""

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

    The sum of the expected peaks of what runs on a card stays below `memory_bytes`; a job larger than that runs with
    nothing beside it there. A job that is to be `alone` waits until everything else is handed out.
    """

    waiting: deque[J]
    memory_bytes: int
    running: dict[str, J] = field(default_factory=dict)
    _cards: dict[str, str] = field(default_factory=dict)  # by the key of what runs there

    @classmethod
    def of(cls, jobs: Iterable[J], *, memory_bytes: int) -> Schedule[J]:
        """Start with the jobs in their order."""
        return cls(deque(jobs), memory_bytes)

    def take(self, *, seconds_left: float, card: str = "") -> J | None:
        """Give the next job that fits on the card now, and count it as running; None where there is none."""
        beside = [job for key, job in self.running.items() if self._cards[key] == card]
        if any(job.alone for job in beside):
            return None
        used_bytes = sum(job.expected_bytes for job in beside)
        only_alone_left = all(job.alone for job in self.waiting)
        for place, job in enumerate(self.waiting):
            fits = not beside or (not job.alone and used_bytes + job.expected_bytes <= self.memory_bytes)
            in_turn = only_alone_left or not job.alone
            if fits and in_turn and job.expected_seconds <= seconds_left:
                del self.waiting[place]
                self.running[job.key], self._cards[job.key] = job, card
                return job
        return None

    def done(self, job: J) -> None:
        """Take a job off the running ones."""
        self.running.pop(job.key, None)
        self._cards.pop(job.key, None)

    def again(self, job: J) -> None:
        """Put a job back: an `alone` one at the end, another in front."""
        self.done(job)
        if job.alone:
            self.waiting.append(job)
        else:
            self.waiting.appendleft(job)
