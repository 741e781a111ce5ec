"""A circuit breaker: after some failures in a row nobody is asked for a while, then one probe goes first.

`Circuit` is pure: time is an argument, and every transition stands in one table. `Breaker` is the thread-safe shell
around it that a caller holds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeVar

T = TypeVar("T")
State = Literal["closed", "open", "half_open"]
Event = Literal["answered", "failed", "exhausted", "due"]

# "failed": the other side gave no answer. "exhausted": that, for the last time allowed in a row.
# "due": the wait is over and somebody wants to ask.
TRANSITIONS: Final[dict[tuple[State, Event], State]] = {
    ("closed", "answered"): "closed",
    ("closed", "failed"): "closed",
    ("closed", "exhausted"): "open",
    ("closed", "due"): "closed",
    ("open", "answered"): "open",  # an ask from before it opened: only a probe closes it
    ("open", "failed"): "open",
    ("open", "exhausted"): "open",
    ("open", "due"): "half_open",
    ("half_open", "answered"): "closed",
    ("half_open", "failed"): "open",
    ("half_open", "exhausted"): "open",
    ("half_open", "due"): "half_open",  # the probe was never heard of again: another one goes
}


class CircuitOpenError(RuntimeError):
    """Nobody was asked: too many asks failed lately."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitPolicy:
    """When to stop asking, and when to try again.

    Args:
        failures: so many failures in a row open the circuit, 1 or more.
        wait_s: seconds until the first probe, above 0; doubled by each probe that fails.
        longest_wait_s: the wait never grows beyond this.

    Raises:
        ValueError: for a value out of its range.
    """

    failures: int = 3
    wait_s: float = 5.0
    # A service that was away for hours is asked again within five minutes of its return.
    longest_wait_s: float = 300.0

    def __post_init__(self) -> None:
        if self.failures < 1:
            raise ValueError(f"failures must be 1 or more, got {self.failures}")
        if not 0 < self.wait_s <= self.longest_wait_s:
            problem = (
                f"wait_s must be above 0 and at most longest_wait_s ({self.longest_wait_s:g}), got {self.wait_s:g}"
            )
            raise ValueError(problem)


@dataclass(frozen=True, slots=True)
class Circuit:
    """The state of a circuit. `round` counts its transitions: what was begun in an earlier round says nothing now."""

    policy: CircuitPolicy = CircuitPolicy()
    state: State = "closed"
    failures: int = 0
    wait_s: float = 0.0
    since_s: float = 0.0
    round: int = 0

    def asking(self, now_s: float) -> tuple[Circuit, bool]:
        """Say whether to ask now. In "half_open" one ask is out already, and others wait for what it finds."""
        if self.state == "closed":
            return self, True
        if now_s - self.since_s < self.wait_s:
            return self, False
        return self._go("due", now_s), True

    def heard(self, *, answered: bool, begun_in: int, now_s: float) -> Circuit:
        """Take in how an ask that began in round `begun_in` ended."""
        if begun_in != self.round:
            return self
        if answered:
            return self._go("answered", now_s)
        return self._go("exhausted" if self.failures + 1 >= self.policy.failures else "failed", now_s)

    def _go(self, event: Event, now_s: float) -> Circuit:
        state = TRANSITIONS[self.state, event]
        if state == self.state == "closed":
            return replace(self, failures=0 if event == "answered" else self.failures + 1)
        wait_s = self.wait_s
        if state == "open":
            # From half_open: the probe failed, so the next one waits twice as long.
            doubled_s = 2 * self.wait_s if self.state == "half_open" else self.policy.wait_s
            wait_s = min(doubled_s, self.policy.longest_wait_s)
        return replace(self, state=state, failures=0, wait_s=wait_s, since_s=now_s, round=self.round + 1)


class Breaker:
    """Hold a circuit for several threads, and ask through it."""

    def __init__(self, policy: CircuitPolicy | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._circuit = Circuit(policy or CircuitPolicy())
        self._clock = clock
        self._lock = threading.Lock()

    @property
    def state(self) -> State:
        """Return "closed", "open" or "half_open"."""
        return self._circuit.state

    def ask(self, ask: Callable[[], T]) -> T:
        """Return what `ask` returns.

        Raises:
            CircuitOpenError: without calling `ask`, while the circuit is open.
            Exception: whatever `ask` raises; it counts as a failure.
        """
        with self._lock:
            self._circuit, allowed = self._circuit.asking(self._clock())
            begun_in = self._circuit.round
            wait_s = self._circuit.wait_s
        if not allowed:
            raise CircuitOpenError(f"not asked: earlier asks failed, and the next one waits for up to {wait_s:g} s")
        answered = False
        try:
            result = ask()
            answered = True
        finally:
            with self._lock:
                self._circuit = self._circuit.heard(answered=answered, begun_in=begun_in, now_s=self._clock())
        return result
