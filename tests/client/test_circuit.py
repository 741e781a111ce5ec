"""The circuit breaker, against a plain model of it, and under threads."""

from __future__ import annotations

import threading
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakcast.client.circuit import (
    TRANSITIONS,
    Breaker,
    Circuit,
    CircuitOpenError,
    CircuitPolicy,
    Event,
    State,
)

POLICY = CircuitPolicy(failures=3, wait_s=5.0, longest_wait_s=20.0)


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        """Tell the time."""
        return self.now_s


def failing() -> None:
    """Fail as a server that is away."""
    raise ConnectionError("away")


def fail(breaker: Breaker) -> None:
    """Ask through the breaker, and see the failure come through."""
    with pytest.raises(ConnectionError, match="away"):
        breaker.ask(failing)


def test_every_state_knows_every_event() -> None:
    """No pair of state and event is left out of the table."""
    assert set(TRANSITIONS) == {(state, event) for state in get_args(State) for event in get_args(Event)}
    assert set(TRANSITIONS.values()) == set(get_args(State))


def test_three_failures_in_a_row_open_it_and_two_do_not() -> None:
    """An answer between failures starts the count anew."""
    breaker = Breaker(POLICY, clock=Clock())
    for _ in range(2):
        fail(breaker)
    assert breaker.ask(lambda: 7) == 7
    for _ in range(2):
        fail(breaker)
        assert breaker.state == "closed"
    fail(breaker)
    assert breaker.state == "open"
    asked: list[int] = []
    with pytest.raises(CircuitOpenError, match="up to 5 s"):
        breaker.ask(lambda: asked.append(1))
    assert asked == []


def test_a_probe_that_is_answered_closes_it() -> None:
    """After the wait one ask goes through, and with its answer all others do."""
    clock = Clock()
    breaker = Breaker(POLICY, clock=clock)
    for _ in range(3):
        fail(breaker)
    clock.now_s += 4.999
    with pytest.raises(CircuitOpenError):
        breaker.ask(lambda: 1)
    clock.now_s += 0.001
    assert breaker.ask(lambda: 1) == 1
    assert breaker.state == "closed"
    for _ in range(2):
        fail(breaker)
    assert breaker.state == "closed"


def test_each_failed_probe_doubles_the_wait_up_to_the_longest() -> None:
    """5, 10, 20, 20 seconds; an answer takes it back to 5."""
    clock = Clock()
    breaker = Breaker(POLICY, clock=clock)
    for _ in range(3):
        fail(breaker)
    for wait_s in (5, 10, 20, 20):
        clock.now_s += wait_s - 0.5
        with pytest.raises(CircuitOpenError, match=f"up to {wait_s} s"):
            breaker.ask(lambda: 1)
        clock.now_s += 0.5
        fail(breaker)
    clock.now_s += 20
    assert breaker.ask(lambda: 1) == 1
    for _ in range(3):
        fail(breaker)
    clock.now_s += 5
    assert breaker.ask(lambda: 2) == 2


def test_one_probe_at_a_time_and_another_if_it_is_never_heard_of() -> None:
    """While a probe is out the others wait; after one more wait the next goes, and the lost one counts no more."""
    circuit = Circuit(POLICY)
    for _ in range(3):
        circuit = circuit.heard(answered=False, begun_in=circuit.round, now_s=0.0)
    circuit, allowed = circuit.asking(5.0)
    assert allowed
    lost = circuit.round
    circuit, allowed = circuit.asking(9.9)
    assert not allowed
    circuit, allowed = circuit.asking(10.0)
    assert allowed
    assert circuit.state == "half_open"
    assert circuit.heard(answered=True, begun_in=lost, now_s=10.5) == circuit
    assert circuit.heard(answered=True, begun_in=circuit.round, now_s=10.5).state == "closed"


def test_an_answer_from_before_it_opened_does_not_close_it() -> None:
    """A slow ask that began while closed ends during the probe: only the probe's own end counts."""
    circuit = Circuit(POLICY)
    begun_in = circuit.round
    for _ in range(3):
        circuit = circuit.heard(answered=False, begun_in=begun_in, now_s=0.0)
    circuit, _ = circuit.asking(5.0)
    assert circuit.heard(answered=True, begun_in=begun_in, now_s=6.0).state == "half_open"
    assert circuit.heard(answered=False, begun_in=begun_in, now_s=6.0).state == "half_open"


@given(st.lists(st.tuples(st.floats(0, 30), st.booleans()), max_size=60))
def test_it_never_asks_more_than_a_plain_count_allows(asks: list[tuple[float, bool]]) -> None:
    """Whatever happens: asked exactly when the last `failures` asks did not all fail, or the doubled wait is over."""
    circuit = Circuit(POLICY)
    now_s, in_row, wait_s, last_s = 0.0, 0, 5.0, 0.0
    for passed_s, answers in asks:
        now_s += passed_s
        expected = in_row < 3 or now_s - last_s >= wait_s
        circuit, allowed = circuit.asking(now_s)
        assert allowed == expected
        if not allowed:
            continue
        circuit = circuit.heard(answered=answers, begun_in=circuit.round, now_s=now_s)
        if answers:
            in_row, wait_s = 0, 5.0
            continue
        if in_row >= 3:
            wait_s = min(2 * wait_s, 20.0)
        in_row, last_s = in_row + 1, now_s


def test_of_many_threads_one_probes() -> None:
    """Thirty threads at the end of the wait: one asks, twenty-nine are told to wait."""
    clock = Clock()
    breaker = Breaker(POLICY, clock=clock)
    for _ in range(3):
        fail(breaker)
    clock.now_s += 5
    refused, asked, all_refused = [], [], threading.Event()

    def probe() -> None:
        asked.append(1)
        assert all_refused.wait(20)

    def run() -> None:
        try:
            breaker.ask(probe)
        except CircuitOpenError:
            refused.append(1)
            if len(refused) == 29:
                all_refused.set()

    threads = [threading.Thread(target=run) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(asked), len(refused)) == (1, 29)
    assert breaker.state == "closed"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"failures": 0}, "failures must be 1 or more, got 0"),
        ({"wait_s": 0.0}, "above 0 and at most longest_wait_s \\(300\\), got 0"),
        ({"wait_s": 301.0}, "got 301"),
    ],
    ids=["no failures", "no wait", "wait beyond the longest"],
)
def test_a_policy_that_cannot_be_is_refused(given: dict[str, float], told: str) -> None:
    """With the value and what is allowed."""
    with pytest.raises(ValueError, match=told):
        CircuitPolicy(**given)  # type: ignore[arg-type]
