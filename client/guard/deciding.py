"""From a call of the model to a verdict: describe the step, capture it, ask, choose."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from peakcast.client.guard.asking import Asking
from peakcast.client.guard.largest_batch import batch_of, first_of, largest_batch
from peakcast.client.guard.memory_facts import allocator_settings, closure_bytes, device_now, own_bytes_of
from peakcast.client.guard.policy import Policy
from peakcast.client.guard.ranks import Ranks, adopted, proposal_of
from peakcast.client.guard.spare_process import Captured, SpareProcess
from peakcast.client.guard.step_description import ONLY_FORWARD, Described, describe
from peakcast.client.guard.verdict import Verdict, likeliest
from peakcast.featurizer.allocator_config import AllocatorConfig
from peakcast.featurizer.capture.isolated import CaptureError
from peakcast.featurizer.run import DeviceSpec, RunSpec
from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.vocabulary import GPU
from peakcast.featurizer.workspace import CONTEXT_BYTES, LIBRARIES_BYTES
from peakcast.models.decision import available_bytes
from peakcast.models.prediction import PlanPrediction, Prediction

_log = logging.getLogger(__name__)
_OVERHEAD_BYTES = CONTEXT_BYTES + LIBRARIES_BYTES
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the model, as it is about to happen."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    optimizer: torch.optim.Optimizer | None
    step: Callable[[], Any] | None
    takes_gradients: bool

    def described(self) -> Described:
        """Pack what is about to happen; CannotDescribeError where it cannot be sent."""
        return describe(
            self.model,
            self.args,
            self.kwargs,
            optimizer=self.optimizer,
            step=self.step,
            takes_gradients=self.takes_gradients,
        )


class Decider:
    """Reach verdicts for one model.

    Args:
        plans: those that the model can run under.
        asking: answers questions.
        policy: bounds on everything.
        device: the card; None: the current CUDA device at the time of the question, or an empty H200 without one.
        modules: those that the model's classes are from, for the capturing process to import ahead.
    """

    def __init__(
        self,
        plans: tuple[str, ...],
        asking: Asking,
        policy: Policy,
        device: DeviceSpec | None,
        *,
        modules: Sequence[str] = (),
    ) -> None:
        self._plans = plans
        self._asking = asking
        self._policy = policy
        self._device = device
        self.reads_card = device is None and torch.cuda.is_available()
        self._spare = SpareProcess(modules)
        if policy.warm_capture:
            self._spare.start()

    def decide(self, call: Call, ranks: Ranks | None = None) -> Verdict:
        """Return the verdict for a call. Where the plan wanted fits, no other is captured.

        With `ranks` it is one that all ranks can run: first they see whether that plan fits everywhere.

        Raises:
            CannotDescribeError: if the step cannot be sent to the capturing process.
            CaptureError: if it cannot be captured.
            AskError: if there is no answer to the question.
        """
        return self._asking.while_it_answers(lambda: self._decide(call, ranks))

    def _decide(self, call: Call, ranks: Ranks | None) -> Verdict:
        wanted, *others = self._plans
        try:
            question = _Question(self, call)
            question.ask([wanted])
            verdict, settled = question.verdict(), question.fits()
            if ranks is not None:
                found = ranks.agree(proposal_of(verdict))
                verdict, settled = adopted(verdict, found), found.plan is not None
            if settled or not others:
                return verdict
            question.ask(others)
            verdict = question.verdict()
            return verdict if ranks is None else adopted(verdict, ranks.agree(proposal_of(verdict)))
        finally:
            if self._policy.warm_capture:
                self._spare.renew()
            else:
                self._spare.close()

    def largest_batch(self, call: Call, verdict: Verdict) -> int | None:
        """Return the largest batch that fits under the verdict's plan, or None where none was found.

        Raises as `decide` does.
        """
        inputs = (call.args, dict(call.kwargs))
        batch = batch_of(inputs)
        if batch is None or verdict.device is None or (verdict.room_bytes or 0) <= 0:
            return None
        device, plan = verdict.device, verdict.plan

        @functools.cache
        def required_bytes(size: int) -> int:
            args, kwargs = first_of(inputs, size)
            captured = self.capture(replace(call, args=args, kwargs=kwargs, step=None).described(), [plan])
            return self.answer(captured.spec, [plan], device, verdict.run).plan(plan).required.upper_bytes

        # What the user's step takes beyond the standard loop that stands for it at other sizes: activations, mostly.
        ratio = max(1.0, verdict.required[plan] / required_bytes(batch))
        return largest_batch(required_bytes, too_large=batch, room_bytes=int((verdict.room_bytes or 0) / ratio))

    def capture(self, described: Described, plans: Sequence[str]) -> Captured:
        """Capture a described step."""
        return self._spare.capture(described.packed, plans, timeout_s=self._policy.capture_time.total_seconds())

    def answer(self, spec: GraphSpec, plans: Sequence[str], device: DeviceSpec, run: RunSpec | None) -> Prediction:
        """Ask about a captured step."""
        return self._asking.ask(spec, plans, device, run)

    def device(self, call: Call) -> DeviceSpec:
        """Describe the card at this moment: before a capture, whose process takes a CUDA context of its own."""
        if not self.reads_card:
            return self._device or DeviceSpec()
        own_bytes = own_bytes_of(call.model, call.optimizer, (call.args, dict(call.kwargs)))
        return device_now(own_bytes, context_bytes=_OVERHEAD_BYTES)

    def close(self) -> None:
        """End the capturing process."""
        self._spare.close()


class _Question:
    """One decision in the making: questions about some plans first, then about the rest."""

    def __init__(self, decider: Decider, call: Call) -> None:
        self._decider = decider
        self._call = call
        self._described = call.described()
        self._answers: list[Prediction] = []
        self._specs: list[GraphSpec] = []
        self._device: DeviceSpec | None = None
        self._run: RunSpec | None = None
        self._assumed: dict[str, None] = dict.fromkeys(self._described.assumptions)
        self._room_bytes = 0
        self._statics_bytes = 0
        self._captured_s = self._asked_s = 0.0

    def ask(self, plans: Sequence[str]) -> None:
        """Capture the step under these plans, and ask about them."""
        started_s = time.perf_counter()
        before = self._device or self._decider.device(self._call)
        captured = self._capture(plans)
        self._assumed |= dict.fromkeys(captured.assumed)
        asked_at_s = time.perf_counter()
        self._captured_s += asked_at_s - started_s
        if self._device is None and self._decider.reads_card:
            # What the step's function holds is the prediction's too.
            held_bytes = before.already_allocated_bytes - closure_bytes(captured.spec, plans[0], self._call.model)
            before = before.model_copy(update={"already_allocated_bytes": max(0, held_bytes)})
        self._device = device = before
        self._run = _run_now()
        self._answers.append(self._decider.answer(captured.spec, plans, device, self._run))
        self._specs.append(captured.spec)
        self._asked_s += time.perf_counter() - asked_at_s
        self._room_bytes = available_bytes(device, _OVERHEAD_BYTES)
        self._statics_bytes = self._statics_bytes or _statics_bytes(captured.spec, plans[0])

    def _capture(self, plans: Sequence[str]) -> Captured:
        """Capture the user's step; where that fails over there, the standard loop in its place."""
        try:
            return self._decider.capture(self._described, plans)
        except CaptureError as error:
            if not self._described.is_whole_step:
                raise
            _log.info("the step could not be captured as it is (%s)", error)
        self._described = replace(self._call, step=None).described()
        self._assumed |= dict.fromkeys((ONLY_FORWARD, *self._described.assumptions))
        return self._decider.capture(self._described, plans)

    def fits(self) -> bool:
        """Tell whether the last answer found a plan that fits."""
        return self._answers[-1].decision.plan is not None

    def verdict(self) -> Verdict:
        """Return the verdict: what the last answer decided, or of all plans the one that likely fits."""
        decision = self._answers[-1].decision
        told = {plan.plan: plan for answer in self._answers for plan in answer.plans}
        expected = {name: plan.required.expected_bytes for name, plan in told.items()}
        if decision.plan is None:
            plan, action = likeliest([*told], expected, self._room_bytes), "smallest"
            reason = _nothing_fits(told, told[plan], self._room_bytes, self._answers[-1].risk)
        else:
            plan, action, reason = decision.plan, decision.action, decision.reason
        return Verdict(
            plan=plan,
            action=action,  # type: ignore[arg-type]  # "refuse" comes without a plan
            reason=reason,
            graph_id=self._answers[0].graph_id,
            required={name: plan.required.upper_bytes for name, plan in told.items()},
            expected=expected,
            room_bytes=self._room_bytes,
            statics_bytes=self._statics_bytes,
            assumptions=tuple(self._assumed),
            captured_s=self._captured_s,
            asked_s=self._asked_s,
            predictions=tuple(self._answers),
            specs=tuple(self._specs),
            device=self._device,
            run=self._run,
        )


