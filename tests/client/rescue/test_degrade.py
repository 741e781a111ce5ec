"""Going down the ladder and up again, against hand-worked courses and for random ones."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakcast.client.rescue.degrade import (
    TRANSITIONS,
    Degradation,
    DegradePolicy,
    Event,
    OutOfMemory,
    Phase,
    StepFinished,
    Symbol,
)

POLICY = DegradePolicy(quiet_s=100.0, longest_quiet_s=400.0, trial_steps=3)
FINE = StepFinished(0.1)
SLOW = StepFinished(15.1)
OUT = OutOfMemory()


def follow(machine: Degradation, *events: Event, at_s: float = 0.0) -> list[str]:
    """Feed events, all at one time, and return the kinds of action."""
    return [machine.observe(event, at_s).kind for event in events]


def test_every_phase_knows_every_symbol() -> None:
    """No pair is left out of the table."""
    assert set(TRANSITIONS) == {(phase, symbol) for phase in get_args(Phase) for symbol in get_args(Symbol)}


def test_three_out_of_memory_errors_in_a_row_go_one_down_each() -> None:
    """Full graph, hybrid, eager, eager under checkpointing; there it stays, and says that nothing below would help."""
    machine = Degradation(POLICY)
    for plan in ("hybrid", "eager", "eager:checkpoint"):
        assert follow(machine, OUT, OUT) == ["keep", "keep"]
        action = machine.observe(OUT, 0.0)
        assert (action.kind, action.plan, machine.plan) == ("degrade", plan, plan)
        assert action.reason == "3 out-of-memory errors in a row"
    follow(machine, OUT, OUT)
    action = machine.observe(OUT, 0.0)
    assert (action.kind, action.plan) == ("keep", "eager:checkpoint")
    assert "no plan below eager:checkpoint would help" in action.reason


def test_a_step_that_finishes_ends_the_row() -> None:
    """Two errors, a good step, two errors: nothing happens; a rescued step does not end it."""
    machine = Degradation(POLICY)
    assert follow(machine, OUT, OUT, FINE, OUT, OUT) == ["keep"] * 5
    assert machine.plan == "full"
    rescued = StepFinished(20.0, rescued=True)
    assert follow(Degradation(POLICY), OUT, rescued, OUT, rescued, OUT) == ["keep"] * 4 + ["degrade"]


def test_one_slow_step_goes_one_down_but_not_into_checkpointing() -> None:
    """Over 15 s, not at it; steps that compile are not judged; recomputing would only make it slower."""
    machine = Degradation(POLICY)
    assert follow(machine, StepFinished(15.0), StepFinished(300.0, compiling=True)) == ["keep", "keep"]
    action = machine.observe(SLOW, 0.0)
    assert (action.kind, action.plan, action.reason) == ("degrade", "hybrid", "a step took 15.1 s, over 15 s")
    assert follow(machine, SLOW, SLOW) == ["degrade", "keep"]
    assert machine.plan == "eager"


def test_after_a_quiet_period_the_plan_above_is_tried_and_confirmed() -> None:
    """Quiet for 100 s, then three good steps; the plan above that one waits for 100 s of its own."""
    machine = Degradation(POLICY)
    follow(machine, *[OUT] * 6)
    assert machine.plan == "eager"
    assert follow(machine, FINE, at_s=99.9) == ["keep"]
    action = machine.observe(FINE, 100.0)
    assert (action.kind, action.plan, action.reason) == ("try", "hybrid", "no trouble for 100 s")
    assert machine.trying
    assert follow(machine, FINE, FINE, FINE, at_s=101.0) == ["keep", "keep", "confirm"]
    assert not machine.trying
    assert follow(machine, FINE, at_s=200.9) == ["keep"]
    assert follow(machine, FINE, at_s=201.0) == ["try"]
    assert machine.plan == "full"
    assert follow(machine, FINE, FINE, FINE, FINE, at_s=10_000.0) == ["keep", "keep", "confirm", "keep"]


@pytest.mark.parametrize("trouble", [OUT, SLOW], ids=["out of memory", "slow"])
def test_each_lost_trial_doubles_the_quiet_period(trouble: Event) -> None:
    """100, 200, 400, 400 seconds; the first trouble of a trial ends it, and one that is won sets it back to 100."""
    machine = Degradation(POLICY)
    follow(machine, OUT, OUT, OUT)
    now_s = 0.0
    for quiet_s in (100.0, 200.0, 400.0, 400.0):
        assert follow(machine, FINE, at_s=now_s + quiet_s - 1) == ["keep"]
        now_s += quiet_s
        assert follow(machine, FINE, at_s=now_s) == ["try"]
        assert machine.plan == "full"
        assert follow(machine, FINE, trouble, at_s=now_s) == ["keep", "revert"]
        assert machine.plan == "hybrid"
    now_s += 400
    assert follow(machine, FINE, FINE, FINE, FINE, at_s=now_s) == ["try", "keep", "keep", "confirm"]
    assert follow(machine, OUT, OUT, OUT, at_s=now_s) == ["keep", "keep", "degrade"]
    assert follow(machine, FINE, at_s=now_s + 100) == ["try"]


events = st.one_of(
    st.builds(StepFinished, st.floats(0, 30), st.booleans(), st.booleans()),
    st.just(OUT),
)


@given(st.lists(st.tuples(st.floats(0, 150), events), max_size=80))
def test_whatever_happens_it_moves_one_rung_at_a_time_and_for_a_reason(course: list[tuple[float, Event]]) -> None:
    """The plan changes only with degrade, revert (down) and try (up), by one; never up within a quiet period."""
    machine = Degradation(POLICY)
    ladder = POLICY.ladder
    now_s = last_trouble_s = 0.0
    for passed_s, event in course:
        now_s += passed_s
        before = ladder.index(machine.plan)
        action = machine.observe(event, now_s)
        moved = ladder.index(action.plan) - before
        assert action.plan == machine.plan
        assert moved == {"degrade": 1, "revert": 1, "try": -1}.get(action.kind, 0)
        assert action.reason or action.kind == "keep"
        if action.kind == "try":
            assert now_s - last_trouble_s >= POLICY.quiet_s
            assert isinstance(event, StepFinished)
        slow = isinstance(event, StepFinished) and not event.rescued and not event.compiling and event.step_s > 15
        if isinstance(event, OutOfMemory) or slow:
            last_trouble_s = now_s
            assert action.kind in {"keep", "degrade", "revert"}


@given(st.lists(events, max_size=40), st.floats(0, 1e6))
def test_enough_quiet_leads_back_to_the_full_graph(course: list[Event], start_s: float) -> None:
    """From anywhere on the ladder, good steps over some hours end with the plan that was asked for."""
    machine = Degradation(POLICY)
    for event in course:
        machine.observe(event, start_s)
    for tick in range(60):
        machine.observe(FINE, start_s + 100.0 * tick)
    assert machine.plan == "full"
    assert not machine.trying


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"ladder": ()}, "ladder must name one or more plans, each once, got \\(\\)"),
        ({"ladder": ("eager", "eager")}, "each once"),
        ({"out_of_memory_row": 0}, "out_of_memory_row must be 1 or more, got 0"),
        ({"trial_steps": 0}, "trial_steps must be 1 or more, got 0"),
        ({"slowest_step_s": 0.0}, "slowest_step_s must be above 0, got 0"),
        ({"quiet_s": 1e6}, "at most longest_quiet_s \\(14400\\), got 1e\\+06"),
    ],
    ids=["empty", "twice", "row", "trial", "slowest", "quiet"],
)
def test_a_policy_that_cannot_be_is_refused(given: dict[str, object], told: str) -> None:
    """With the value and what is allowed."""
    with pytest.raises(ValueError, match=told):
        DegradePolicy(**given)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="level must be from 0 to 3, got 4"):
        Degradation(level=4)
