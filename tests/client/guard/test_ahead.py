"""A compile begins while its question is answered, and nothing compiled runs before the answer."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
import torch
from answering import answering
from compiled_anew import compiled_anew
from guarded import Net, Training, card, eager_losses
from torch import nn

import peakcast
from peakcast.client.guard import compiled_before
from peakcast.client.guard.ahead import Ahead
from peakcast.client.guard.guard import Guard
from peakcast.client.guard.plan_backend import PlanBackend
from peakcast.client.guard.policy import Policy
from peakcast.client.guard.settling import Meanwhile, NothingFitsError
from peakcast.client.guard.verdict import Verdict

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")

LARGE = card(80 << 30)
TINY = card(100 << 20)
FITS = {"inductor": (1 << 20, 2 << 20), "eager": (1 << 20, 2 << 20)}
ONLY_EAGER_FITS = {"inductor": (1 << 40, 1 << 41), "eager": (1 << 20, 2 << 20)}


@pytest.fixture(autouse=True)
def _nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    compiled_before._compiled.clear()
    with compiled_anew():
        yield
    torch._dynamo.reset()


class Watched(Training):
    """A training that is guarded; `until_compiling` holds a server's answer back until the compile has begun."""

    def __init__(self, **policy: object) -> None:
        super().__init__()
        # Most tests ask once: a process kept ready for the next capture imports torch for nothing.
        given = {"ask_time": timedelta(seconds=60), "warm_capture": False} | policy
        self.policy = Policy(plans=("inductor", "eager"), **given)  # type: ignore[arg-type]
        self.guard: Guard | None = None
        self.compiles: list[int] = []

    def until_compiling(self) -> None:
        """Wait for the compile, and note how many have begun."""
        deadline_s = time.monotonic() + 30
        while not self.begun() and time.monotonic() < deadline_s:
            time.sleep(0.01)
        self.compiles.append(self.begun())

    def begun(self) -> int:
        """Return how many compiles have begun."""
        return self.guard.counts["compiles"] if self.guard is not None else 0

    def guarded(self, server: str | None, device: peakcast.DeviceSpec = LARGE) -> Guard:
        """Return the guard."""
        self.guard = peakcast.guard(self.model, self.optimizer, server=server, device=device, policy=self.policy)
        return self.guard


def test_the_compile_begins_before_the_answer_and_goes_on_with_it() -> None:
    """An answer that waits for the compile to begin comes, and confirms it; no compile was made twice."""
    training = Watched()
    with answering(FITS, before=training.until_compiling) as server, training.guarded(server) as guard:
        assert training.losses(guard.step) == pytest.approx(eager_losses(), rel=1e-5)
        assert training.compiles == [1]
        assert (guard.plan, guard.decision.action) == ("inductor", "compile")
        assert (guard.counts["questions"], guard.counts["compiles"], guard.counts["fall_backs"]) == (1, 1, 0)
        assert guard.decision.waited_s < guard.decision.captured_s + guard.decision.asked_s


def test_an_answer_that_decides_otherwise_ends_the_compile() -> None:
    """The plan that fits runs, and the compiled one never did: the losses are eager's to the bit."""
    training = Watched()
    with answering(ONLY_EAGER_FITS, before=training.until_compiling) as server, training.guarded(server) as guard:
        assert training.losses(guard.step) == eager_losses()
        assert training.compiles == [1, 1]  # asked about the plan wanted, then about the others
        assert (guard.plan, guard.decision.action) == ("eager", "fall_back")
        assert (guard.counts["questions"], guard.counts["fall_backs"]) == (1, 0)


def test_where_the_policy_says_so_the_answer_comes_first() -> None:
    """Without `compile_meanwhile` nothing has been compiled when the question is answered."""
    training = Watched(compile_meanwhile=False)
    compiles: list[int] = []
    with (
        answering(FITS, before=lambda: compiles.append(training.begun())) as server,
        training.guarded(server) as guard,
    ):
        training.losses(guard.step, steps=1)
        assert (compiles, guard.counts["compiles"]) == ([0], 1)


