"""`peakcast.guard`: asks before each compile, puts the plan that fits on the model, and rescues steps that do not."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from types import EllipsisType
from typing import Any, Self, TypeVar

import torch
from torch import fx, nn
from torch._dynamo.exc import TorchDynamoException

from peakcast.client.guard import active_plan, compiled_before
from peakcast.client.guard.asking import Asking
from peakcast.client.guard.call_start import CallStart
from peakcast.client.guard.deciding import Decider
from peakcast.client.guard.plan_backend import PlanBackend
from peakcast.client.guard.plan_switch import PlanSwitch, possible_plans
from peakcast.client.guard.policy import Policy
from peakcast.client.guard.question import Call
from peakcast.client.guard.reporting import Reports
from peakcast.client.guard.second_look import DecidedOtherwiseError, DoesNotFitError, RegionPeak, ended_by_second_look
from peakcast.client.guard.settling import Meanwhile, Settler, first_line
from peakcast.client.guard.signature import Signature, autocast_dtype, signature_of
from peakcast.client.guard.step_description import UnderAutocast, modules_of
from peakcast.client.guard.verdict import Verdict
from peakcast.client.metrics.metrics import CLIENT
from peakcast.client.recompiles.report import RecompileReport
from peakcast.client.recompiles.watch import RecompileWatch
from peakcast.client.rescue.buffers import BufferCopies
from peakcast.client.rescue.degrade import Degradation, DegradePolicy, OutOfMemory, StepFinished
from peakcast.client.rescue.out_of_memory import is_out_of_memory
from peakcast.client.rescue.rescue import Rescue
from peakcast.featurizer.plans import Plan, parse_plan
from peakcast.featurizer.run import DeviceSpec

T = TypeVar("T")
_log = logging.getLogger("peakcast")
_GIB = 1 << 30
# Below the full graph, when it keeps making trouble.
_LADDER = ("hybrid", "eager", "eager:checkpoint")


def guard(
    model: nn.Module,
    optimizer: Any = None,
    *,
    server: str | None = None,
    token: str | None = None,
    policy: Policy | None = None,
    device: DeviceSpec | None = None,
) -> Guard:
    """Watch over the training of a model: `guard = peakcast.guard(model, optimizer); loss = guard.step(step_fn)`.

    The model is compiled in place: its state-dict keys stay as they are, and other code goes on calling it.

    Args:
        model: the model that is called in the step.
        optimizer: the optimizer that is stepped; wrappers that hold the real one as `.optimizer` will do.
        server: URL of a service; None: predict in this process.
        token: bearer token for the server; default: the environment's PEAKCAST_TOKEN.
        policy: plans, risk and limits; default: `Policy()`.
        device: the card to plan for; None: the current CUDA device as it is at each question, or an empty H200 on a
            host without one.

    Raises:
        ValueError: if none of the policy's plans can be put on the model.
    """
    return Guard(model, optimizer, server=server, token=token, policy=policy, device=device)


class Guard:
    """What `peakcast.guard` returns.

    `counts` counts what happened: questions, compiles, fall_backs, second_looks, unknown, rescues, and the kinds of
    answers.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any = None,
        *,
        server: str | None = None,
        token: str | None = None,
        policy: Policy | None = None,
        device: DeviceSpec | None = None,
    ) -> None:
        self.policy = policy or Policy()
        self.model = model
        self.optimizer = getattr(optimizer, "optimizer", optimizer)
        self.plans = possible_plans(model, self.policy.plans)
        self.decision: Verdict | None = None
        self.compile_s = 0.0
        self.counts: Counter[str] = Counter()
        self._asking = Asking(server, token=token, time_s=self.policy.ask_time.total_seconds(), risk=self.policy.risk)
        modules = modules_of(model, self.optimizer)
        self._decider = Decider(self.plans, self._asking, self.policy, device, modules=modules)
        self._signature: Signature | None = None
        self._step: Callable[[], Any] | None = None
        self._looked_bytes = 0
        self._regions: list[RegionPeak] = []
        self._meanwhile: Meanwhile | None = None
        self._reports = Reports(server if self.policy.report else None, token=token)
        self._watch = RecompileWatch(on_compile=CLIENT.observe_compile)
        self._watch.__enter__()
        self._degradation = Degradation(
            DegradePolicy(
                ladder=("full", *(plan for plan in _LADDER if plan in self.plans)),
                out_of_memory_row=self.policy.out_of_memory_limit,
                slowest_step_s=self.policy.slow_step.total_seconds(),
                quiet_s=self.policy.quiet_period.total_seconds(),
                longest_quiet_s=24 * self.policy.quiet_period.total_seconds(),
            )
        )
        self._rescue = Rescue(self._fall_back, model=model, optimizer=self.optimizer, reruns=len(self.plans))
        # Dynamo must not trace the gate itself, where it is called from compiled code.
        gate = torch.compiler.disable(self._gate, recursive=False)
        self._switch = PlanSwitch(model, gate, self._backend)
        self._settler = Settler(
            self.plans,
            self._decider,
            self.policy,
            bare=self._switch.bare,
            counts=self.counts,
            decided=self._reports.decided,
        )

    @property
    def plan(self) -> str:
        """Return the plan that the model runs under now."""
        return self._switch.plan

    def step(self, step: Callable[[], T], *, described_by: Callable[[], Any] | EllipsisType | None = ...) -> T:
        """Run one training step, and return what it returns.

        If it runs out of memory, the model falls back to a plan that needs less, and the step is run once more from the
        same state and random numbers.

        Args:
            step: takes no argument: it calls the model, goes backward and steps the optimizer, on a batch that its
                closure holds.
            described_by: a function that does the same and can be sent to another process, where `step` cannot; None:
                there is none, so the standard loop around the model's call stands for it. Default: `step` itself.

        Raises:
            NothingFitsError: if no plan is predicted to fit, where the policy says to refuse.
            MemoryNotReturnedError, StepNotRepeatableError, NothingSmallerError: as `peakcast.client.rescue` says.
            Exception: whatever the step raises.
        """
        busy, rescues = self._busy(), self.counts["rescues"]
        started_s = time.perf_counter()
        with self.watching(step if described_by is ... else described_by):
            result = self._rescue.run(step, signature=self._signature)
        if self.counts["rescues"] > rescues:
            CLIENT.observe_rescue("rescued")
        self._finished(
            StepFinished(
                time.perf_counter() - started_s,
                compiling=self._busy() != busy,
                rescued=self.counts["rescues"] > rescues,
            )
        )
        return result

    def recompiles(self) -> RecompileReport:
        """Return what was compiled until now, why, and what stayed alive."""
        return self._watch.report()

    @contextlib.contextmanager
    def watching(self, step: Callable[[], Any] | None) -> Iterator[None]:
        """Know, for the time of the block, what whole step the calls of the model belong to, without running it."""
        dtype = autocast_dtype()
        before = self._step
        self._step = step if step is None or dtype is None else UnderAutocast(step, dtype)
        try:
            yield
        finally:
            self._step = before

    def close(self) -> None:
        """Leave the model as it was found, and end the capturing process."""
        self._switch.close()
        self._rescue.close()
        self._decider.close()
        self._watch.__exit__(None, None, None)
        self._reports.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[type[_Elsewhere], tuple[()]]:
        """Become inert on the way to a capturing process: over there nothing is watched."""
        return _Elsewhere, ()

    def _gate(self, *args: Any, **kwargs: Any) -> Any:
        """Stand in front of every call of the model."""
        signature = signature_of(self.model, args, kwargs)
        verdict = self._settler.verdicts.get(signature)
        if verdict is not None and self._signature == signature:
            with active_plan.handed_over(self.plan, self._compiling):
                return self._switch.call(*args, **kwargs)
        return self._first_call(signature, verdict, args, kwargs)

    def _first_call(
        self, signature: Signature, verdict: Verdict | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Settle the plan of a signature, and call the model under it, falling back if a compile is ended."""
        self._signature = signature
        self._meanwhile = None  # an error or Ctrl-C may have left one behind
        call = Call(self.model, args, kwargs, self.optimizer, self._step, signature.takes_gradients)
        if verdict is not None:
            self._adopt(verdict)
        elif self._may_compile_meanwhile(signature):
            self._ask_ahead(signature, call)
        else:
            self._adopt(self._settler.settle(signature, call, self.plan))
        # Each plan may be ended once, the plan wanted by the answer too.
        for _ in range(len(self.plans) + 1):
            self._regions = []
            compiled_before.note(self.plan, takes_gradients=signature.takes_gradients)
            start = CallStart(self.model)
            try:
                with active_plan.handed_over(self.plan, self._compiling):
                    result = self._switch.call(*args, **kwargs)
            except Exception as error:
                ended = ended_by_second_look(error)
                if ended is None and not (self._is_undecided() and _may_be_the_plans(error)):
                    raise
                # Of what ended a compile only its words are kept: the error holds the compiler's frames.
                failed, told = (error, "") if ended is None else (None, str(ended))
                del ended
            else:
                self._conclude()  # where nothing was compiled, nothing has waited
                return result
            if self._is_undecided():
                tried = self.plan
                self._conclude()
                if failed is not None and self.plan == tried:
                    raise failed
            else:
                verdict = self._settler.verdicts[signature]
                smaller = verdict.next_after(self.plan, self.plans, any_left=False)
                assert smaller is not None  # or the second look would have let it pass
                self.counts["fall_backs"] += 1
                CLIENT.observe_fall_back("second_look")
                verdict = verdict.falling_to(smaller, told, failed=self.plan)
                self._settler.verdicts[signature] = verdict
                self._adopt(verdict)
            del failed
            start.put_back()
        raise AssertionError("the last plan is never ended")  # pragma: no cover

    def _may_compile_meanwhile(self, signature: Signature) -> bool:
        """Tell whether the call can begin before its verdict: only where a compile is sure to come before it runs."""
        wanted = parse_plan(self.plans[0])
        return (
            self.policy.compile_meanwhile
            and wanted.compiler == "inductor"
            and self._degradation.plan == "full"
            and self._settler.may_ask_meanwhile(signature)
            and compiled_before.is_compiled_anew(wanted.name, takes_gradients=signature.takes_gradients)
            and BufferCopies(self.model).covers_all()
        )

    def _ask_ahead(self, signature: Signature, call: Call) -> None:
        """Put the plan wanted on the model, and have the verdict made meanwhile."""
        self._reports.will_run(self.plans[0])
        try:
            self._meanwhile = self._settler.ask_ahead(signature, call)
        except Exception as error:  # noqa: BLE001  (fails open)
            self._settler.verdicts[signature] = self._settler.unanswered(error, self.plan)
            self._adopt(self._settler.verdicts[signature])
            return
        if not self._put_on(self.plans[0]):
            self._conclude()

    def _is_undecided(self) -> bool:
        return self._meanwhile is not None

    def _conclude(self) -> None:
        """Adopt the verdict that was made meanwhile, if one was; never from inside a compile of another plan."""
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            self._adopt(self._settler.conclude(meanwhile, self.plan))

    def _heed(self, *, wait: bool) -> None:
        """Inside a compile: take in the verdict that is made meanwhile; end the compile where it decides otherwise."""
        meanwhile = self._meanwhile
        if meanwhile is not None:
            if not wait and not meanwhile.ahead.is_worth_waiting():
                return
            if not meanwhile.stands(self.plan, self.policy):
                raise DecidedOtherwiseError(f"{self.plan} was compiled while its question was answered")
            self._conclude()
        regions, self._regions = self._regions, []
        for region in regions:
            self._look_at(region)

    def _adopt(self, verdict: Verdict) -> None:
        """Put a verdict's plan on the model."""
        if self.decision is None or (verdict.plan, verdict.reason) != (self.decision.plan, self.decision.reason):
            _log.info("plan %s: %s", verdict.plan, verdict.reason)
        self.decision = verdict
        self._looked_bytes = 0
        degraded = self._degradation.plan
        plan = verdict.plan if degraded == "full" else verdict.after_trouble(degraded)
        self._reports.runs(verdict, plan)
        self._put_on(plan)

    def _put_on(self, plan: str) -> bool:
        self.counts["switches"] += plan != self.plan
        try:
            self._switch.to(plan)
        except Exception as error:  # noqa: BLE001  (a plan that cannot be put on must not stop the training)
            self._settler.warn_once("switch", "plan %s cannot be put on the model: %s", plan, first_line(error))
            return False
        return True

    def _fall_back(self) -> bool:
        """Turn to a plan that may need less, after a step ran out of memory; False where every one has failed."""
        if self._signature is None or self.decision is None:
            return False
        next_plan = self.decision.next_after(self.plan, self.plans, any_left=True)
        if next_plan is None:
            return False
        verdict = self.decision.falling_to(next_plan, f"{self.plan} ran out of memory", failed=self.plan)
        self._settler.verdicts[self._signature] = verdict
        self.counts["fall_backs"] += 1
        self.counts["rescues"] += 1
        self._reports.ran_out()
        self._degradation.observe(OutOfMemory(), time.monotonic())
        self._adopt(verdict)
        return True

    def _busy(self) -> int:
        """Return a number that changes when something is asked or compiled: such a step's time is not the plan's."""
        return self.counts["questions"] + self.counts["compiles"] + self.counts["switches"]

    def _finished(self, event: StepFinished) -> None:
        self._watch.step()
        self._reports.step(self._looked_bytes)
        action = self._degradation.observe(event, time.monotonic())
        if action.kind in ("keep", "confirm") or self.decision is None:
            return
        self.counts[action.kind] += 1
        if action.kind == "degrade":
            CLIENT.observe_fall_back("slow")
        _log.warning(
            "%s: %s",
            {"degrade": "one plan down", "revert": "back one plan down"}.get(action.kind, "one plan up"),
            action.reason,
        )
        self._adopt(self.decision)

    def _backend(self, plan: Plan) -> PlanBackend:
        return PlanBackend(plan, compiling=self._compiling, saw=self._saw if self.policy.second_look else None)

    @contextlib.contextmanager
    def _compiling(self, _: fx.GraphModule) -> Iterator[None]:
        started_s = time.perf_counter()
        self.counts["compiles"] += 1
        try:
            self._heed(wait=False)
            yield
            self._heed(wait=True)
        finally:
            self.compile_s += time.perf_counter() - started_s

    def _saw(self, region: RegionPeak) -> None:
        self._regions.append(region)
        self._heed(wait=False)

    def _look_at(self, region: RegionPeak) -> None:
        """Hold inductor's own buffer plan against the room there is; end the compile where it cannot fit."""
        verdict = self.decision
        if verdict is None or verdict.statics_bytes is None or verdict.room_bytes is None:
            return
        self.counts["second_looks"] += 1
        seen_bytes = verdict.statics_bytes + region.peak_bytes
        self._looked_bytes = max(self._looked_bytes, seen_bytes)
        if seen_bytes > verdict.room_bytes and verdict.next_after(self.plan, self.plans, any_left=False) is not None:
            phase = "backward" if region.is_backward else "forward"
            raise DoesNotFitError(
                f"inductor's own plan of the {phase} needs {seen_bytes / _GIB:.2f} GiB under {self.plan}, and "
                f"{verdict.room_bytes / _GIB:.2f} GiB are free for it"
            )


def _may_be_the_plans(error: Exception) -> bool:
    """Tell whether another plan may be spared an error: no memory, or a compiler that does not work."""
    return is_out_of_memory(error) or isinstance(error, TorchDynamoException)


class _Elsewhere:
    """A guard in a capturing process: runs steps and watches nothing."""

    def step(self, step: Callable[[], T]) -> T:
        """Run the step."""
        return step()

    @contextlib.contextmanager
    def watching(self, _: Any) -> Iterator[None]:
        """Do nothing."""
        yield