def _nothing_fits(told: Mapping[str, PlanPrediction], taken: PlanPrediction, room_bytes: int, risk: float) -> str:
    """Say what every plan needs, and why `taken` is the one that likely fits."""
    needs = ", ".join(
        f"{name} (expected {plan.required.expected_bytes / _GIB:.2f}, at most {plan.required.upper_bytes / _GIB:.2f})"
        for name, plan in told.items()
    )
    is_expected_to_fit = taken.required.expected_bytes <= room_bytes
    why = "is the fastest that is expected to fit" if is_expected_to_fit else "is expected to need least"
    doubts = f" [{taken.confidence}: {'; '.join(taken.doubts)}]" if taken.doubts else ""
    return f"no plan fits in {max(room_bytes, 0) / _GIB:.2f} GiB at risk {risk:g}: {needs}; {taken.plan} {why}{doubts}"


def _statics_bytes(spec: GraphSpec, plan: str) -> int:
    """Return the bytes on the card that are there before the step and stay: weights, state, inputs."""
    storages = spec.traces[plan].storages
    stays = (storages.device == GPU) & (storages.born < 0) & (storages.died < 0)
    return int(np.sum(storages.bytes[stays]))


def _run_now() -> RunSpec | None:
    """Return what only this process knows of the run; the rest is as captured."""
    known: dict[str, Any] = {}
    settings = allocator_settings()
    if settings:
        try:
            AllocatorConfig.parse(settings)
            known["allocator"] = settings
        except ValueError:  # a setting that this version does not know
            pass
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        known["world_size"] = torch.distributed.get_world_size()
    return RunSpec(**known) if known else None
