"""`peakcast.guard` on real trainings, with a real service and real captures; on the CPU, for a card that is given."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch
from answering import answering
from compiled_anew import compiled_anew
from guarded import Training, card, eager_losses
from limited_memory import LimitedMemory
from serving import Served, serving

import peakcast
from peakcast.client.guard.policy import Policy
from peakcast.client.guard.second_look import config_patches
from peakcast.client.guard.settling import NothingFitsError
from peakcast.client.rescue.rescue import NothingSmallerError
from peakcast.featurizer.capture.plans import install
from peakcast.featurizer.workspace import CONTEXT_BYTES, LIBRARIES_BYTES

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")

LARGE = card(80 << 30)
# No context of CUDA fits on it, let alone a step.
TINY = card(100 << 20)


@pytest.fixture(scope="module")
def service() -> Iterator[Served]:
    """Give a running service."""
    with serving() as served:
        yield served


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_a_plan_that_fits_runs_as_asked_and_is_asked_about_once(service: Served) -> None:
    """Losses are eager's, keys stay, smaller batches and evaluation ask nothing, a larger batch asks again."""
    training = Training()
    keys = list(training.model.state_dict())
    policy = Policy(ask_time=timedelta(seconds=30), plans=("inductor", "eager"))
    with peakcast.guard(training.model, training.optimizer, server=service.url, device=LARGE, policy=policy) as guard:
        losses = training.losses(guard.step)
        assert losses == pytest.approx(eager_losses(), rel=1e-5)
        assert (guard.plan, guard.decision.action) == ("inductor", "compile")
        assert guard.decision.assumptions == ()
        assert list(training.model.state_dict()) == keys
        assert (guard.counts["questions"], guard.counts["compiles"]) == (1, 1)
        with torch.no_grad():
            training.model(torch.zeros(8, 32))
        guard.step(training.step_on(15))
        assert guard.counts["questions"] == 1
        guard.step(training.step_on(17))
        assert guard.counts["questions"] == 2
        assert len({verdict.graph_id for verdict in guard._settler.verdicts.values()}) == 2
    assert "_compiled_call_impl" not in vars(training.model)


def test_the_plan_that_fits_is_found_and_refusing_is_a_policy(caplog: pytest.LogCaptureFixture) -> None:
    """Between the bounds of two plans the one that fits runs; below all, the smallest with a warning, or an error."""
    training = Training(width=64)
    policy = Policy(plans=("inductor", "inductor:budget=0.4", "eager"), warm_capture=False)
    with peakcast.guard(training.model, training.optimizer, device=TINY, policy=policy) as guard:
        with caplog.at_level(logging.WARNING, "peakcast"):
            losses = training.losses(guard.step)
        required = dict(guard.decision.required)
        expected = dict(guard.decision.expected)
        smallest = min(expected, key=lambda plan: expected[plan])
        assert set(required) == set(expected) == set(policy.plans)
        assert (guard.plan, guard.decision.action) == (smallest, "smallest")
    told = [record.message for record in caplog.records if "no plan fits in" in record.message]
    assert len(told) == 1
    # In brackets: what makes the answer unsure, where something does.
    assert re.search(rf"; {smallest} is expected to need least( \[[^]]+\])?; running {smallest}$", told[0])
    assert all(f"{plan} (expected " in told[0] for plan in policy.plans)
    again = Training(width=64)
    assert losses == pytest.approx(again.losses(lambda step: step()), rel=1e-5)

    # Context and libraries are taken off the card first: what is left for the step holds the smallest plan alone.
    smallest = min(required, key=lambda plan: required[plan])
    overhead_bytes = TINY.total_bytes - guard.decision.room_bytes
    others = [size for plan, size in required.items() if plan != smallest]
    assert min(others) > required[smallest]
    just = card(overhead_bytes + required[smallest])
    # As new as the first, so that the question is the same: a trained optimizer holds its state already.
    anew = Training(width=64)
    with peakcast.guard(anew.model, anew.optimizer, device=just, policy=policy) as guard:
        guard.step(anew.step_on(16))
        assert guard.plan == smallest
        assert guard.decision.action in {"compile", "fall_back"}
        assert f"{smallest} needs at most" in guard.decision.reason