def test_what_may_have_been_compiled_before_waits_for_its_answer() -> None:
    """A larger batch, and another guard of the class, could run compiled code at once; gradients always compile."""
    training = Watched()
    begun: list[int] = []

    def note() -> None:
        # Inference, then training: each begins its compile before its answer comes.
        while training.begun() <= len(begun) < 2:
            time.sleep(0.01)
        begun.append(training.begun())

    with answering(FITS, before=note) as server:
        with training.guarded(server) as guard:
            with torch.no_grad():
                training.model(torch.zeros(4, 32))
            training.losses(guard.step, steps=1)
            assert begun == [1, 2]
            training.losses(guard.step, steps=1, batch=24)
            assert begun == [1, 2, 2]
        training = Watched()
        with training.guarded(server) as guard:
            training.losses(guard.step, steps=1)
            assert begun == [1, 2, 2, 0]


class Counting(Net):
    """A model that counts its calls, and may fail in its first one here, before its compiled part."""

    def __init__(self, fail: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.fail = fail

    @torch.compiler.disable
    def count(self) -> None:
        """Count in place, in code that Dynamo leaves alone."""
        self.calls.add_(1)
        self.fail()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        self.count()
        return super().forward(x)


def counting(training: Watched, fail: Callable[[], None] = lambda: None) -> Counting:
    """Give a training such a model with the weights of its own."""
    model = Counting(fail)
    model.load_state_dict(training.model.state_dict(), strict=False)
    training.model, training.optimizer = model, torch.optim.AdamW(model.parameters(), lr=1e-2)
    return model


def test_what_ran_before_the_ended_compile_is_undone() -> None:
    """A counter that an eager piece of the model raises counts each step once."""
    training = Watched()
    model = counting(training)
    with answering(ONLY_EAGER_FITS, before=training.until_compiling) as server, training.guarded(server) as guard:
        assert training.losses(guard.step, steps=2) == eager_losses(2)
        assert guard.plan == "eager"
        assert model.calls.item() == 2


def test_running_out_of_memory_before_the_answer_is_rescued() -> None:
    """The answer is waited for, and the next plan runs; nothing counts twice."""
    training = Watched()
    here, attempts = os.getpid(), []

    def fail() -> None:
        if os.getpid() == here:
            attempts.append(guard.plan)
            if len(attempts) == 1:
                raise torch.OutOfMemoryError("CUDA out of memory")

    model = counting(training)
    guard = training.guarded(None)
    with guard:
        object.__setattr__(model, "fail", fail)
        assert training.losses(guard.step, steps=1) == pytest.approx(eager_losses(1), rel=1e-5)
        assert attempts == ["inductor", "eager"]
        assert guard.counts["rescues"] == 1
        assert model.calls.item() == 1


def test_closing_while_deciding_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is interrupted in its compile, and closed at once, has no capturing process left."""
    training = Watched(warm_capture=True)

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(PlanBackend, "__call__", interrupt)
    guard = training.guarded(None)
    with guard, pytest.raises(KeyboardInterrupt):
        guard.step(training.step_on(16))
    lock = guard._decider._one_at_a_time
    assert lock.acquire(timeout=60)  # the decision has ended
    lock.release()
    assert guard._decider._means._spare._process is None


def test_a_refusal_ends_the_compile() -> None:
    """Where nothing fits and the policy says to refuse, the error is the guard's, and nothing has run."""
    training = Watched(nothing_fits="refuse")
    with (
        answering(dict.fromkeys(FITS, (1 << 40, 1 << 41)), before=training.until_compiling) as server,
        training.guarded(server, TINY) as guard,
        pytest.raises(NothingFitsError, match="no plan fits in"),
    ):
        guard.step(training.step_on(16))
    assert training.optimizer.state == {}


def test_a_server_that_is_away_leaves_the_compile_alone() -> None:
    """The compile that has begun goes on as asked, and is the only one."""
    training = Watched(ask_time=timedelta(seconds=2))
    with training.guarded("http://127.0.0.1:9") as guard:
        assert training.losses(guard.step) == pytest.approx(eager_losses(), rel=1e-5)
        assert (guard.plan, guard.decision.action) == ("inductor", "unknown")
        assert (guard.counts["unknown"], guard.counts["compiles"]) == (1, 1)


def test_a_step_that_cannot_be_captured_is_asked_about_as_the_standard_loop() -> None:
    """The user's step fails over there: the compile is ended, the question put otherwise, and the plan compiled."""
    training = Watched()
    whole = training.step_on(16)
    here = threading.get_native_id()

    def only_here() -> float:
        if threading.get_native_id() != here:
            raise RuntimeError("this step runs in the process of its training alone")
        return whole()

    with training.guarded(None) as guard:
        loss = guard.step(only_here)
        assert (guard.plan, guard.decision.action) == ("inductor", "compile")
        assert any("assumed to be forward, loss, backward and optimizer" in told for told in guard.decision.assumptions)
        assert guard.counts["questions"] == 1
    assert loss == pytest.approx(eager_losses(1)[0], rel=1e-5)


def test_an_error_of_the_model_passes_while_the_answer_is_on_its_way() -> None:
    """What the model's own code raises comes out at once as it is; the next step asks again, and runs."""

    class Choosy(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Return the logits of no more than 16 rows."""
            if x.shape[0] > 16:
                raise ValueError("too many rows")
            return super().forward(x)

    training = Watched()
    choosy = Choosy()
    choosy.load_state_dict(training.model.state_dict())
    training.model, training.optimizer = choosy, torch.optim.AdamW(choosy.parameters(), lr=1e-2)
    with training.guarded(None) as guard:
        with pytest.raises(ValueError, match="too many rows"):
            guard.step(training.step_on(17))
        assert training.losses(guard.step, steps=1) == pytest.approx(eager_losses(1), rel=1e-5)
        assert guard.plan == "inductor"


def test_a_verdict_that_an_interrupted_compile_left_behind_is_forgotten() -> None:
    """Nobody waits for it, neither at the next call nor while that is compiled."""
    training = Watched(compile_meanwhile=False)
    never = threading.Event()

    def decide(_: Callable[[], None]) -> Verdict:
        never.wait(60)
        raise AssertionError("nobody asks for it")

    with answering(FITS) as server, training.guarded(server) as guard:
        guard._meanwhile = Meanwhile(None, None, Ahead(decide))  # type: ignore[arg-type]
        assert training.losses(guard.step, steps=1) == pytest.approx(eager_losses(1), rel=1e-5)
        assert (guard.decision.action, guard.counts["compiles"]) == ("compile", 1)
        assert not never.is_set()
    never.set()


def test_a_model_that_is_not_compiled_at_all_is_decided_for_afterwards() -> None:
    """Where Dynamo skips the model's code, the call runs and the verdict is there after it."""

    class Skipped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(32, 10)

        @torch.compiler.disable
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Return the logits."""
            return self.layer(x)

    training = Watched()
    training.model = Skipped()
    training.optimizer = torch.optim.AdamW(training.model.parameters())
    with answering(FITS) as server, training.guarded(server) as guard:
        guard.step(training.step_on(16))
        assert (guard.plan, guard.counts["questions"], guard.counts["compiles"]) == ("inductor", 1, 0)
        assert guard.decision.action in {"compile", "unknown"}


class Outside(nn.Module):
    """A model of which Dynamo sees nothing, around a part that its user compiles with this project's backend."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Net()
        self.part.compile(backend="peakcast")

    @torch.compiler.disable(recursive=False)
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Call the part."""
        return self.part(x)


def test_a_part_compiled_by_its_user_waits_for_the_answer_too() -> None:
    """The part's compile begins before the answer; as that is eager, the compiled part never runs."""
    training = Watched()
    training.model = Outside()
    training.model.part.load_state_dict(Training().model.state_dict())
    training.optimizer = torch.optim.AdamW(training.model.parameters(), lr=1e-2)
    with answering(ONLY_EAGER_FITS, before=training.until_compiling) as server, training.guarded(server) as guard:
        losses = training.losses(guard.step, steps=2)
        assert training.compiles == [1, 1]
        assert (guard.plan, guard.decision.action) == ("eager", "fall_back")
        assert guard.counts["compiles"] == 1
    assert losses == eager_losses()[:2]


def test_a_verdict_in_the_making_is_worth_waiting_for_once_doubted_or_done() -> None:
    """Neither at first; after a doubt, or once it is there, a compile should wait for it."""
    go, doubted, finish = threading.Event(), threading.Event(), threading.Event()
    made = Verdict(plan="eager", action="fall_back", reason="because")

    def decide(doubt: Callable[[], None]) -> Verdict:
        assert go.wait(30)
        doubt()
        doubted.set()
        assert finish.wait(30)
        return made

    ahead = Ahead(decide)
    assert not ahead.is_worth_waiting()
    go.set()
    assert doubted.wait(30)
    assert ahead.is_worth_waiting()
    finish.set()
    assert ahead.verdict() is made

    def fail(_: Callable[[], None]) -> Verdict:
        raise LookupError("nobody knows")

    failed = Ahead(fail)
    with pytest.raises(LookupError, match="nobody knows"):
        failed.verdict()
    assert failed.is_worth_waiting()
