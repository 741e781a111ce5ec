"""One decision in the making: a call of the model, described, captured and asked about under one plan after another."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from peakcast.client.guard.asking import Asking
from peakcast.client.guard.memory_facts import allocator_settings, closure_bytes, device_now, own_bytes_of
from peakcast.client.guard.policy import Policy
from peakcast.client.guard.spare_process import Captured, SpareProcess
from peakcast.client.guard.step_description import ONLY_FORWARD, Described, describe
from peakcast.client.guard.verdict import Verdict, likeliest
from peakcast.featurizer.allocator_config import AllocatorConfig
from peakcast.featurizer.capture.isolated import CaptureError
from peakcast.featurizer.communicators import bytes_for_communicators
from peakcast.featurizer.run import DeviceSpec, RunSpec
from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.vocabulary import GPU
from peakcast.featurizer.workspace import CONTEXT_BYTES, LIBRARIES_BYTES
from peakcast.models.decision import available_bytes
from peakcast.models.prediction import PlanPrediction, Prediction

_log = logging.getLogger(__name__)
_OVERHEAD_BYTES = CONTEXT_BYTES + LIBRARIES_BYTES
_GIB = 1 << 30


class StepNotCapturedError(CaptureError):
    """The user's step cannot be captured; the standard loop in its place may be."""


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


class Means:
    """What questions are answered with: a capturing process, a predictor, and the card as it is.

    Args:
        asking: answers questions.
        policy: bounds on everything.
        device: the card; None: the current CUDA device at the time of the question, or an empty H200 without one.
        modules: those that the model's classes are from, for the capturing process to import ahead.
    """

    def __init__(self, asking: Asking, policy: Policy, device: DeviceSpec | None, modules: Sequence[str]) -> None:
        self._asking = asking
        self._policy = policy
        self._device = device
        self.reads_card = device is None and torch.cuda.is_available()
        self._is_closed = False
        self._spare = SpareProcess(modules)
        if policy.warm_capture:
            self._spare.start()

    def capture(self, described: Described, plans: Sequence[str]) -> Captured:
        """Capture a described step."""
        if self._is_closed:
            raise CaptureError("the guard was closed while it was deciding")
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

    def renew(self) -> None:
        """Give back what captures hold on the card, and get ready for the next one where the policy says so."""
        if self._policy.warm_capture and not self._is_closed:
            self._spare.renew()
        else:
            self._spare.close()

    def close(self) -> None:
        """End the capturing process, and let a decision that is under way start no other."""
        self._is_closed = True
        self._spare.close()


class Question:
    """Ask about some plans first, then about the rest.

    Made where the model is as its user wrote it, and before anything of the call has run; asked from any thread.

    Args:
        means: what answers it.
        call: what it is about.
        stays_bare: the model stays as it is until the last question: where the user's step cannot be captured, the
            standard loop can still be described in its place.

    Raises:
        CannotDescribeError: if the step cannot be sent to the capturing process.
    """

    def __init__(self, means: Means, call: Call, *, stays_bare: bool = True) -> None:
        self._means = means
        self._call = call
        self._stays_bare = stays_bare
        self._described = call.described()
        self._before = means.device(call)
        self._answers: list[Prediction] = []
        self._specs: list[GraphSpec] = []
        self._device: DeviceSpec | None = None
        self._run: RunSpec | None = None
        self._assumed: dict[str, None] = dict.fromkeys(self._described.assumptions)
        self._room_bytes = 0
        self._statics_bytes = 0
        self._captured_s = self._asked_s = 0.0

    def ask(self, plans: Sequence[str]) -> None:
        """Capture the step under these plans, and ask about them.

        Raises:
            CaptureError: if it cannot be captured.
            AskError: if there is no answer.
        """
        started_s = time.perf_counter()
        captured = self._capture(plans)
        self._assumed |= dict.fromkeys(captured.assumed)
        asked_at_s = time.perf_counter()
        self._captured_s += asked_at_s - started_s
        if self._device is None:
            self._device = self._card_for(captured.spec, plans[0])
        self._run = _run_now()
        self._answers.append(self._means.answer(captured.spec, plans, self._device, self._run))
        self._specs.append(captured.spec)
        self._asked_s += time.perf_counter() - asked_at_s
        self._room_bytes = available_bytes(self._device, _OVERHEAD_BYTES + bytes_for_communicators(captured.spec))
        self._statics_bytes = self._statics_bytes or _statics_bytes(captured.spec, plans[0])

    def _capture(self, plans: Sequence[str]) -> Captured:
        """Capture the user's step; where that fails over there, the standard loop in its place."""
        try:
            return self._means.capture(self._described, plans)
        except CaptureError as error:
            if not self._described.is_whole_step:
                raise
            if not self._stays_bare:
                raise StepNotCapturedError(*error.args) from error
            _log.info("the step could not be captured as it is (%s)", error)
        self._described = replace(self._call, step=None).described()
        self._assumed |= dict.fromkeys((ONLY_FORWARD, *self._described.assumptions))
        return self._means.capture(self._described, plans)

    def _card_for(self, spec: GraphSpec, plan: str) -> DeviceSpec:
        if not self._means.reads_card:
            return self._before
        # What the step's function holds is the prediction's too.
        held_bytes = self._before.already_allocated_bytes - closure_bytes(spec, plan, self._call.model)
        return self._before.model_copy(update={"already_allocated_bytes": max(0, held_bytes)})

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