def test_refusing_is_a_policy() -> None:
    """Where not even context and libraries fit, no batch does; the step does not run."""
    training = Training()
    policy = Policy(plans=("eager",), nothing_fits="refuse", warm_capture=False)
    with (
        peakcast.guard(training.model, training.optimizer, device=TINY, policy=policy) as guard,
        pytest.raises(NothingFitsError, match="no plan fits in") as refused,
    ):
        guard.step(training.step_on(16))
    assert refused.value.largest_batch is None
    assert training.optimizer.state == {}


@pytest.mark.slow
def test_a_refusal_names_the_largest_batch_that_fits() -> None:
    """A batch of that size fits on the same card, and one half as large again does not."""
    training = Training(width=64)
    policy = Policy(plans=("eager",), nothing_fits="refuse", report=False)
    little = card(CONTEXT_BYTES + LIBRARIES_BYTES + (1 << 30))
    guard = peakcast.guard(training.model, training.optimizer, device=little, policy=policy)
    with guard:
        with pytest.raises(NothingFitsError, match="the largest batch that fits: ") as refused:
            guard.step(training.step_on(1 << 18))
        largest = refused.value.largest_batch
        assert largest is not None
        guard.step(training.step_on(largest))
        assert guard.decision.action == "fall_back"
        with pytest.raises(NothingFitsError):
            guard.step(training.step_on(largest + largest // 2))


def test_a_service_that_is_away_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The plan wanted runs, with one warning; after three failures in a row the service is left alone."""
    training = Training()
    policy = Policy(plans=("eager", "eager:checkpoint"), warm_capture=False)
    guard = peakcast.guard(training.model, training.optimizer, server="http://127.0.0.1:9", device=TINY, policy=policy)
    with guard, caplog.at_level(logging.WARNING, "peakcast"):
        # Growing batches: each is a question of its own.
        for batch in range(8, 13):
            guard.step(training.step_on(batch))
        assert (guard.plan, guard.decision.action) == ("eager", "unknown")
        assert guard.counts["unknown"] == 5
        assert guard._asking.counts == {"unreachable": 3, "circuit_open": 2}
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


def test_a_step_that_runs_out_of_memory_is_rescued_under_the_next_plan() -> None:
    """The step runs again from the same state under the next plan, which is remembered; the losses are eager's."""
    training = Training()
    policy = Policy(plans=("eager", "eager:checkpoint"), warm_capture=False)
    with peakcast.guard(training.model, training.optimizer, device=LARGE, policy=policy) as guard:
        attempts: list[str] = []

        def out_of_memory_in_eager(step: object) -> float:
            def whole() -> float:
                return step()  # type: ignore[operator]

            handle = training.model.head.register_forward_hook(lambda *_: attempt())
            try:
                return guard.step(whole)
            finally:
                handle.remove()

        def attempt() -> None:
            attempts.append(guard.plan)
            if guard.plan == "eager":
                torch.empty(1 << 50)  # more than any host has: torch's own error

        losses = training.losses(out_of_memory_in_eager)
        assert attempts == ["eager", *["eager:checkpoint"] * 3]
        assert losses == pytest.approx(eager_losses(), rel=1e-6)
        assert guard.counts["rescues"] == 1
        assert guard.decision.reason == "eager ran out of memory"


def test_after_running_out_plans_with_larger_bounds_are_tried_too(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is sure to fit, the fastest that is expected to runs out in fact, and the other one lives."""
    plans = ("eager", "eager:checkpoint")

    def training() -> Training:
        return Training(width=64, depth=8)

    peaks = {}
    for plan in plans:
        whole = training()
        undo = install(whole.model, plan)
        with LimitedMemory() as memory:
            whole.step_on(2048)()
        undo()
        peaks[plan] = memory.peak_bytes
    limit_bytes = (peaks["eager"] + peaks["eager:checkpoint"]) // 2
    assert peaks["eager:checkpoint"] < limit_bytes < peaks["eager"]

    little = card(CONTEXT_BYTES + LIBRARIES_BYTES + (8 << 20))
    told = {"eager": (5 << 20, 50 << 20), "eager:checkpoint": (7 << 20, 60 << 20)}
    whole = training()
    policy = Policy(plans=plans, ask_time=timedelta(seconds=30), warm_capture=False)
    with (
        answering(told) as server,
        peakcast.guard(whole.model, whole.optimizer, server=server, device=little, policy=policy) as guard,
        caplog.at_level(logging.WARNING, "peakcast"),
    ):
        step = whole.step_on(2048)
        with LimitedMemory(limit_bytes):
            loss = guard.step(step)
        assert guard.plan == "eager:checkpoint"
        assert guard.counts["rescues"] == 1
        assert (guard.decision.failed, guard.decision.reason) == (frozenset({"eager"}), "eager ran out of memory")
        with LimitedMemory(1 << 20), pytest.raises(NothingSmallerError, match="no other plan is left"):
            guard.step(step)
    assert loss == pytest.approx(training().step_on(2048)(), rel=1e-6)
    assert "; eager is the fastest that is expected to fit; running eager" in caplog.text


@pytest.mark.slow
def test_a_slow_step_goes_one_plan_down_and_quiet_brings_the_plan_back() -> None:
    """A step over the limit degrades the full graph to hybrid; after the quiet period the full graph is tried."""
    training = Training()
    policy = Policy(
        plans=("inductor", "hybrid"),
        slow_step=timedelta(seconds=5),
        quiet_period=timedelta(seconds=1),
        second_look=False,
    )
    with peakcast.guard(training.model, training.optimizer, device=LARGE, policy=policy) as guard:
        guard.step(training.step_on(16))
        step = training.step_on(16)

        def slow() -> float:
            time.sleep(5.1)
            return step()

        guard.step(step)
        assert guard.plan == "inductor"
        guard.step(slow)
        assert guard.plan == "hybrid"
        guard.step(step)  # compiles the blocks: its time is not judged
        time.sleep(1.1)
        guard.step(step)
        assert guard.plan == "inductor"
        assert (guard.counts["degrade"], guard.counts["try"]) == (1, 1)


def test_errors_of_the_step_pass_untouched() -> None:
    """What the user's code raises is raised as it is, and the guard goes on afterwards."""
    training = Training()
    with peakcast.guard(
        training.model, training.optimizer, device=LARGE, policy=Policy(plans=("eager",), warm_capture=False)
    ) as guard:
        with pytest.raises(ZeroDivisionError):
            guard.step(lambda: 1 // 0)
        assert guard.step(lambda: 7) == 7
        assert guard.counts["questions"] == 0


@pytest.mark.skipif(not config_patches(lambda _: None), reason="this torch has no CustomSchedulerPass")
def test_the_second_look_overrules_a_prediction_that_is_far_too_low(honest_but_low: str) -> None:
    """Inductor's own plan shows that what a server promised cannot fit: nothing is compiled, the next plan runs."""
    training = Training(width=64)
    policy = Policy(plans=("inductor", "eager"), ask_time=timedelta(seconds=30), warm_capture=False)
    # Context and libraries, and 4 MiB: weights, state and one batch's activations of 8,192 rows are 10 times that.
    little = card(CONTEXT_BYTES + LIBRARIES_BYTES + (4 << 20))
    with (
        compiled_anew(),
        peakcast.guard(
            training.model, training.optimizer, server=honest_but_low, device=little, policy=policy
        ) as guard,
    ):
        loss = guard.step(training.step_on(8192))
        assert guard.plan == "eager"
        assert guard.counts["second_looks"] >= 1
        assert guard.counts["fall_backs"] == 1
        assert "inductor's own plan of the forward needs" in guard.decision.reason
    assert loss == pytest.approx(Training(width=64).step_on(8192)(), rel=1e-6)


@pytest.fixture
def honest_but_low() -> Iterator[str]:
    """Give a server whose answers have the right form, and bytes of nearly nothing."""
    with answering({"inductor": (1, 1), "eager": (1, 1)}) as url:
        yield url
